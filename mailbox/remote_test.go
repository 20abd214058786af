package mailbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/ledger"
	"github.com/balefire/balefire/wire"
)

// bundleFor returns a bundle of one mail of beta for a mailbox of alpha, the n-th of its
// chain.
func (f *fixture) bundleFor(name string, n uint64, size int) *proto.Message {
	f.t.Helper()
	now := time.Now()
	letter, err := proto.AppendLetter(nil, &proto.Letter{
		Class: proto.Normal, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Body: make([]byte, size),
	})
	f.must(err)
	m := &proto.Bundle{
		Number: n, Box: "agent:" + name + "@" + f.self.String(), Chain: proto.Normal, PrevNumber: n - 1,
		Runs: []*proto.Run{{Boot: 1, First: n, Count: 1}}, Letters: letter,
	}
	if n > 1 {
		m.PrevBoot = 1
	}
	payload, err := proto.Encode(nil, m)
	f.must(err)
	return &proto.Message{Type: proto.TypeBundle, Payload: payload}
}

func (f *fixture) allowAll(s *wire.MailboxSettings) { s.Allow = &[]string{"*"} }

// A bundle without an answer at the end of a link is answered on the next one, unless the
// peer has closed the stream on which it came.
func TestAnswersOutliveALink(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", f.allowAll)
		stream, closeStream := context.WithCancel(t.Context())
		f.must(f.Receive(stream, f.beta, f.bundleFor("ceo", 1, 10)))
		x := f.exchanges.with(f.beta)
		ended, end := context.WithCancel(t.Context())
		end()
		if err := f.messages.sendAnswers(ended, nil, x); !errors.Is(err, context.Canceled) || len(x.arrivals) != 1 {
			t.Fatalf("%d bundles wait for an answer: %v", len(x.arrivals), err)
		}
		closeStream()
		link, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		if err := f.messages.sendAnswers(link, nil, x); !errors.Is(err, context.DeadlineExceeded) || len(x.arrivals) != 0 {
			t.Errorf("%d bundles of a closed stream wait for an answer: %v", len(x.arrivals), err)
		}
		if n := len(f.mails("ceo", "", wire.MailQuery{})); n != 1 {
			t.Errorf("%d mails", n)
		}
	})
}

// A blockedDisk is a ledger that writes nothing while it is held.
type blockedDisk struct {
	*ledger.Ledger
	held atomic.Pointer[chan struct{}] // closed when it is let go; nil: it was never held
}

func (b *blockedDisk) Queue(es []ledger.Entry) *ledger.Pending {
	if held := b.held.Load(); held != nil {
		<-*held
	}
	return b.Ledger.Queue(es)
}

// A peer that sends faster than the disk writes waits, with a bounded memory, and what it
// has been answered is not kept.
func TestFastPeerWaitsForTheDisk(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.stop()
		disk := new(blockedDisk)
		f.disk = func(l *ledger.Ledger) mail.Ledger { disk.Ledger = l; return disk }
		f.start()
		f.mailbox("ceo", f.allowAll)
		held := make(chan struct{})
		disk.held.Store(&held)
		const size, all = 200_000, 60
		received := 0
		done := make(chan error, 1)
		go func() {
			for n := range uint64(all) {
				if err := f.Receive(t.Context(), f.beta, f.bundleFor("ceo", n+1, size)); err != nil {
					done <- fmt.Errorf("bundle %d: %w", n+1, err)
					return
				}
				received++
			}
			done <- nil
		}()
		synctest.Wait()
		if received*size < maxWriting/2 || received*size > maxWriting {
			t.Errorf("%d bytes were received while nothing was written", received*size)
		}
		close(held)
		f.must(<-done)
		x := f.exchanges.with(f.beta)
		if _, err := x.arrivals[len(x.arrivals)-1].bundled(t.Context()); err != nil {
			t.Fatal(err)
		}
		if box, err := f.Get(t.Context(), "ceo"); err != nil || box.Waiting != all {
			t.Errorf("%+v, %v", box, err)
		}
	})
}

// A box whose rules are not known yet takes nothing: the mail waits at its sender.
func TestBoxWithoutKnownRulesTakesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		synctest.Wait() // until what makes the rules known has run
		f.rules.all.Store(&map[string]notes{})
		f.must(f.Receive(t.Context(), f.beta, f.bundleFor("ceo", 1, 10)))
		answer, err := f.exchanges.with(f.beta).arrivals[0].bundled(t.Context())
		if err != nil || answer.GetCode() != proto.CodeNoHandler {
			t.Errorf("%v, %v", answer, err)
		}
		if n := len(f.mails("ceo", "", wire.MailQuery{})); n != 0 {
			t.Errorf("%d mails", n)
		}
	})
}

// Mail for a node without a box makes no ledger there: it waits at its sender.
func TestMailMakesNoLedger(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.must(f.Receive(t.Context(), f.beta, f.bundleFor("ceo", 1, 10)))
		answer, err := f.exchanges.with(f.beta).arrivals[0].bundled(t.Context())
		if err != nil || answer.Check() != nil || answer.GetNumber() != 1 || answer.GetCode() != proto.CodeNoHandler || answer.GetDetail() == "" {
			t.Errorf("%v, %v", answer, err)
		}
		if f.HasLedger() {
			t.Error("a bundle made a ledger")
		}
		f.mailbox("ceo", f.allowAll)
		f.must(f.Receive(t.Context(), f.beta, f.bundleFor("ceo", 1, 10)))
		synctest.Wait()
		if n := len(f.mails("ceo", "", wire.MailQuery{})); n != 1 {
			t.Errorf("%d mails", n)
		}
		bad := f.bundleFor("ceo", 2, 10)
		bad.Payload = bad.Payload[:len(bad.Payload)-1]
		if f.Receive(t.Context(), f.beta, bad) == nil {
			t.Error("a bundle that ends too early was taken")
		}
	})
}

// A bounce comes from any member, and it is no way to send other mail to a box that does not
// allow it.
func TestOnlySmallBouncesAreTakenFromEveryone(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		admit, err := f.admission.from(t.Context(), f.ledger.broker(), f.beta)
		f.must(err)
		of := proto.NewMailID(time.Now())
		for _, tt := range []struct {
			name   string
			letter proto.Letter
			want   proto.Code
		}{
			{"a bounce", proto.Letter{Type: []byte(mail.TypeBounce), BounceOf: of, Body: make([]byte, mail.MaxBounce)}, proto.CodeOK},
			{"a large one", proto.Letter{Type: []byte(mail.TypeBounce), BounceOf: of, Body: make([]byte, mail.MaxBounce+1)}, proto.CodeDenied},
			{"of nothing", proto.Letter{Type: []byte(mail.TypeBounce)}, proto.CodeDenied},
			{"of another type", proto.Letter{BounceOf: of}, proto.CodeDenied},
		} {
			if code, why := admit("agent:ceo@"+f.self.String(), &tt.letter); code != tt.want {
				t.Errorf("%s: %v, %s", tt.name, code, why)
			}
			want := proto.CodeNoHandler // also of a bounce behind a mail that waits
			if tt.want == proto.CodeOK {
				want = proto.CodeDenied
			}
			if code, why := admit("agent:none@"+f.self.String(), &tt.letter); code != want {
				t.Errorf("%s for a box that is not here: %v, %s", tt.name, code, why)
			}
		}
		if len(f.events) != 1 || f.events[0]["kind"] != wire.EventMailBounced || f.events[0]["mail"] != of.String() {
			t.Errorf("events %v", f.events)
		}
	})
}

// The largest body of a bounce is not too large for its receiver.
func TestLargestBounce(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("boss", nil)
		f.mail("agent:ceo", strings.Repeat("x", 2000), func(m *wire.Mail) {
			m.Sender, m.Key, m.Type, m.Labels = "boss", strings.Repeat("<", proto.MaxKey), strings.Repeat("<", proto.MaxLetterType), map[string]string{"a": strings.Repeat("<", proto.MaxLabelValue)}
		})
		d, _ := f.lease("ceo", "", 1, 0)
		f.settle("ceo", "", wire.SettleMail{Bounce: []wire.BouncedMail{{Lease: d[0].Lease, Reason: strings.Repeat("<", 256)}}})
		got, _ := f.lease("boss", "", 1, time.Second)
		const subject = 6 * proto.MaxSubject // that of a mail to a topic
		if len(got) != 1 || len(got[0].Mail.Body) < 5000 || len(got[0].Mail.Body)+subject > mail.MaxBounce {
			t.Fatalf("%d bounces, %d bytes", len(got), len(got[0].Mail.Body))
		}
	})
}

// bundled returns the answer to a bundle.
func (a arrival) bundled(ctx context.Context) (*proto.Bundled, error) {
	_, answer, err := a.wait(ctx)
	return answer.(*proto.Bundled), err
}
