package node

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

// A handedReader reads a box wherever it is, and acknowledges all. Its books say how often each
// mail was acknowledged, and which came after that.
type handedReader struct {
	acked map[string]int
	again []string
	last  map[string]int // number of the newest mail of each key
	wrong []string       // mails that came before one of their key
}

// read reads until ctx is done. A session ends when the box moves from its own node.
func (h *handedReader) read(ctx context.Context, s *simNode, box string) {
	for ctx.Err() == nil {
		r, err := s.get().Mail.Read(ctx, box, "", wire.LeaseMail{Max: 16, Reader: "r"})
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		for {
			given, err := nextMails(ctx, r, 16)
			if err != nil {
				break
			}
			for _, d := range given {
				h.take(ctx, s, box, d)
			}
		}
		_ = r.Close(context.WithoutCancel(ctx), false)
	}
}

func (h *handedReader) take(ctx context.Context, s *simNode, box string, d wire.DeliveredMail) {
	body, key, n := string(d.Mail.Body), "", 0
	if _, err := fmt.Sscanf(body, "%s %d", &key, &n); err != nil {
		h.wrong = append(h.wrong, body)
	}
	if h.acked[body] > 0 {
		h.again = append(h.again, body)
	}
	if n < h.last[key] {
		h.wrong = append(h.wrong, body)
	}
	h.last[key] = max(h.last[key], n)
	settled, err := s.get().Mail.Settle(ctx, box, "", wire.SettleMail{Ack: []string{d.Lease}})
	if err == nil && settled[0].Code == wire.SettledOK {
		h.acked[body]++
	}
}

// I21, I22: a mailbox is handed over twice while three nodes send to it and one reads it. Each mail is
// acknowledged once, in the order of its key, and none comes again after that.
func TestMailboxIsHandedOverUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 4)
		defer w.close()
		w.nodes[1].addReadable("desk", true, "*")
		time.Sleep(10 * time.Second)
		ctx, stop := context.WithCancel(t.Context())
		var work sync.WaitGroup
		const mails = 400
		for _, s := range []*simNode{w.nodes[0], w.nodes[2], w.nodes[3]} {
			work.Go(func() {
				for i := range mails {
					body := fmt.Sprintf("%s %d", s.name, i+1)
					m := wire.Mail{To: "agent:desk", Body: []byte(body), Key: s.name, Dedupe: body}
					for {
						if _, errs := s.get().Mail.Send(t.Context(), []wire.Mail{m}); errs[0] == nil {
							break // a program of the home waits until the box is at its next one
						}
						time.Sleep(100 * time.Millisecond)
					}
					time.Sleep(50 * time.Millisecond)
				}
			})
		}
		h := &handedReader{acked: map[string]int{}, last: map[string]int{}}
		work.Go(func() { h.read(ctx, w.nodes[3], "agent:desk") })
		homes := []*simNode{w.nodes[1], w.nodes[2], w.nodes[0]}
		for i, from := range homes[:2] {
			time.Sleep(5 * time.Second)
			moved, err := from.get().Mail.Handoff(t.Context(), "desk", homes[i+1].name)
			if err != nil || !moved.Served || moved.Generation != uint64(i)+2 {
				t.Errorf("%+v, %v", moved, err)
			}
		}
		time.Sleep(5 * time.Minute)
		stop()
		work.Wait()
		if len(h.acked) != 3*mails || len(h.again) > 0 || len(h.wrong) > 0 {
			t.Errorf("%d mails were acknowledged; again %q, out of order %q", len(h.acked), h.again, h.wrong)
		}
		for body, n := range h.acked {
			if n != 1 {
				t.Errorf("%q was acknowledged %d times", body, n)
			}
		}
		for i, s := range w.nodes {
			page, err := s.get().Mail.Page(t.Context(), "", "", 0)
			all := page.Items
			if err != nil || len(all) != map[int]int{0: 1}[i] || len(all) == 1 && (all[0].Waiting != 0 || all[0].Ended.Done != 3*mails) {
				t.Errorf("%s has %+v, %v", s.name, all, err)
			}
			if n := s.outgoing(); n > 0 {
				t.Errorf("%d mails still wait at %s", n, s.name)
			}
		}
		if n := len(w.nodes[1].events(wire.EventMailMoved)); n != 1 {
			t.Errorf("%d events tell of it", n)
		}
	})
}

// I21: the home stops, and its new home too, in the middle of a handover of a topic whose mail has
// large bodies: one of them has all of it afterwards, and the other one nothing.
func TestHandoverOfATopicIsInterrupted(t *testing.T) {
	for _, stops := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			w := newMailMesh(t, 3)
			defer w.close()
			old, next := w.nodes[1], w.nodes[2]
			if _, err := old.get().Mail.SetTopic(t.Context(), "news", wire.BoxSettings{Allow: &[]string{"*"}, AllowRead: &[]string{"*"}}); err != nil {
				t.Fatal(err)
			}
			if _, err := old.get().Mail.SetSubscription(t.Context(), "news", "all", wire.SubscriptionSettings{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			const mails = 20
			for i := range mails {
				w.nodes[0].sendMail(wire.Mail{To: "topic:news", Stream: strings.NewReader(fmt.Sprint(i) + strings.Repeat(" large", 100_000))})
			}
			time.Sleep(10 * time.Second)
			done := make(chan error, 1)
			from := old.get()
			go func() {
				_, err := from.Mail.Handoff(t.Context(), "topic:news", next.name)
				done <- err
			}()
			time.Sleep(400 * time.Millisecond)
			w.nodes[stops].halt()
			if err := <-done; err == nil {
				t.Error("it was handed over")
			}
			w.nodes[stops].start()
			time.Sleep(time.Minute)
			if _, err := old.get().Mail.Handoff(t.Context(), "topic:news", next.name); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
			got := map[string]bool{}
			for len(got) < mails {
				given, err := w.nodes[0].get().Mail.Lease(t.Context(), "topic:news", "all", wire.LeaseMail{Max: 100, Wait: wire.Wait(time.Minute)})
				if err != nil || len(given) == 0 {
					t.Fatalf("after %d mails: %d, %v", len(got), len(given), err)
				}
				for _, d := range given {
					body, _, err := w.nodes[0].get().Mail.DeliveredBody(t.Context(), "topic:news", "all", d.Lease)
					if err != nil {
						t.Fatal(err)
					}
					var n string
					if _, err := fmt.Fscan(body, &n); err != nil || got[n] {
						t.Errorf("%q, %v", n, err)
					}
					got[n] = true
					_ = body.Close()
				}
			}
			if all, err := old.get().Mail.Page(t.Context(), "", "", 0); err != nil || len(all.Items) > 0 {
				t.Errorf("the old home has %+v, %v", all, err)
			}
		})
	}
}
