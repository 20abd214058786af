package mail

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// looks counts how often the broker looks at its clock.
func looks(cfg *Config) *atomic.Int64 {
	n := new(atomic.Int64)
	cfg.random = func() uint64 { n.Add(1); return 1 }
	return n
}

// A broker for which nothing waits is not woken: with a mailbox and its reader, also after it had mail.
// What it keeps, or a dedupe key that it knows, costs some looks each five minutes.
func TestBrokerSleeps(t *testing.T) {
	for name, tt := range map[string]struct {
		keep time.Duration
		key  string
		most int64
	}{
		"nothing":      {0, "", 0},
		"kept mail":    {24 * time.Hour, "", 100},
		"a dedupe key": {0, "k", 100},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var cfg Config
				n := looks(&cfg)
				f := newFixture(t, cfg)
				if err := f.SetBox(t.Context(), box.BoxSettings{Name: "agent:ceo", Kind: box.Mailbox, Keep: tt.keep}); err != nil {
					t.Fatal(err)
				}
				s := f.read("agent:ceo", 5)
				letter := f.letter("x", func(l *proto.Letter) { l.Dedupe = []byte(tt.key) })
				if _, err := f.Send(t.Context(), []Item{{Box: "agent:ceo", Letter: letter}}, false); err != nil {
					t.Fatal(err)
				}
				got, _ := f.next(s, 1)
				f.settle("agent:ceo", got[0], box.Ack, proto.CodeOK)
				time.Sleep(10 * time.Minute) // a checkpoint is written
				before := n.Load()
				time.Sleep(time.Hour)
				synctest.Wait()
				if looked := n.Load() - before; looked > tt.most {
					t.Errorf("it looked %d times in an hour, want at most %d", looked, tt.most)
				}
				f.send("agent:ceo", "another")
				f.next(s, 1)
			})
		})
	}
}

// What waits for a time has it in time, though the broker slept before.
func TestDeadlinesAreMet(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(f *fixture)
		kind    string // of the event
		after   time.Duration
		most    time.Duration // it may be late
	}{
		"a lease":                    {func(f *fixture) { f.send("agent:ceo", "x"); f.next(f.read("agent:ceo", 1), 1) }, EventRetry, 30 * time.Second, 2 * tickEvery},
		"a mail that is deferred":    {deferred, EventDelivered, 40 * time.Second, 2 * tickEvery},
		"a mail for later":           {func(f *fixture) { f.read("agent:ceo", 1).wait(f); f.sendFor(time.Hour, time.Minute) }, EventDelivered, time.Minute, 2 * tickEvery},
		"the end of a mail":          {func(f *fixture) { f.sendFor(time.Minute, 0) }, EventExpired, time.Minute, 1100 * time.Millisecond},
		"that of a leased mail":      {func(f *fixture) { f.sendFor(10*time.Second, 0); f.next(f.read("agent:ceo", 1), 1) }, EventExpired, 30 * time.Second, 2 * time.Second},
		"that of a mail of a spool":  {spooledFor(time.Minute), EventExpired, time.Minute, 2100 * time.Millisecond},
		"the retention of a topic":   {published, EventDropped, time.Hour, 12 * time.Second},
		"a dead letter of long ago":  {buried, "archived", 2 * time.Hour, 12 * time.Second},
		"mail that is kept for long": {done, "forgotten", time.Hour, 6 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var archived atomic.Bool
				f := newFixture(t, Config{Self: homeID, Archive: func(context.Context, []DeadLetter) error { archived.Store(true); return nil }})
				if err := f.SetBox(t.Context(), box.BoxSettings{Name: "agent:ceo", Kind: box.Mailbox, Keep: time.Hour}); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				began := time.Now()
				tt.prepare(f)
				happened := func() bool {
					switch tt.kind {
					case "archived":
						return archived.Load()
					case "forgotten":
						return f.info("agent:ceo").EndedAs(box.Done) == 1 && f.kept() == 0
					}
					list, _, _, _ := f.Events(0, 1, func(e *Event) bool { return e.Kind == tt.kind && e.At.Sub(began) > time.Second })
					return len(list) > 0
				}
				time.Sleep(tt.after - 200*time.Millisecond)
				if happened() {
					t.Fatalf("%s happened before %v", tt.kind, tt.after)
				}
				time.Sleep(tt.most + 200*time.Millisecond)
				if !happened() {
					t.Errorf("%s did not happen %v after %v", tt.kind, tt.most, tt.after)
				}
			})
		})
	}
}

// kept returns how many mails of agent:ceo are kept.
func (f *fixture) kept() (n int) {
	f.t.Helper()
	if err := f.View(f.t.Context(), func(s *box.State) {
		id, _ := s.Find("agent:ceo")
		for range s.Kept(id, 0) {
			n++
		}
	}); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// wait reads in the background.
func (s *Session) wait(f *fixture) {
	ctx, stop := context.WithCancel(context.Background())
	f.t.Cleanup(stop)
	done := make(chan struct{})
	go func() { defer close(done); _, _ = s.Next(ctx, 1) }()
	f.t.Cleanup(func() { stop(); <-done })
}

// sendFor sends a mail that lives for ttl, and is for later.
func (f *fixture) sendFor(ttl, later time.Duration) {
	f.t.Helper()
	letter := f.letter("x", func(l *proto.Letter) {
		if l.NotAfter = l.Created + ttl.Milliseconds(); later > 0 {
			l.NotBefore = l.Created + later.Milliseconds()
		}
	})
	if _, err := f.Send(f.t.Context(), []Item{{Box: "agent:ceo", Letter: letter}}, false); err != nil {
		f.t.Fatal(err)
	}
}

func deferred(f *fixture) {
	f.send("agent:ceo", "x")
	s := f.read("agent:ceo", 1)
	got, _ := f.next(s, 1)
	if _, err := f.Settle(f.t.Context(), "agent:ceo", "", []Settlement{{Handle: got[0].Handle, Op: box.Defer, Delay: 40 * time.Second}}); err != nil {
		f.t.Fatal(err)
	}
	s.wait(f)
}

func spooledFor(ttl time.Duration) func(*fixture) {
	return func(f *fixture) {
		letter := f.letter("x", func(l *proto.Letter) { l.NotAfter = l.Created + ttl.Milliseconds() })
		if _, err := f.Forward(f.t.Context(), []Outgoing{{Box: "agent:far", Home: originID, Letter: letter}}, false); err != nil {
			f.t.Fatal(err)
		}
	}
}

func published(f *fixture) {
	if err := f.SetBox(f.t.Context(), box.BoxSettings{Name: "topic:news", Kind: box.Topic, Age: time.Hour}); err != nil {
		f.t.Fatal(err)
	}
	if err := f.SetSub(f.t.Context(), "topic:news", box.SubSettings{Name: "one"}, box.Start{}); err != nil {
		f.t.Fatal(err)
	}
	letter := f.letter("x", func(l *proto.Letter) { l.NotAfter = l.Created + (9 * time.Hour).Milliseconds() })
	if _, err := f.Send(f.t.Context(), []Item{{Box: "topic:news", Letter: letter}}, false); err != nil {
		f.t.Fatal(err)
	}
}

func buried(f *fixture) {
	if err := f.SetSub(f.t.Context(), "agent:ceo", box.SubSettings{DeadAge: 2 * time.Hour}, box.Start{}); err != nil {
		f.t.Fatal(err)
	}
	f.send("agent:ceo", "x")
	got, _ := f.next(f.read("agent:ceo", 1), 1)
	f.settle("agent:ceo", got[0], box.Final, proto.CodeOK)
}

func done(f *fixture) {
	f.send("agent:ceo", "x")
	got, _ := f.next(f.read("agent:ceo", 1), 1)
	f.settle("agent:ceo", got[0], box.Ack, proto.CodeOK)
}
