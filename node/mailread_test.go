package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// addReadable makes a mailbox that these members may read, and all may write to.
func (s *simNode) addReadable(name string, named bool, readers ...string) {
	s.mesh.t.Helper()
	m := wire.MailboxSettings{Named: named, BoxSettings: wire.BoxSettings{Allow: &[]string{"*"}, AllowRead: &readers}}
	if _, err := s.node.Mail.SetMailbox(s.mesh.t.Context(), name, m); err != nil {
		s.mesh.t.Fatal(err)
	}
}

// leaseMail leases at most n mails and returns them with their bodies.
func (s *simNode) leaseMail(box, sub string, n int, wait time.Duration) (given []wire.DeliveredMail, bodies []string) {
	s.mesh.t.Helper()
	given, err := s.node.Mail.Lease(s.mesh.t.Context(), box, sub, wire.LeaseMail{Max: n, Wait: wire.Wait(wait), Reader: "w1"})
	if err != nil {
		s.mesh.t.Fatal(err)
	}
	for _, d := range given {
		bodies = append(bodies, string(d.Mail.Body))
	}
	return given, bodies
}

// settleMail settles one delivery and returns the code of the answer.
func (s *simNode) settleMail(box, sub string, m wire.SettleMail) wire.SettledItem {
	s.mesh.t.Helper()
	items, err := s.node.Mail.Settle(s.mesh.t.Context(), box, sub, m)
	if err != nil {
		s.mesh.t.Fatal(err)
	}
	return items[0]
}

// nextMails waits for mail of a session and returns at most n.
func nextMails(ctx context.Context, r *mailbox.Reader, n int) ([]wire.DeliveredMail, error) {
	given, _, err := r.NextLetters(ctx, n, nil, nil)
	if err != nil {
		return nil, err
	}
	return r.Delivered(given)
}

// nextMail returns the bodies of the next mails of a session, at least n.
func nextMail(t *testing.T, r *mailbox.Reader, n int, within time.Duration) (given []wire.DeliveredMail, bodies []string) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), within)
	defer stop()
	for len(given) < n {
		more, err := nextMails(ctx, r, n)
		if err != nil {
			t.Fatalf("after %d mails: %v", len(given), err)
		}
		given = append(given, more...)
	}
	for _, d := range given {
		bodies = append(bodies, string(d.Mail.Body))
	}
	return given, bodies
}

// I23: a program leases mail of a box of another node that allows it, and settles it by its
// handles, as one of that node does.
func TestMailIsReadOnAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 3)
		defer w.close()
		alpha, beta, gamma := w.nodes[0], w.nodes[1], w.nodes[2]
		beta.addReadable("ceo", false, "peer:n0")
		if given, _ := alpha.leaseMail("ceo@n1", "", 9, 0); len(given) != 0 {
			t.Errorf("%+v", given)
		}
		gamma.sendMail(wire.Mail{To: "agent:ceo@n1", Body: []byte("1")}, wire.Mail{To: "agent:ceo@n1", Body: []byte("2")}, wire.Mail{To: "agent:ceo@n1", Body: []byte("3"), Class: "critical"})
		time.Sleep(time.Second)
		given, bodies := alpha.leaseMail("ceo@n1", "", 9, 0)
		if !slices.Equal(bodies, []string{"3", "1", "2"}) {
			t.Fatalf("%q", bodies)
		}
		if d := given[0]; d.Attempt != 1 || d.Redelivered || d.Mail.From != "n2" || d.Mail.Box != "agent:ceo@n1" || time.Until(d.Until) > 5*time.Second || time.Until(d.Until) < 4*time.Second {
			t.Errorf("%+v", d)
		}
		box, err := beta.node.Mail.Get(t.Context(), "ceo")
		if err != nil || !slices.Equal(box.Subscriptions[0].Readers, []string{"w1@n0"}) || box.Subscriptions[0].Leased != 3 {
			t.Errorf("%+v, %v", box, err)
		}
		if s := beta.node.Views.Status(t.Context()); s.Mail == nil || s.Mail.RemoteReaders != 0 {
			t.Errorf("a lease that was answered is a session: %+v", s.Mail)
		}
		if r := alpha.settleMail("ceo@n1", "", wire.SettleMail{Extend: []wire.ExtendMail{{Lease: given[0].Lease, For: wire.Duration(time.Hour)}}}); r.Code != wire.SettledOK || r.Until == nil || time.Until(*r.Until) < 59*time.Minute {
			t.Errorf("extended: %+v", r)
		}
		if r := alpha.settleMail("agent:ceo@n1", "", wire.SettleMail{Ack: []string{given[1].Lease}}); r.Code != wire.SettledOK {
			t.Errorf("acknowledged: %+v", r)
		}
		if r := alpha.settleMail("ceo@n1", "", wire.SettleMail{Ack: []string{given[1].Lease}}); r.Code != wire.SettledOK {
			t.Errorf("acknowledged again: %+v", r)
		}
		if r := alpha.settleMail("ceo@n1", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: given[2].Lease, Reason: "no such order", Final: true}}}); r.Code != wire.SettledOK {
			t.Errorf("refused for good: %+v", r)
		}
		if r := alpha.settleMail("ceo@n1", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: given[2].Lease}}}); r.Code != wire.SettledStale {
			t.Errorf("given back after its end: %+v", r)
		}
		if r := alpha.settleMail("ceo@n1", "", wire.SettleMail{Ack: []string{"9.1.1"}}); r.Code != wire.SettledUnknown {
			t.Errorf("a handle of no delivery: %+v", r)
		}
		box, _ = beta.node.Mail.Get(t.Context(), "ceo")
		if box.Ended.Done != 1 || box.Ended.Dead != 1 || box.Waiting != 1 {
			t.Errorf("%+v", box)
		}
		for _, tt := range []struct {
			node      *simNode
			box, says string
			err       error
		}{
			{gamma, "ceo@n1", "n1 does not allow this node to read agent:ceo@n1: there, balefire-node mailbox set ceo --allow-read peer:n2 does", wire.ErrDenied},
			{alpha, "desk@n1", "there is no agent:desk@n1 on n1", wire.ErrNotFound},
		} {
			_, err := tt.node.node.Mail.Lease(t.Context(), tt.box, "", wire.LeaseMail{Wait: wire.Wait(time.Minute)})
			if !errors.Is(err, tt.err) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("lease %s: %v", tt.box, err)
			}
			_, err = tt.node.node.Mail.Settle(t.Context(), tt.box, "", wire.SettleMail{Ack: []string{"1.1.1"}})
			if !errors.Is(err, tt.err) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("settle %s: %v", tt.box, err)
			}
		}
		beta.halt()
		_, err = alpha.node.Mail.Lease(t.Context(), "ceo@n1", "", wire.LeaseMail{})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "n1 cannot be reached") {
			t.Errorf("lease from a node that is off: %v", err)
		}
		_, err = alpha.node.Mail.Settle(t.Context(), "ceo@n1", "", wire.SettleMail{Ack: []string{given[0].Lease}})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "n1 cannot be reached") {
			t.Errorf("settle at a node that is off: %v", err)
		}
	})
}

// A session is given no more than it has credit for, at most 1 MiB ahead of its program, and
// what it has when it ends is given back: for nothing, or as an abandon.
func TestSessionOnAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.addReadable("ceo", false, "*")
		var mails []wire.Mail
		for i := range 20 {
			mails = append(mails, wire.Mail{To: "agent:ceo@n1", Body: append([]byte(fmt.Sprintf("%2d", i)), make([]byte, 200_000)...)})
		}
		alpha.sendMail(mails...)
		r, err := alpha.node.Mail.Read(t.Context(), "ceo@n1", "", wire.LeaseMail{Max: 10, Reader: "w1"})
		if err != nil {
			t.Fatal(err)
		}
		first, _ := nextMail(t, r, 10, time.Minute)
		short, stop := context.WithTimeout(t.Context(), 3*time.Second)
		defer stop()
		if more, err := nextMails(short, r, 1); err == nil {
			t.Errorf("beyond its credit it has %+v", more)
		}
		box, _ := beta.node.Mail.Get(t.Context(), "ceo")
		if s := beta.node.Views.Status(t.Context()); s.Mail == nil || s.Mail.RemoteReaders != 1 || box.Subscriptions[0].Leased != 10 {
			t.Errorf("%+v, %+v", s.Mail, box)
		}
		var done wire.SettleMail
		for _, d := range first[:5] {
			done.Ack = append(done.Ack, d.Lease)
		}
		alpha.settleMail("ceo@n1", "", done)
		second, _ := nextMail(t, r, 5, time.Minute)
		if err := r.AddCredit(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		third, bodies := nextMail(t, r, 2, time.Minute)
		if third[0].Attempt != 1 || bodies[1][:2] != "16" || len(second) != 5 {
			t.Errorf("%.2q", bodies)
		}
		if err := r.Close(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		all, _, err := beta.node.Mail.Mails(t.Context(), "ceo", "", wire.MailQuery{})
		abandons := 0
		for _, m := range all {
			abandons += m.Abandons
		}
		if box, _ = beta.node.Mail.Get(t.Context(), "ceo"); err != nil || len(all) != 15 || abandons != 12 || box.Subscriptions[0].Leased+len(box.Subscriptions[0].Readers) != 0 {
			t.Errorf("%d mails with %d abandons, %v: %+v", len(all), abandons, err, box)
		}
	})
}

// A session outlives a lost stream: deliveries that may be lost with it come again, and nothing
// is spent. One that is away for longer than 15 s has broken off.
func TestSessionAfterACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.addReadable("ceo", false, "*")
		var lost atomic.Int32
		alpha.receiveMail(func(_ context.Context, m *proto.Message, receive func() error) error {
			if m.GetType() == proto.TypeDeliver && lost.Add(1) == 2 {
				return errors.New("failed by the test") // it ends the stream
			}
			return receive()
		})
		r, err := alpha.node.Mail.Read(t.Context(), "ceo@n1", "", wire.LeaseMail{Max: 9})
		if err != nil {
			t.Fatal(err)
		}
		var given []wire.DeliveredMail
		for i := range 4 {
			beta.sendMail(wire.Mail{To: "agent:ceo", Body: fmt.Append(nil, i), Class: "low"})
			d, bodies := nextMail(t, r, 1, time.Minute)
			if bodies[0] != fmt.Sprint(i) || d[0].Attempt != 1 || d[0].Redelivered != (i == 1) {
				t.Errorf("mail %d: %+v", i, d[0])
			}
			given = append(given, d...)
		}
		if lost.Load() < 5 {
			t.Errorf("%d messages", lost.Load())
		}
		w.Partition([]int{0}, []int{1})
		time.Sleep(5 * time.Minute)
		back, _ := beta.leaseMail("ceo", "", 1, 0)
		if len(back) != 1 || back[0].Attempt != 1 || !back[0].Redelivered {
			t.Errorf("while the reader is away: %+v", back)
		}
		beta.settleMail("ceo", "", wire.SettleMail{Ack: []string{back[0].Lease}})
		w.Partition()
		time.Sleep(5 * time.Minute)
		again, _ := nextMail(t, r, 1, time.Minute)
		if len(again) != 1 || !again[0].Redelivered || again[0].Mail.ID == back[0].Mail.ID {
			t.Errorf("when it is back: %+v", again)
		}
		if r := alpha.settleMail("ceo@n1", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: given[0].Lease}}}); r.Code != wire.SettledStale {
			t.Errorf("the mail that somebody else has acknowledged: %+v", r)
		}
	})
}

// I23: whatever fails, each mail is acknowledged once, and none is lost: the reader's node and
// the home lose power, streams and paths break.
func TestReaderOnAnotherNodeThroughCrashes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.addReadable("ceo", false, "*")
		const mails = 60
		for i := range mails {
			beta.sendMail(wire.Mail{To: "agent:ceo", Body: fmt.Append(nil, i), Key: []string{"", "k"}[i%2]})
		}
		acked := map[string]int{}
		for round := 0; len(acked) < mails && round < 200; round++ {
			ctx, stop := context.WithTimeout(t.Context(), time.Minute)
			given, err := alpha.node.Mail.Lease(ctx, "ceo@n1", "", wire.LeaseMail{Max: 7, Wait: wire.Wait(20 * time.Second)})
			switch round % 8 {
			case 2:
				beta.crash()
				beta.start()
			case 4:
				alpha.crash()
				alpha.start()
			case 6:
				w.Partition([]int{0}, []int{1})
				time.Sleep(time.Minute)
				w.Partition()
			}
			for _, d := range given {
				items, err := alpha.node.Mail.Settle(ctx, "ceo@n1", "", wire.SettleMail{Ack: []string{d.Lease}})
				if err == nil && items[0].Code == wire.SettledOK {
					acked[d.Mail.ID]++
				}
			}
			if err != nil {
				time.Sleep(10 * time.Second)
			}
			stop()
		}
		time.Sleep(time.Minute)
		box, err := beta.node.Mail.Get(t.Context(), "ceo")
		if err != nil || box.Waiting != 0 || box.Ended.Done != mails {
			t.Errorf("%d acknowledged: %+v, %v", len(acked), box, err)
		}
		for id, n := range acked {
			if n != 1 {
				t.Errorf("%s was acknowledged %d times", id, n)
			}
		}
	})
}

// A box and a subscription of the mesh are read by their names from every node. The end of a box
// is the end of its sessions.
func TestNamesOfTheMeshAreReadFromEveryNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 3)
		defer w.close()
		alpha, beta, gamma := w.nodes[0], w.nodes[1], w.nodes[2]
		beta.addReadable("desk", true, "*")
		everyone := []string{"*"}
		if _, err := beta.node.Mail.SetTopic(t.Context(), "orders", wire.BoxSettings{Allow: &everyone, AllowRead: &everyone}); err != nil {
			t.Fatal(err)
		}
		if _, err := beta.node.Mail.SetSubscription(t.Context(), "orders", "billing", wire.SubscriptionSettings{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // the names are told
		alpha.sendMail(wire.Mail{To: "topic:orders", Subject: "eu.created", Body: []byte("order")}, wire.Mail{To: "agent:desk", Body: []byte("1")})
		given, bodies := alpha.leaseMail("topic:orders", "billing", 9, time.Minute)
		if !slices.Equal(bodies, []string{"order"}) {
			t.Fatalf("%q", bodies)
		}
		if r := alpha.settleMail("topic:orders", "billing", wire.SettleMail{Ack: []string{given[0].Lease}}); r.Code != wire.SettledOK {
			t.Errorf("%+v", r)
		}
		r, err := alpha.node.Mail.Read(t.Context(), "agent:desk", "", wire.LeaseMail{Max: 9})
		if err != nil {
			t.Fatal(err)
		}
		given, bodies = nextMail(t, r, 1, time.Minute)
		if !slices.Equal(bodies, []string{"1"}) {
			t.Fatalf("%q", bodies)
		}
		if err := beta.node.Mail.Remove(t.Context(), "agent:desk"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if _, err := nextMails(ctx, r, 1); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("a session at a box that was removed: %v", err)
		}
		beta.addReadable("desk", true, "*")
		time.Sleep(time.Minute)
		gamma.sendMail(wire.Mail{To: "agent:desk", Body: []byte("2")})
		if _, bodies := alpha.leaseMail("agent:desk", "", 9, time.Minute); !slices.Equal(bodies, []string{"2"}) {
			t.Errorf("in the new box: %q", bodies)
		}
		if r := alpha.settleMail("agent:desk", "", wire.SettleMail{Ack: []string{given[0].Lease}}); r.Code == wire.SettledOK {
			t.Errorf("a handle of the old box: %+v", r)
		}
	})
}
