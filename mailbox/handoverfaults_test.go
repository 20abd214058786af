package mailbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A node that does not say whether it served a box holds up no other box, and the old home keeps what
// it has until it says so, or is revoked and the name has another home.
func TestNextHomeThatIsSilent(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		p.alpha.mail("agent:desk", "x", nil)
		p.alpha.names.handed = func(name string, _ proto.PeerID) {
			p.cut.Store(true)
			p.handOff(name)
		}
		if moved, err := p.alpha.Handoff(t.Context(), "desk", "beta"); err != nil || moved.Served {
			t.Fatalf("%+v, %v", moved, err)
		}
		time.Sleep(time.Hour)
		p.alpha.names.move("agent:zoe", p.beta.self)
		p.alpha.mail("agent:zoe", "y", nil)
		p.alpha.names.move("agent:desk", p.alpha.gamma)
		p.alpha.names.move("agent:zoe", p.alpha.gamma)
		synctest.Wait()
		if n := p.alpha.waitingFor("gamma"); n != 1 {
			t.Errorf("%d mails wait for the other home", n)
		}
		time.Sleep(time.Hour)
		if h := p.alpha.ledger.broker().HandoverOf("agent:desk"); h.Stage != box.Still {
			t.Fatalf("%+v", h)
		}
		revoked, err := p.alpha.root.Revoke(identity.Revocation{Peer: p.beta.self}, time.Now())
		p.alpha.must(err)
		p.alpha.must(p.alpha.book.Revoke(t.Context(), revoked))
		time.Sleep(time.Minute)
		if n := p.alpha.waitingFor("gamma"); n != 2 {
			t.Errorf("%d mails wait for the other home", n)
		}
	})
}

// The copy of a box whose home went on goes, although its new home did not hear of that: it asks.
func TestCopyOfABoxThatWentOn(t *testing.T) {
	for _, restart := range []bool{false, true} {
		paired(t, func(t *testing.T, p *pair) {
			p.named("desk", nil)
			p.alpha.mail("agent:desk", "x", nil)
			p.onWay(nil, func(a *proto.BoxTaken) bool {
				p.cut.Store(a.GetState() == proto.CopyWhole)
				return p.cut.Load()
			})
			_, err := p.alpha.Handoff(t.Context(), "desk", "beta")
			p.alpha.refused(err, wire.ErrRefused, "does not answer")
			if restart {
				p.alpha.stop()
				p.start(p.alpha)
			}
			if h := p.beta.ledger.broker().HandoverOf("agent:desk"); h.Stage != box.Whole {
				t.Fatalf("the copy is %+v", h)
			}
			p.onWay(nil, nil)
			p.cut.Store(false)
			time.Sleep(time.Minute)
			p.want(p.alpha, "agent:desk", "x")
		})
	}
}

// A large body may take long, and its transfer may break some times.
func TestHandoffOfASlowBody(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		p.alpha.mail("agent:desk", "", func(m *wire.Mail) { m.Stream = strings.NewReader(strings.Repeat("large ", 100_000)) })
		tries := 0
		p.alpha.sender.to = func(offer *proto.Offer, name string) error {
			switch tries++; {
			case tries < 4:
				return errors.New("the path has changed")
			case tries == 4:
				time.Sleep(3 * copyIdle)
				return errors.New("the path has changed")
			}
			time.Sleep(3 * copyIdle)
			return p.sendBody(offer, name)
		}
		if _, err := p.alpha.Handoff(t.Context(), "desk", "beta"); err != nil || tries != 5 {
			t.Fatalf("after %d tries: %v", tries, err)
		}
		if b := p.beta.box("agent:desk"); b.Waiting != 1 {
			t.Errorf("%+v", b)
		}
	})
}

// A part may be on its way for long, and is not sent again meanwhile. One that has arrived and is not
// answered ends the command.
func TestHandoffOverASlowPath(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		p.alpha.mail("agent:desk", "x", nil)
		p.mu.Lock()
		p.slow = 3 * partAnswer
		p.mu.Unlock()
		p.onWay(nil, func(*proto.BoxTaken) bool { return true })
		began := time.Now()
		_, err := p.alpha.Handoff(t.Context(), "desk", "beta")
		p.alpha.refused(err, wire.ErrRefused, "does not answer")
		if d := time.Since(began); d > 5*partAnswer {
			t.Errorf("it ended after %v", d)
		}
		time.Sleep(10 * time.Minute)
		newest, again := uint64(0), false
		p.onWay(func(m *proto.BoxPart) {
			again = again || m.GetNumber() > 0 && m.GetNumber() <= newest
			newest = max(newest, m.GetNumber())
		}, nil)
		if _, err := p.alpha.Handoff(t.Context(), "desk", "beta"); err != nil {
			t.Fatal(err)
		}
		p.onWay(nil, nil)
		p.mu.Lock()
		p.slow = 0 // the question whether the box is served is given less time
		p.mu.Unlock()
		time.Sleep(5 * time.Minute)
		if p.want(p.beta, "agent:desk", "x"); again {
			t.Error("a part was sent twice")
		}
	})
}

// A node that is busy with other boxes takes one later.
func TestNextHomeThatIsBusy(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		p.alpha.mail("agent:desk", "x", nil)
		began := time.Now()
		p.onWay(nil, func(a *proto.BoxTaken) bool {
			if time.Since(began) < 2*partAnswer {
				a.Code = proto.CodeBusy
			}
			return false
		})
		if _, err := p.alpha.Handoff(t.Context(), "desk", "beta"); err != nil {
			t.Fatal(err)
		}
		p.want(p.beta, "agent:desk", "x")
	})
}

// A handover that begins while another one is checked is refused, also if the new home does not
// serve the box yet.
func TestHandoffDuringAHandoff(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		p.alpha.mail("agent:desk", "x", nil)
		p.onWay(nil, func(a *proto.BoxTaken) bool { return a.GetState() == proto.CopyServed })
		p.alpha.names.asked = func() {
			_, err := p.alpha.Handoff(t.Context(), "desk", "beta")
			p.alpha.refused(err, wire.ErrRefused, "is being handed over")
		}
		if _, err := p.alpha.Handoff(t.Context(), "desk", "beta"); err != nil {
			t.Error(err)
		}
		p.onWay(nil, nil)
		time.Sleep(time.Minute)
		p.want(p.beta, "agent:desk", "x")
	})
}

// An old home that seizes the name from a new one that is lost serves what it has.
func TestOldHomeSeizesTheName(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		p.alpha.mail("agent:desk", "x", nil)
		p.alpha.names.handed = func(string, proto.PeerID) { p.cut.Store(true) }
		if moved, err := p.alpha.Handoff(t.Context(), "desk", "beta"); err != nil || moved.Served {
			t.Fatalf("%+v, %v", moved, err)
		}
		seize := wire.MailboxSettings{BoxSettings: wire.BoxSettings{Seize: &wire.Seize{From: "beta", AcceptLoss: true}}}
		if _, err := p.alpha.SetMailbox(t.Context(), "desk", seize); err != nil {
			t.Fatal(err)
		}
		p.alpha.mail("agent:desk", "y", nil)
		if got := p.alpha.drain("desk"); !slices.Equal(got, []string{"x", "y"}) {
			t.Errorf("%q", got)
		}
	})
}

// A seizure that is refused leaves the copy of the box, which the deed that comes then serves.
func TestSeizureThatIsRefused(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		for _, body := range []string{"dead", "x"} {
			p.alpha.mail("agent:desk", body, nil)
			if body == "dead" {
				p.alpha.kill("desk", "", body)
			}
		}
		p.alpha.names.handed = func(name string, _ proto.PeerID) {
			_, err := p.beta.SetMailbox(t.Context(), "desk", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Seize: &wire.Seize{From: "gamma", AcceptLoss: true}}})
			p.beta.refused(err, wire.ErrRefused, "")
			p.handOff(name)
		}
		if _, err := p.alpha.Handoff(t.Context(), "desk", "beta"); err != nil {
			t.Fatal(err)
		}
		if dead := p.beta.mails("desk", "", wire.MailQuery{State: "DEAD"}); !slices.Equal(dead, []string{"dead"}) {
			t.Errorf("dead letters %q", dead)
		}
		p.want(p.beta, "agent:desk", "x")
	})
}

// I21: whose mail ends while the box for its bounce is on its way hears of it, and of a DONE: there,
// or here if it stays.
func TestEndsDuringAHandoff(t *testing.T) {
	for _, stays := range []bool{false, true} {
		paired(t, func(t *testing.T, p *pair) {
			p.named("desk", nil)
			p.alpha.mailbox("work", nil)
			p.alpha.mail("agent:work", "done", func(m *wire.Mail) { m.BounceTo, m.Notify = "agent:desk", "done" })
			given := p.alpha.one("work", "", "done")
			p.alpha.mail("agent:work", "late", func(m *wire.Mail) { m.BounceTo, m.TTL = "agent:desk", wire.Duration(5*time.Second) })
			p.cut.Store(true)
			moved := make(chan error, 1)
			alpha := p.alpha.Boxes
			go func() {
				_, err := alpha.Handoff(t.Context(), "desk", "beta")
				moved <- err
			}()
			time.Sleep(4 * time.Second)
			p.alpha.ack("work", "", given)
			time.Sleep(4 * time.Second)
			p.cut.Store(stays)
			if err := <-moved; (err != nil) != stays {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if stays {
				if got := p.alpha.drain("desk"); len(got) != 2 {
					t.Errorf("%q", got)
				}
			} else if n := p.alpha.waitingFor("beta"); n != 2 {
				t.Errorf("%d tell of ends", n)
			}
			for _, e := range p.alpha.events {
				if e["kind"] == wire.EventMailBounced || e["kind"] == wire.EventMailUntold {
					t.Errorf("%v", e)
				}
			}
		})
	}
}

// A box that comes is not missing: what is sent to it before it is served waits.
func TestMailForABoxThatComes(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		var wait atomic.Bool
		wait.Store(true)
		p.beta.stop()
		p.beta.fail = func(point string) error {
			if point == PointServe && wait.Load() {
				return errDies
			}
			return nil
		}
		p.start(p.beta)
		if moved, err := p.alpha.Handoff(t.Context(), "desk", "beta"); err != nil || moved.Served {
			t.Fatalf("%+v, %v", moved, err)
		}
		_, err := p.beta.trySend("agent:desk", "x", nil)
		p.beta.refused(err, wire.ErrRefused, "on its way here")
		admit, err := p.beta.admission.from(t.Context(), p.beta.ledger.broker(), p.alpha.self)
		p.beta.must(err)
		bounce := &proto.Letter{Type: []byte(wire.TypeBounce), BounceOf: proto.NewMailID(time.Now())}
		if code, _ := admit("agent:desk", bounce); code != proto.CodeBusy {
			t.Errorf("a bounce: %v", code)
		}
		wait.Store(false)
		time.Sleep(time.Minute)
		p.beta.mail("agent:desk", "x", nil)
		p.want(p.beta, "agent:desk", "x")
	})
}

// I22: mail of a program on the new home that it sent while the box was elsewhere comes before what
// it sends when the box is here.
func TestMailOfTheNewHomeInOrder(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", func(s *wire.MailboxSettings) { s.KeyBatch, s.Lanes = ptr(16), ptr(wire.LanesOrigin) })
		keyed := func(m *wire.Mail) { m.Key = "k" }
		var want []string
		for i := range 8 {
			want = append(want, fmt.Sprint(i))
			p.beta.mail("agent:desk", want[i], keyed)
		}
		late := p.beta.names
		p.alpha.names.handed = func(name string, _ proto.PeerID) {
			late.mu.Lock()
			late.given = map[string]uint64{name: 1}
			late.homes[name] = p.beta.self // it has the box at once, and follows with its other names later
			late.mu.Unlock()
			k := p.beta.ledger.broker()
			p.beta.must(k.Serve(t.Context(), name, 2))
			for i := range 3 {
				want = append(want, fmt.Sprint("last ", i))
				sent := p.beta.mail("agent:desk", want[len(want)-1], keyed)
				if sent.State != "PENDING" {
					t.Errorf("%+v", sent)
				}
			}
		}
		if _, err := p.alpha.Handoff(t.Context(), "desk", "beta"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		want = append(want, "here")
		if sent := p.beta.mail("agent:desk", "here", keyed); sent.State != "WAITING" {
			t.Errorf("%+v", sent)
		}
		if got := p.beta.drain("desk"); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// A dead letter of a box that is on its way to another home is not sent again here, where it cannot
// be marked, and there.
func TestRedriveDuringAHandoff(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		p.alpha.mailbox("fixer", nil)
		p.alpha.dead("desk", 1)
		var once sync.Once
		p.onWay(func(m *proto.BoxPart) {
			if m.GetNumber() == 2 {
				once.Do(func() {
					_, err := p.alpha.Redrive(t.Context(), "desk", "", wire.RedriveMail{To: "agent:fixer"})
					p.alpha.refused(err, wire.ErrRefused, "on its way to another home")
				})
			}
		}, nil)
		_, err := p.alpha.Handoff(t.Context(), "desk", "beta")
		p.alpha.must(err)
		dead, _, err := p.beta.Mails(t.Context(), "agent:desk", "", wire.MailQuery{State: "DEAD"})
		p.alpha.must(err)
		if n := p.alpha.box("agent:fixer").Waiting; len(dead) != 1 || n > 0 && !dead[0].Redriven {
			t.Errorf("it was sent again %d times, and at the new home it is %+v: there it is sent once more", n, dead)
		}
	})
}

// A box whose new home does not serve it yet cannot be removed there: its old home would keep it, and
// wait for good.
func TestRemoveBeforeItIsServed(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		var broken atomic.Bool
		p.beta.stop()
		p.beta.fail = func(point string) error {
			if point == PointServe && broken.Load() {
				return errDies
			}
			return nil
		}
		p.start(p.beta)
		p.named("desk", nil)
		p.alpha.mail("agent:desk", "x", nil)
		broken.Store(true)
		_, err := p.alpha.Handoff(t.Context(), "desk", "beta")
		p.alpha.must(err)
		p.beta.refused(p.beta.Remove(t.Context(), "desk"), wire.ErrRefused, "on its way here from")
		broken.Store(false)
		time.Sleep(time.Minute)
		p.beta.must(p.beta.Remove(t.Context(), "desk"))
		p.alpha.must(p.alpha.names.Remove(t.Context(), "agent:desk")) // it hears of that
		time.Sleep(time.Minute)
		if k := p.alpha.ledger.broker(); k.Has("agent:desk") {
			t.Errorf("the old home has it: %+v", k.HandoverOf("agent:desk"))
		}
		_, err = p.beta.SetMailbox(t.Context(), "desk", wire.MailboxSettings{Named: true})
		p.beta.must(err)
	})
}

// A box whose handover could not be signed goes on at once.
func TestHandoffThatIsNotSigned(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		p.alpha.mail("agent:desk", "x", nil)
		p.onWay(func(m *proto.BoxPart) {
			if m.GetLast() {
				p.alpha.names.fail = wire.ErrFull
			}
		}, nil)
		_, err := p.alpha.Handoff(t.Context(), "desk", "beta")
		p.alpha.refused(err, wire.ErrFull, "hand over agent:desk")
		p.alpha.names.fail = nil
		time.Sleep(time.Second)
		p.alpha.mail("agent:desk", "y", nil)
		p.want(p.alpha, "agent:desk", "x", "y")
	})
}
