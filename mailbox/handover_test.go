package mailbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A pair is the nodes alpha and beta, with a path between them.
type pair struct {
	t           *testing.T
	alpha, beta *fixture
	mu          sync.Mutex // held while a node is started, and guards spoil, swallow and slow
	cut         atomic.Bool
	spoil       func(m *proto.BoxPart) // changes those that come to beta
	swallow     func(a *proto.BoxTaken) bool
	slow        time.Duration // how long a part is on its way
}

// A fakeStream is a stream that does not close.
type fakeStream struct{ received atomic.Uint64 }

func (s *fakeStream) Progress() (sent, received uint64) { return 1, s.received.Load() }
func (s *fakeStream) Done() <-chan struct{}             { return nil }

// paired calls f with a pair, in a bubble of synctest.
func paired(t *testing.T, f func(*testing.T, *pair)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &pair{t: t, alpha: newFixture(t), beta: newFixture(t)}
		p.beta.stop()
		p.beta.self = p.alpha.beta
		p.beta.names.self = p.beta.self
		p.beta.start()
		defer func() { p.alpha.stop(); p.beta.stop() }()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		for _, from := range []*fixture{p.alpha, p.beta} {
			from.sender.to = p.sendBody
			go p.carry(ctx, from)
		}
		f(t, p)
	})
}

// start starts a node, while nothing is carried.
func (p *pair) start(f *fixture) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.start()
}

// boxes returns those of a node now.
func (p *pair) boxes(f *fixture) *Boxes {
	p.mu.Lock()
	defer p.mu.Unlock()
	return f.Boxes
}

// onWay sets what happens to parts and answers on their way.
func (p *pair) onWay(spoil func(m *proto.BoxPart), swallow func(a *proto.BoxTaken) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spoil, p.swallow = spoil, swallow
}

// other returns the other node.
func (p *pair) other(f *fixture) *fixture {
	if f == p.alpha {
		return p.beta
	}
	return p.alpha
}

// carry carries the parts of a node to the other one, and their answers back.
func (p *pair) carry(ctx context.Context, from *fixture) {
	to := p.other(from)
	for {
		boxes := p.boxes(from)
		select {
		case <-ctx.Done():
			return
		case <-time.After(1009 * time.Millisecond): // it may have been started again; not when a node asks the other one, every 10 s
		case a := <-boxes.exchanges.with(to.self).whole:
			if payload, err := proto.Encode(nil, a); err != nil || !p.cut.Load() {
				p.alpha.must(errors.Join(err, p.boxes(to).Receive(ctx, from.self, &proto.Message{Type: proto.TypeBoxTaken, Payload: payload})))
			}
		case m := <-boxes.exchanges.with(to.self).parts:
			if p.cut.Load() {
				m.at.Store(new(onStream))
				continue
			}
			p.mu.Lock()
			spoil, swallow, slow := p.spoil, p.swallow, p.slow
			p.mu.Unlock()
			way := new(fakeStream)
			m.at.Store(&onStream{way, 1})
			select {
			case <-ctx.Done():
				return
			case <-time.After(slow):
			}
			way.received.Store(1)
			part := m.BoxPart
			if spoil != nil {
				part = proto.Clone(part)
				spoil(part)
			}
			a := p.deliver(ctx, from, to, part)
			if a == nil || swallow != nil && swallow(a) {
				continue
			}
			payload, err := proto.Encode(nil, a)
			p.alpha.must(err)
			p.alpha.must(boxes.Receive(ctx, to.self, &proto.Message{Type: proto.TypeBoxTaken, Payload: payload}))
		}
	}
}

// deliver lets a node take a part, and returns its answer; nil: it has none.
func (p *pair) deliver(ctx context.Context, from, to *fixture, m *proto.BoxPart) *proto.BoxTaken {
	payload, err := proto.Encode(nil, m)
	p.alpha.must(err)
	boxes := p.boxes(to)
	if err := boxes.Receive(ctx, from.self, &proto.Message{Type: proto.TypeBoxPart, Payload: payload}); err != nil {
		return nil
	}
	x := boxes.exchanges.with(from.self)
	x.mu.Lock()
	last := x.arrivals[len(x.arrivals)-1]
	x.arrivals = nil
	x.mu.Unlock()
	waiting, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	_, answer, err := last.wait(waiting)
	if err != nil {
		return nil
	}
	return answer.(*proto.BoxTaken)
}

// sendBody brings a body from alpha to beta.
func (p *pair) sendBody(offer *proto.Offer, name string) error {
	m, l, err := offer.Mail()
	if err != nil {
		return err
	}
	if code, detail := p.beta.Wants(p.t.Context(), p.alpha.self, m, &l); code != proto.CodeNeedBody {
		return fmt.Errorf("a body is not wanted: %v %s", code, detail)
	}
	raw, err := os.ReadFile(filepath.Join(p.alpha.blobs, name))
	if err == nil {
		err = os.WriteFile(filepath.Join(p.beta.blobs, name), raw, 0o600)
	}
	return err
}

// handOff lets beta know that it is the home of a name.
func (p *pair) handOff(name string) {
	p.beta.must(p.beta.names.HandOff(p.t.Context(), name, p.beta.self))
}

// named makes a mailbox of the mesh at alpha.
func (p *pair) named(name string, change func(*wire.MailboxSettings)) {
	p.alpha.mailbox(name, func(s *wire.MailboxSettings) {
		s.Named = true
		if change != nil {
			change(s)
		}
	})
	p.beta.names.move("agent:"+name, p.alpha.self)
	p.alpha.names.handed = func(name string, _ proto.PeerID) { p.handOff(name) }
}

// want reads all of a box where it is, and checks that it is nowhere else.
func (p *pair) want(at *fixture, name string, bodies ...string) {
	p.t.Helper()
	_, got := at.lease(name, "", 100, time.Second)
	if !slices.Equal(got, bodies) {
		p.t.Errorf("%q, want %q", got, bodies)
	}
	if k := p.other(at).ledger.broker(); k != nil && (k.Has(name) || k.HandoverOf(name) != box.Handover{}) {
		p.t.Error("the other node has it, too")
	}
	if all, err := p.other(at).Outgoing(p.t.Context()); err != nil || len(all) > 0 {
		p.t.Errorf("%+v, %v", all, err)
	}
}

// I21: a mailbox is handed over with its mail, settings and dead letters, which keep their
// sequences and attempts; large bodies go too.
func TestHandoffOfAMailbox(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", func(s *wire.MailboxSettings) { s.Attempts, s.Allow = ptr(2), &[]string{"*"} })
		for i := range 600 {
			p.alpha.mail("agent:desk", fmt.Sprint(i), func(m *wire.Mail) { m.Key = fmt.Sprint(i % 7) })
		}
		given, _ := p.alpha.lease("desk", "", 2, time.Second)
		p.alpha.ack("desk", "", given[0])
		p.alpha.settle("desk", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: given[1].Lease, Final: true, Reason: "broken"}}})
		body := strings.Repeat("large ", 100_000)
		p.alpha.mail("agent:desk", "", func(m *wire.Mail) { m.Stream = strings.NewReader(body) })
		before := p.alpha.box("agent:desk")
		moved, err := p.alpha.Handoff(t.Context(), "desk", "beta")
		if err != nil || !moved.Served || moved.Mails != 599 || moved.Home != "beta" || moved.Generation != 2 || moved.Box != "agent:desk" {
			t.Fatalf("%+v, %v", moved, err)
		}
		after := p.beta.box("agent:desk")
		if after.Waiting != before.Waiting || after.Subscriptions[0].Dead != 1 || !slices.Equal(*after.Settings.Allow, []string{"*"}) || *after.Subscriptions[0].Settings.Attempts != 2 {
			t.Errorf("%+v, want %+v", after, before)
		}
		dead := p.beta.mails("desk", "", wire.MailQuery{State: "DEAD"})
		if !slices.Equal(dead, []string{"1"}) {
			t.Errorf("dead letters %q", dead)
		}
		waiting, bodies := p.beta.lease("desk", "", 512, time.Second)
		if len(bodies) != 8 { // the heads of the lanes, and what has no key
			t.Errorf("%q", bodies)
		}
		at := slices.IndexFunc(waiting, func(d wire.DeliveredMail) bool { return d.Mail.Size == int64(len(body)) })
		if at < 0 {
			t.Fatal("the large mail is not there")
		}
		r, _, err := p.beta.DeliveredBody(t.Context(), "desk", "", waiting[at].Lease)
		p.beta.must(err)
		if got, err := io.ReadAll(r); err != nil || string(got) != body {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		p.want(p.beta, "agent:desk", nil...)
		for _, want := range []string{"mailbox.handoff agent:desk to beta", "mailbox.move agent:desk to beta: 599 mails"} {
			if !slices.Contains(p.alpha.audits, want) {
				t.Errorf("audits %q, want %q", p.alpha.audits, want)
			}
		}
		if !slices.ContainsFunc(p.beta.audits, func(s string) bool { return strings.HasPrefix(s, "mailbox.take agent:desk from ") }) {
			t.Errorf("audits %q", p.beta.audits)
		}
		p.alpha.mail("agent:desk", "later", nil)
		if n := p.alpha.waitingFor("beta"); n != 1 {
			t.Errorf("%d mails wait for the new home", n)
		}
	})
}

// I21: a topic is handed over with what it keeps and what its subscriptions have read.
func TestHandoffOfATopic(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.alpha.topic("news", "all", "late")
		p.beta.names.move("topic:news", p.alpha.self)
		p.alpha.names.handed = func(name string, _ proto.PeerID) { p.handOff(name) }
		for _, body := range strings.Split("abcde", "") {
			p.alpha.mail("topic:news", body, nil)
		}
		for _, d := range func() []wire.DeliveredMail { all, _ := p.alpha.lease("topic:news", "all", 3, time.Second); return all }() {
			p.alpha.ack("topic:news", "all", d)
		}
		if _, err := p.alpha.Handoff(t.Context(), "topic:news", "beta"); err != nil {
			t.Fatal(err)
		}
		for sub, want := range map[string]string{"all": "de", "late": "abcde"} {
			if _, got := p.beta.lease("topic:news", sub, 10, time.Second); strings.Join(got, "") != want {
				t.Errorf("%s is given %q, want %q", sub, got, want)
			}
		}
		if b := p.beta.box("topic:news"); b.Waiting != 5 {
			t.Errorf("it keeps %d", b.Waiting)
		}
	})
}

// The new home starts nothing by the word of the old one: it has no handler, and what would be sent
// on waits until somebody resumes it.
func TestHandoffStartsNothing(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", func(s *wire.MailboxSettings) { s.Handler = &wire.MailHandler{Post: "http://127.0.0.1:1/"} })
		p.alpha.topic("news", "sent", "read")
		p.beta.names.move("topic:news", p.alpha.self)
		_, err := p.alpha.SetSubscription(t.Context(), "news", "sent", wire.SubscriptionSettings{To: ptr("agent:desk")})
		p.alpha.must(err)
		for _, name := range []string{"desk", "topic:news"} {
			if _, err := p.alpha.Handoff(t.Context(), name, "beta"); err != nil {
				t.Fatal(err)
			}
		}
		if b := p.beta.box("agent:desk"); b.Settings.Handler != nil {
			t.Errorf("a handler: %+v", b.Settings.Handler)
		}
		for _, u := range p.beta.box("topic:news").Subscriptions {
			if *u.Settings.Paused != (u.Name == "sent") {
				t.Errorf("%+v", u)
			}
		}
	})
}

// What cannot be handed over stays and is served, and the error says why.
func TestHandoffThatIsRefused(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		p.alpha.mailbox("own", nil)
		p.alpha.mail("agent:desk", "x", nil)
		try := func(name, to string, kind error, says string) {
			t.Helper()
			_, err := p.alpha.Handoff(t.Context(), name, to)
			p.alpha.refused(err, kind, says)
		}
		try("own", "beta", wire.ErrRefused, "of its node")
		try("nobody", "beta", wire.ErrNotFound, "there is no")
		try("desk", "", wire.ErrInvalid, "name the member")
		try("desk", "delta", wire.ErrNotFound, "delta")
		p.alpha.names.fail = fmt.Errorf("%w: it has not the role", wire.ErrRefused)
		try("desk", "beta", wire.ErrRefused, "the role")
		p.alpha.names.fail = nil
		p.beta.mailbox("full", func(s *wire.MailboxSettings) { s.Named = true })
		synctest.Wait() // it has the limits of its configuration
		p.beta.must(p.beta.ledger.broker().SetLimits(t.Context(), box.Limits{Bytes: 10}))
		try("desk", "beta", wire.ErrFull, "too much mail")
		p.beta.must(p.beta.ledger.broker().SetLimits(t.Context(), box.Limits{}))
		p.beta.must(p.beta.ledger.broker().SetBox(t.Context(), box.BoxSettings{Name: p.beta.Boxes.places.mailbox("desk", p.beta.self).name, Kind: box.Mailbox}))
		try("desk", "beta", wire.ErrRefused, "of its own with this name")
		p.beta.must(p.beta.ledger.broker().RemoveBox(t.Context(), p.beta.Boxes.places.mailbox("desk", p.beta.self).name))
		p.alpha.one("desk", "", "x")
		p.cut.Store(true)
		began := time.Now()
		try("desk", "beta", wire.ErrRefused, "does not answer")
		if took := time.Since(began); took < partAnswer || took > partAnswer+5*time.Second {
			t.Errorf("after %v", took)
		}
		p.cut.Store(false)
		time.Sleep(2 * copyIdle) // the lease has lapsed, and what came of a copy is dropped
		p.want(p.alpha, "agent:desk", "x")
	})
}

// One handover of a box at a time; meanwhile it takes nothing, and neither its settings nor its mail
// change.
func TestOneHandoffAtATime(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		p.alpha.mail("agent:desk", "x", nil)
		p.cut.Store(true)
		done, alpha := make(chan error, 1), p.alpha.Boxes
		go func() {
			_, err := alpha.Handoff(t.Context(), "desk", "beta")
			done <- err
		}()
		time.Sleep(partRepeat / 2)
		_, err := p.alpha.Handoff(t.Context(), "desk", "beta")
		p.alpha.refused(err, wire.ErrRefused, "is being handed over")
		_, err = p.alpha.trySend("agent:desk", "y", nil)
		p.alpha.refused(err, wire.ErrRefused, "on its way to another home")
		_, err = p.alpha.SetMailbox(t.Context(), "desk", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: &[]string{"*"}}})
		p.alpha.refused(err, wire.ErrRefused, "on its way to another home")
		_, err = p.alpha.Pause(t.Context(), "desk", "", true)
		p.alpha.refused(err, wire.ErrRefused, "on its way to another home")
		p.alpha.refused(p.alpha.Remove(t.Context(), "desk"), wire.ErrRefused, "on its way to another home")
		for _, dry := range []bool{true, false} {
			_, err = p.alpha.Purge(t.Context(), "desk", wire.PurgeMail{DryRun: dry})
			p.alpha.refused(err, wire.ErrRefused, "on its way to another home")
		}
		_, err = p.alpha.ledger.broker().Purge(t.Context(), "agent:desk", 1, "")
		p.alpha.refused(failure(place{}, "", err), wire.ErrRefused, "on its way to another home")
		p.cut.Store(false)
		if err := <-done; err != nil {
			t.Error(err)
		}
		p.want(p.beta, "agent:desk", "x")
	})
}

// errDies is what a node gets that dies.
var errDies = errors.New("the node dies")

// I21: wherever one of the nodes dies, one of them serves the box, and all of it is there.
func TestHandoffIsKilled(t *testing.T) {
	for _, tt := range []struct {
		point string
		beta  bool // that one dies
		stays bool // the box, at alpha
	}{
		{PointPart, false, true},
		{PointCopy, true, true},
		{PointCopied, true, true},
		{"deed", false, false},
		{"heard", true, false},
		{PointServe, true, false},
		{PointLeave, false, false},
	} {
		for _, at := range []int64{1, 2} { // the time at which it dies
			t.Run(fmt.Sprint(tt.point, " ", at), func(t *testing.T) {
				paired(t, func(t *testing.T, p *pair) {
					p.named("desk", nil)
					want := []string{}
					for i := range 300 {
						want = append(want, fmt.Sprint(i))
						p.alpha.mail("agent:desk", want[i], nil)
					}
					dies := p.alpha
					if tt.beta {
						dies = p.beta
					}
					passed, dead := int64(0), make(chan struct{}, 1)
					p.alpha.names.handed = func(name string, _ proto.PeerID) {
						switch tt.point {
						case "deed":
							go dies.stop()
							signal(dead)
						case "heard":
							dies.stop()
							signal(dead)
						}
						p.handOff(name)
					}
					kill := func(point string) error {
						if point != tt.point {
							return nil
						}
						if passed++; passed != at && tt.point != PointServe && tt.point != PointLeave {
							return nil
						}
						go dies.stop()
						signal(dead)
						return errDies
					}
					dies.stop()
					dies.fail = kill
					p.start(dies)
					given, alpha := make(chan error, 1), p.alpha.Boxes
					go func() {
						_, err := alpha.Handoff(t.Context(), "desk", "beta")
						given <- err
					}()
					<-dead
					err := <-given
					synctest.Wait()
					dies.stop()
					dies.fail = nil
					p.start(dies)
					time.Sleep(5 * time.Minute)
					home := p.beta
					if tt.stays {
						home = p.alpha
						if err == nil {
							t.Error("it was handed over")
						}
					}
					if at, _, _ := p.alpha.names.HomeOf("agent:desk"); at != home.self {
						t.Fatal("the home is another node")
					}
					var got []string
					for len(got) < len(want) {
						given, bodies := home.lease("desk", "", 512, time.Second)
						if len(given) == 0 {
							break
						}
						got = append(got, bodies...)
					}
					if !slices.Equal(got, want) {
						t.Errorf("%d mails, want %d", len(got), len(want))
					}
					time.Sleep(2 * copyIdle)
					if other := p.other(home).ledger.broker(); other != nil && (other.Has("agent:desk") || other.HandoverOf("agent:desk") != box.Handover{}) {
						t.Errorf("the other node has it, too: %+v", other.HandoverOf("agent:desk"))
					}
				})
			})
		}
	}
}

// A part is sent again until it is answered, and one that comes twice counts once.
func TestAnswersToPartsAreLost(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		p.alpha.mail("agent:desk", "x", nil)
		lost := map[uint64]bool{}
		p.onWay(nil, func(a *proto.BoxTaken) bool {
			first := !lost[a.GetNumber()]
			lost[a.GetNumber()] = true
			return first
		})
		if _, err := p.alpha.Handoff(t.Context(), "desk", "beta"); err != nil {
			t.Fatal(err)
		}
		p.want(p.beta, "agent:desk", "x")
	})
}

// What no home sends is refused, counted, and changes nothing that is served.
func TestHostileParts(t *testing.T) {
	for name, spoil := range map[string]func(m *proto.BoxPart){
		"of another box":        func(m *proto.BoxPart) { m.Box = "agent:other" },
		"of another handover":   func(m *proto.BoxPart) { m.Handover[0] ^= byte(m.GetNumber() - 1) },
		"of another generation": func(m *proto.BoxPart) { m.Generation = 7 },
		"in another order":      func(m *proto.BoxPart) { m.Number += m.Number / 2 },
		"settings of another": func(m *proto.BoxPart) {
			if len(m.Settings) > 0 {
				m.Settings = box.EncodeBox(0, &box.BoxSettings{Name: "agent:other", Kind: box.Mailbox})
			}
		},
		"settings of a topic": func(m *proto.BoxPart) {
			if len(m.Settings) > 0 {
				m.Settings = box.EncodeBox(0, &box.BoxSettings{Name: "agent:desk", Kind: box.Topic})
			}
		},
		"settings that are none": func(m *proto.BoxPart) {
			if len(m.Settings) > 0 {
				m.Settings = []byte("x")
			}
		},
		"records that are none": func(m *proto.BoxPart) {
			for i := range m.Records {
				m.Records[i] = m.Records[i][1:]
			}
		},
		"records of a ledger": func(m *proto.BoxPart) {
			for i := range m.Records {
				m.Records[i] = box.EncodeRemoveBox(1)
			}
		},
		"without origins": func(m *proto.BoxPart) { m.Origins = nil },
	} {
		t.Run(name, func(t *testing.T) {
			paired(t, func(t *testing.T, p *pair) {
				p.named("desk", nil)
				p.beta.mailbox("own", func(s *wire.MailboxSettings) { s.Named = true })
				p.beta.mail("agent:own", "mine", nil)
				p.alpha.mail("agent:desk", "x", nil)
				p.onWay(func(m *proto.BoxPart) {
					if m.GetNumber() > 0 {
						spoil(m)
					}
				}, nil)
				if _, err := p.alpha.Handoff(t.Context(), "desk", "beta"); err == nil {
					t.Error("it was handed over")
				}
				if n := p.beta.copies.refused.Load(); n == 0 && name != "of another box" {
					t.Error("nothing was refused")
				}
				p.onWay(nil, nil)
				time.Sleep(2 * copyIdle)
				p.beta.one("own", "", "mine")
				p.want(p.alpha, "agent:desk", "x")
			})
		})
	}
}

// A part from a node that is not the home of the name is refused, and makes no ledger.
func TestPartsOfAStranger(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.beta.names.move("agent:desk", p.alpha.gamma)
		m := &proto.BoxPart{Box: "agent:desk", Handover: make([]byte, 16), Generation: 1, Number: 1, Settings: box.EncodeBox(0, &box.BoxSettings{Name: "agent:desk", Kind: box.Mailbox})}
		a := p.deliver(t.Context(), p.alpha, p.beta, m)
		if a.GetCode() != proto.CodeDenied || p.beta.ledger.broker() != nil || p.beta.figures("balefire_mail_parts_refused_total")[""] != 1 {
			t.Errorf("%v", a)
		}
	})
}

// A copy that will not be served goes: its home went on, another node has the name, or an admin
// seizes it here.
func TestCopyThatIsNotServed(t *testing.T) {
	for name, tt := range map[string]func(p *pair){
		"its home has the box": func(p *pair) {
			h := p.beta.ledger.broker().HandoverOf("agent:desk")
			p.deliver(p.t.Context(), p.alpha, p.beta, &proto.BoxPart{Box: "agent:desk", Handover: h.ID[:], Generation: 1, Dropped: true})
		},
		"another node has the name": func(p *pair) { p.beta.names.move("agent:desk", p.alpha.gamma) },
		"it is seized here": func(p *pair) {
			_, err := p.beta.SetMailbox(p.t.Context(), "desk", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Seize: &wire.Seize{From: "beta", AcceptLoss: true}}})
			p.beta.must(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			paired(t, func(t *testing.T, p *pair) {
				p.named("desk", nil)
				p.alpha.mail("agent:desk", "x", nil)
				p.onWay(nil, func(a *proto.BoxTaken) bool {
					p.cut.Store(a.GetState() == proto.CopyWhole)
					return p.cut.Load()
				})
				_, err := p.alpha.Handoff(t.Context(), "desk", "beta")
				p.alpha.refused(err, wire.ErrRefused, "does not answer")
				if h := p.beta.ledger.broker().HandoverOf("agent:desk"); h.Stage != box.Whole {
					t.Fatalf("the copy is %+v", h)
				}
				tt(p)
				time.Sleep(time.Minute)
				if h := p.beta.ledger.broker().HandoverOf("agent:desk"); h.IsCopy() {
					t.Errorf("there is a copy: %+v", h)
				}
			})
		})
	}
}

// A handover that has begun since the homes were looked at keeps its copy, although what was seen of
// an earlier one will never be served.
func TestCopyThatBeginsMeanwhile(t *testing.T) {
	paired(t, func(t *testing.T, p *pair) {
		p.named("desk", nil)
		begin := func(id [16]byte) box.Handover {
			m := &proto.BoxPart{Box: "agent:desk", Handover: id[:], Generation: 1, Number: 1, Settings: box.EncodeBox(0, &box.BoxSettings{Name: "agent:desk", Kind: box.Mailbox})}
			if a := p.deliver(t.Context(), p.alpha, p.beta, m); a.GetCode() != proto.CodeOK {
				t.Fatalf("%v", a)
			}
			return p.beta.ledger.broker().HandoverOf("agent:desk")
		}
		earlier := begin([16]byte{1})
		begin([16]byte{2})
		p.beta.must(p.beta.copies.follow(t.Context(), p.beta.ledger.broker(), "agent:desk", earlier))
		if h := p.beta.ledger.broker().HandoverOf("agent:desk"); h.ID != [16]byte{2} || h.Stage != box.Copying {
			t.Errorf("the copy is %+v", h)
		}
	})
}
