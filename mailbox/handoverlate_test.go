package mailbox

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// lost lets alpha die in a handover of a mailbox to beta when the deed is signed, and beta
// serve it. It returns what was in it.
func (p *pair) lost(point string) (bodies []string) {
	p.t.Helper()
	p.named("desk", nil)
	for i := range 9 {
		bodies = append(bodies, fmt.Sprint(i))
		p.alpha.mail("agent:desk", bodies[i], nil)
	}
	dead := make(chan struct{}, 1)
	die := func() {
		go p.alpha.stop()
		signal(dead)
	}
	p.alpha.stop()
	p.alpha.names.handed = func(name string, _ proto.PeerID) {
		if point == "deed" {
			die()
		}
		p.handOff(name)
	}
	p.alpha.fail = func(at string) error {
		if at != point {
			return nil
		}
		die()
		return errDies
	}
	p.start(p.alpha)
	alpha, done := p.alpha.Boxes, make(chan struct{})
	go func() {
		defer close(done)
		_, _ = alpha.Handoff(p.t.Context(), "desk", "beta")
	}()
	<-dead
	<-done
	synctest.Wait()
	p.alpha.fail = nil
	time.Sleep(time.Minute)
	return bodies
}

// drain reads and acknowledges all of a mailbox.
func (f *fixture) drain(name string) (bodies []string) {
	f.t.Helper()
	given, bodies := f.lease(name, "", 100, time.Second)
	for _, d := range given {
		f.ack(name, "", d)
	}
	return bodies
}

// I21: an old home that died before it heard that the new one serves the box removes its own when it
// is back, whatever has become of the box since: what was read does not come again.
func TestOldHomeIsBackLate(t *testing.T) {
	onGamma := func(p *pair) { // as if gamma had a copy and the deed
		k := p.beta.ledger.broker()
		_, err := k.Stand(p.t.Context(), "agent:desk", box.Handover{ID: [16]byte{9}, Peer: p.alpha.gamma, Generation: 2})
		p.beta.must(err)
		p.beta.must(k.Leave(p.t.Context(), "agent:desk"))
		for _, f := range []*fixture{p.alpha, p.beta} {
			p.beta.must(f.names.HandOff(context.Background(), "agent:desk", p.alpha.gamma))
		}
	}
	removed := func(p *pair) {
		p.beta.must(p.beta.Remove(p.t.Context(), "desk"))
		_ = p.alpha.names.Remove(p.t.Context(), "agent:desk")
	}
	for name, then := range map[string]func(p *pair){
		"nothing":    func(*pair) {},
		"it goes on": onGamma,
		"it fails to go on": func(p *pair) {
			_, err := p.beta.Handoff(p.t.Context(), "desk", "gamma")
			p.beta.refused(err, wire.ErrRefused, "does not answer")
		},
		"it is removed": removed,
		"it is made again": func(p *pair) {
			removed(p)
			p.beta.mailbox("desk", func(s *wire.MailboxSettings) { s.Named = true })
			p.alpha.names.move("agent:desk", p.beta.self)
		},
	} {
		for _, point := range []string{"deed", PointLeave} {
			t.Run(name+" "+point, func(t *testing.T) {
				paired(t, func(t *testing.T, p *pair) {
					want := p.lost(point)
					if got := p.beta.drain("desk"); !slices.Equal(got, want) {
						t.Fatalf("%q, want %q", got, want)
					}
					p.alpha.names.handed = nil
					then(p)
					p.start(p.alpha)
					time.Sleep(5 * time.Minute)
					if p.alpha.ledger.broker().Has("agent:desk") {
						t.Errorf("the old home still has it: %+v", p.alpha.ledger.broker().HandoverOf("agent:desk"))
					}
					if all, err := p.alpha.Outgoing(t.Context()); err != nil || len(all) > 0 {
						t.Errorf("it sends on %+v, %v", all, err)
					}
					if k := p.beta.ledger.broker(); k.Has("agent:desk") {
						if got := p.beta.drain("desk"); len(got) > 0 {
							t.Errorf("%q comes again", got)
						}
					}
				})
			})
		}
	}
}

// A new home that doubts its clock cannot judge the times of the numbers that come with a box: it takes
// them when the doubt ends, and what came before stays.
func TestHandoffToANodeThatDoubtsItsClock(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", p.alpha.allowAll)
		m := new(proto.Bundle)
		p.alpha.must(proto.DecodeKnown(p.alpha.bundleFor("desk", 1, 1).GetPayload(), m))
		m.Box, m.Generation = "agent:desk", 1
		a, err := p.alpha.lanes.arrive(t.Context(), p.alpha.gamma, m)
		p.alpha.must(err)
		if answer, err := a.Wait(t.Context()); err != nil || answer.GetCode() != proto.CodeOK {
			t.Fatal(answer, err)
		}
		p.beta.stop()
		p.beta.bound = true
		p.start(p.beta)
		p.beta.off.Store(int64(2 * 365 * 24 * time.Hour))
		handed := make(chan error, 1)
		go func() {
			_, err := p.alpha.Handoff(t.Context(), "desk", "beta")
			handed <- err
		}()
		time.Sleep(2 * copyIdle)
		select {
		case err := <-handed:
			t.Fatalf("the handover has ended: %v", err)
		default:
		}
		p.beta.off.Store(0)
		p.alpha.must(<-handed)
		p.want(p.beta, "agent:desk", "\x00")
	})
}

// I21: a node that seizes the name of a box, of which it has a copy that its home gave up, and dies
// then, does not serve the copy: its mail was read where it went on.
func TestSeizureThatIsInterrupted(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		p.alpha.mail("agent:desk", "x", nil)
		p.onWay(nil, func(a *proto.BoxTaken) bool {
			p.cut.Store(a.GetState() == proto.CopyWhole)
			return p.cut.Load()
		})
		_, err := p.alpha.Handoff(t.Context(), "desk", "beta")
		p.alpha.refused(err, wire.ErrRefused, "does not answer")
		if got := p.alpha.drain("desk"); !slices.Equal(got, []string{"x"}) {
			t.Fatalf("%q", got)
		}
		p.alpha.stop()
		stopped := make(chan struct{})
		p.beta.homes.takeOver = func(_ context.Context, name, _ string) error {
			go func() {
				defer close(stopped)
				p.beta.stop()
			}()
			time.Sleep(time.Second)
			p.beta.names.mu.Lock()
			p.beta.names.given = map[string]uint64{name: 1}
			p.beta.names.homes[name] = p.beta.self
			p.beta.names.mu.Unlock()
			return nil
		}
		if _, err := p.beta.SetMailbox(t.Context(), "desk", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Seize: &wire.Seize{From: "alpha", AcceptLoss: true}}}); err == nil {
			t.Error("it did not die")
		}
		<-stopped
		p.start(p.beta)
		time.Sleep(time.Minute)
		if k := p.beta.ledger.broker(); k.Has("agent:desk") || k.HandoverOf("agent:desk") != (box.Handover{}) {
			t.Errorf("it serves what it had: %+v", k.HandoverOf("agent:desk"))
		}
		p.beta.mailbox("desk", func(s *wire.MailboxSettings) { s.Named = true })
		if got := p.beta.drain("desk"); len(got) > 0 {
			t.Errorf("%q comes again", got)
		}
		p.start(p.alpha)
	})
}

// A node has stopped when nothing of a box that comes is written any more.
func TestStopWhileABoxComes(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		writing, goOn := make(chan struct{}), make(chan struct{})
		p.beta.stop()
		p.beta.fail = func(at string) error {
			if at == PointCopy {
				close(writing)
				<-goOn
			}
			return nil
		}
		p.start(p.beta)
		ctx, cancel := context.WithCancel(t.Context())
		handed, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(handed)
			_, _ = p.alpha.Handoff(ctx, "desk", "beta")
		}()
		<-writing
		go func() {
			defer close(stopped)
			p.beta.stop()
		}()
		time.Sleep(time.Minute)
		select {
		case <-stopped:
			t.Error("the node has stopped while a part is written")
		default:
		}
		close(goOn)
		<-stopped
		cancel()
		<-handed
	})
}
