package mail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
)

// A fixture is a broker that can be started again.
type fixture struct {
	*Broker
	t    *testing.T
	dir  string
	cfg  Config
	disk ledger.Config
	log  *ledger.Ledger
	late *lateLog // nil: the log answers at once
	deaf bool     // every wake-up of the broker behind that of its start is lost
	stop func()
}

func newFixture(t *testing.T, cfg Config) *fixture {
	t.Helper()
	return newFixtureOn(t, cfg, ledger.Config{Segment: 2 << 20, Ring: 2 << 20, Reserve: -1})
}

// newFixtureOn is newFixture with a ledger of some configuration.
func newFixtureOn(t *testing.T, cfg Config, disk ledger.Config) *fixture {
	t.Helper()
	cfg.Clock = clock.Runtime()
	f := &fixture{t: t, dir: t.TempDir() + "/ledger", cfg: cfg, disk: disk}
	f.start()
	t.Cleanup(func() { f.stop() })
	return f
}

// start starts the broker. Its stop is that of a process that is killed: what is not in the
// log is lost.
func (f *fixture) start() {
	f.t.Helper()
	var err error
	if f.log, err = ledger.Open(f.dir, f.disk); err != nil {
		f.t.Fatal(err)
	}
	f.cfg.Boot++
	var log Ledger = f.log
	if f.late != nil {
		f.late.Ledger, log = f.log, f.late
	}
	if f.Broker, err = New(log, f.cfg); err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if f.deaf {
		f.begin(ctx)
		<-f.wake
		f.step(ctx)
		f.wake = nil
	}
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("the broker ended: %v", err)
		}
		if err := f.log.Close(); err != nil {
			f.t.Error(err)
		}
	})
}

func (f *fixture) restart() {
	f.t.Helper()
	f.stop()
	f.start()
}

func (f *fixture) mailbox(name string) {
	f.t.Helper()
	if err := f.SetBox(f.t.Context(), box.BoxSettings{Name: name, Kind: box.Mailbox}); err != nil {
		f.t.Fatal(err)
	}
}

// letter returns an encoded letter.
func (f *fixture) letter(body string, change func(*proto.Letter)) []byte {
	f.t.Helper()
	now := time.Now()
	l := &proto.Letter{Class: proto.Normal, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Body: []byte(body)}
	if change != nil {
		change(l)
	}
	b, err := proto.AppendLetter(nil, l)
	if err != nil {
		f.t.Fatal(err)
	}
	return b
}

// send sends letters to a box, each of which must be taken.
func (f *fixture) send(name string, bodies ...string) {
	f.t.Helper()
	var items []Item
	for _, body := range bodies {
		items = append(items, Item{Box: name, Letter: f.letter(body, nil)})
	}
	sent, err := f.Send(f.t.Context(), items, false)
	if err != nil {
		f.t.Fatal(err)
	}
	for i, s := range sent {
		if s.Code != proto.CodeOK || s.ID.IsZero() {
			f.t.Fatalf("mail %d: %+v", i, s)
		}
	}
}

func (f *fixture) read(name string, credit int) *Session {
	f.t.Helper()
	s, err := f.Read(f.t.Context(), Reading{Box: name, Reader: "test", Credit: credit})
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// next returns the next n deliveries and their bodies.
func (f *fixture) next(s *Session, n int) (got []Delivery, bodies []string) {
	f.t.Helper()
	for len(got) < n {
		more, err := s.Next(f.t.Context(), n-len(got))
		if got = append(got, more...); err != nil {
			f.t.Fatal(err)
		}
	}
	for _, d := range got {
		l, err := proto.ParseLetter(d.Letter)
		if err != nil {
			f.t.Fatal(err)
		}
		bodies = append(bodies, string(l.Body))
	}
	return got, bodies
}

func (f *fixture) settle(name string, d Delivery, op box.Op, want proto.Code) Settled {
	f.t.Helper()
	r, err := f.Settle(f.t.Context(), name, "", []Settlement{{Handle: d.Handle, Op: op, Reason: "test"}})
	if err != nil || len(r) != 1 || r[0].Code != want {
		f.t.Fatalf("settle: %+v, %v, want %v", r, err, want)
	}
	return r[0]
}

func (f *fixture) info(name string) (i box.Info) {
	f.t.Helper()
	if err := f.View(f.t.Context(), func(s *box.State) {
		id, _ := s.Find(name)
		i, _ = s.Info(id)
	}); err != nil {
		f.t.Fatal(err)
	}
	return i
}

// I21, I23: what was sent is there after a restart until it is acknowledged; a lease is not,
// and its old handle still counts when nobody has the mail again.
func TestMailSurvivesARestart(t *testing.T) {
	f := newFixture(t, Config{})
	f.mailbox("agent:ceo")
	f.send("agent:ceo", "a", "b", "c")
	s := f.read("agent:ceo", 2)
	got, bodies := f.next(s, 2)
	if fmt.Sprint(bodies) != "[a b]" || got[0].Attempt != 1 || got[0].Redelivered || got[0].Lease <= 0 {
		t.Fatalf("%q, %+v", bodies, got)
	}
	f.settle("agent:ceo", got[0], box.Ack, proto.CodeOK)
	f.settle("agent:ceo", got[0], box.Ack, proto.CodeOK) // it is done
	f.next(s, 1)                                         // the ack gave the credit back: c
	old := got[1]
	f.restart()
	if _, err := s.Next(t.Context(), 1); !errors.Is(err, ErrStopped) {
		t.Errorf("a session of the last start: %v", err)
	}
	f.settle("agent:ceo", old, box.Ack, proto.CodeOK)
	if _, bodies := f.next(f.read("agent:ceo", 10), 1); fmt.Sprint(bodies) != "[c]" {
		t.Errorf("after the restart: %q", bodies)
	}
	if i := f.info("agent:ceo"); i.Waiting != 1 || i.EndedAs(box.Done) != 2 {
		t.Errorf("%+v", i)
	}
}

// A lease that runs out spends an attempt; the third one makes a dead letter, and its sender
// is told.
func TestLapsesEndInABounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bounced := make(chan Bounce, 1)
		f := newFixture(t, Config{Bounced: func(_ context.Context, b Bounce) { bounced <- b }})
		f.mailbox("agent:ceo")
		var id proto.MailID
		letter := f.letter("x", func(l *proto.Letter) { l.ReplyTo, l.Correlation, id = []byte("agent:desk"), []byte("7"), l.ID })
		if _, err := f.Send(t.Context(), []Item{{Box: "agent:ceo", Letter: letter}}, false); err != nil {
			t.Fatal(err)
		}
		s := f.read("agent:ceo", 1)
		for attempt := 1; attempt <= 3; attempt++ {
			got, _ := f.next(s, 1)
			if got[0].Attempt != attempt || got[0].Redelivered != (attempt > 1) {
				t.Errorf("attempt %d: %+v", attempt, got[0])
			}
		}
		b := <-bounced
		l, err := proto.ParseLetter(b.Letter)
		if err != nil || b.To != "agent:desk" || !b.Origin.IsZero() || string(l.Type) != TypeBounce || l.BounceOf != id || string(l.Correlation) != "7" || l.Hops != 1 ||
			!bytes.Contains(l.Body, []byte(`"cause":"lapsed"`)) {
			t.Errorf("%+v, %s, %v", b, l.Body, err)
		}
		if i := f.info("agent:ceo"); i.Waiting != 0 || i.EndedAs(box.Dead) != 1 {
			t.Errorf("%+v", i)
		}
	})
}

// I21: a sender is told also if the process died between the end of its mail and the bounce.
func TestBouncesAreRepeatedAfterACrash(t *testing.T) {
	block := make(chan struct{})
	told := make(chan Bounce, 4)
	f := newFixture(t, Config{CheckpointRecords: 1, Bounced: func(_ context.Context, b Bounce) {
		told <- b
		<-block
	}})
	f.mailbox("agent:ceo")
	if _, err := f.Send(t.Context(), []Item{{Box: "agent:ceo", Letter: f.letter("x", func(l *proto.Letter) { l.Sender = []byte("desk") })}}, false); err != nil {
		t.Fatal(err)
	}
	got, _ := f.next(f.read("agent:ceo", 1), 1)
	before := f.log.Stats().Last
	f.settle("agent:ceo", got[0], box.Final, proto.CodeOK)
	first := <-told
	time.AfterFunc(3*tickEvery, func() { close(block) }) // the tick would write a checkpoint
	f.restart()
	if after := f.log.Stats().Checkpoint; after > before {
		t.Errorf("a checkpoint at %d has the end after batch %d, of which the sender was not told yet", after, before)
	}
	again := <-told
	a, err1 := proto.ParseLetter(first.Letter)
	b, err2 := proto.ParseLetter(again.Letter)
	if err1 != nil || err2 != nil || first.To != "desk" || again.To != "desk" || !bytes.Equal(a.Dedupe, b.Dedupe) || len(a.Dedupe) == 0 {
		t.Errorf("%+v\n%+v", a, b)
	}
}

// What cannot be taken is refused with a code.
func TestRefusedMail(t *testing.T) {
	f := newFixture(t, Config{})
	if err := f.SetBox(t.Context(), box.BoxSettings{Name: "agent:ceo", Kind: box.Mailbox, Mails: 1}); err != nil {
		t.Fatal(err)
	}
	keyed := func(body, key string) []byte {
		return f.letter(body, func(l *proto.Letter) { l.Dedupe = []byte(key) })
	}
	first := keyed("a", "k")
	sent, err := f.Send(t.Context(), []Item{
		{Box: "agent:nobody", Letter: f.letter("x", nil)},
		{Box: "agent:ceo", Letter: []byte{1}},
		{Box: "agent:ceo", Letter: first},
		{Box: "agent:ceo", Letter: first},
		{Box: "agent:ceo", Letter: f.letter("b", nil)},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []Sent{
		{Code: proto.CodeNoHandler}, {Code: proto.CodeBadForm, ForGood: true}, {Code: proto.CodeOK}, {Code: proto.CodeOK, Duplicate: true},
		{Code: proto.CodeFull},
	} {
		if got := sent[i]; got.Code != want.Code || got.ForGood != want.ForGood || got.Duplicate != want.Duplicate || (got.Detail == "") != (got.Code == proto.CodeOK) {
			t.Errorf("mail %d: %+v, want %+v", i, got, want)
		}
	}
	if sent[3].ID != sent[2].ID {
		t.Errorf("a second mail of a dedupe key is %v, the first one %v", sent[3].ID, sent[2].ID)
	}
	if _, err := f.Send(t.Context(), make([]Item, MaxSend+1), false); err == nil {
		t.Error("too many at once")
	}
	large := f.letter(string(make([]byte, 200<<10)), nil)
	if _, err := f.Send(t.Context(), []Item{{Letter: large}, {Letter: large}, {Letter: large}, {Letter: large}, {Letter: large}, {Letter: large}}, false); err == nil {
		t.Error("too large at once")
	}
	if sent, err := f.Send(t.Context(), nil, false); sent != nil || err != nil {
		t.Errorf("nothing: %v, %v", sent, err)
	}
}

// Many senders and readers: each mail is done once, and mails of a key in their order.
func TestManySendersAndReaders(t *testing.T) {
	const senders, each, readers = 8, 100, 4
	f := newFixture(t, Config{CheckpointRecords: 300})
	f.mailbox("agent:ceo")
	var work sync.WaitGroup
	for n := range senders {
		var letters [each][]byte
		for i := range letters {
			letters[i] = f.letter(fmt.Sprintf("%d %d", n, i), func(l *proto.Letter) { l.Key = fmt.Append(nil, n) })
		}
		work.Go(func() {
			for i, letter := range letters {
				if sent, err := f.Send(t.Context(), []Item{{Box: "agent:ceo", Letter: letter}}, i%2 == 0); err != nil || sent[0].Code != proto.CodeOK {
					t.Errorf("%+v, %v", sent, err)
				}
			}
		})
	}
	var mu sync.Mutex
	next := make([]int, senders)
	done := 0
	ctx, cancel := context.WithCancel(t.Context())
	for range readers {
		s := f.read("agent:ceo", 16)
		work.Go(func() {
			for {
				got, err := s.Next(ctx, 16)
				if err != nil {
					return
				}
				var acks []Settlement
				for _, d := range got {
					l, err := proto.ParseLetter(d.Letter)
					if err != nil {
						t.Error(err)
					}
					var n, i int
					fmt.Sscan(string(l.Body), &n, &i)
					mu.Lock()
					if next[n] != i {
						t.Errorf("sender %d: mail %d after %d", n, i, next[n])
					}
					next[n]++
					mu.Unlock()
					acks = append(acks, Settlement{Handle: d.Handle, Op: box.Ack})
				}
				settled, err := f.Settle(ctx, "agent:ceo", "", acks)
				for _, r := range settled {
					if r.Code != proto.CodeOK {
						t.Errorf("%+v", r)
					}
				}
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				if done += len(got); done == senders*each {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	cancel()
	f.restart()
	if i := f.info("agent:ceo"); i.Waiting != 0 || i.EndedAs(box.Done) != senders*each {
		t.Errorf("%+v", i)
	}
}

// Boxes and subscriptions are made, changed and removed.
func TestBoxesAndSubscriptions(t *testing.T) {
	bounced := make(chan Bounce, 9)
	f := newFixture(t, Config{Bounced: func(_ context.Context, b Bounce) { bounced <- b }})
	ctx := t.Context()
	f.mailbox("agent:ceo")
	if err := f.SetBox(ctx, box.BoxSettings{Name: "topic:orders", Kind: box.Topic}); err != nil {
		t.Fatal(err)
	}
	refused := func(what string, err error) {
		t.Helper()
		if e := (*RefusedError)(nil); !errors.As(err, &e) || e.Detail == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	missing := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, box.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("another kind", f.SetBox(ctx, box.BoxSettings{Name: "agent:ceo", Kind: box.Topic}))
	refused("a subscription of a mailbox", f.SetSub(ctx, "agent:ceo", box.SubSettings{Name: "billing"}, box.Start{}))
	missing("a subscription of nothing", f.SetSub(ctx, "topic:none", box.SubSettings{Name: "billing"}, box.Start{}))
	missing("no box", f.RemoveBox(ctx, "agent:none"))
	missing("no subscription", f.RemoveSub(ctx, "topic:orders", "billing"))
	missing("seek", f.Seek(ctx, "topic:orders", "billing", box.Start{}))
	missing("unblock", f.Unblock(ctx, "agent:none", "", proto.PeerID{}, "k"))
	if _, err := f.Purge(ctx, "agent:none", 1, ""); !errors.Is(err, box.ErrNotFound) {
		t.Error(err)
	}
	if _, err := f.Read(ctx, Reading{Box: "agent:none"}); !errors.Is(err, box.ErrNotFound) {
		t.Error(err)
	}
	if _, err := f.Settle(ctx, "agent:none", "", nil); !errors.Is(err, box.ErrNotFound) {
		t.Error(err)
	}
	if err := f.SetBox(ctx, box.BoxSettings{Name: ""}); !errors.Is(err, box.ErrBadRecord) {
		t.Errorf("a box without a name: %v", err)
	}

	publish := func(subject string) {
		t.Helper()
		sent, err := f.Send(ctx, []Item{{Box: "topic:orders", Letter: f.letter(subject, func(l *proto.Letter) { l.Subject = []byte(subject) })}}, false)
		if err != nil || sent[0].Code != proto.CodeOK {
			t.Fatalf("%+v, %v", sent, err)
		}
	}
	publish("eu.created")
	publish("us.created")
	for name, filter := range map[string]string{"billing": "eu.>", "audit": ">"} {
		if err := f.SetSub(ctx, "topic:orders", box.SubSettings{Name: name, Filter: filter, Mode: box.Exclusive}, box.Start{At: box.StartFirst}); err != nil {
			t.Fatal(err)
		}
	}
	billing, err := f.Read(ctx, Reading{Box: "topic:orders", Subscription: "billing", Reader: "one", Credit: 9})
	if err != nil {
		t.Fatal(err)
	}
	if _, bodies := f.next(billing, 1); bodies[0] != "eu.created" {
		t.Errorf("%q", bodies)
	}
	var held *box.HeldError
	if _, err := f.Read(ctx, Reading{Box: "topic:orders", Subscription: "billing"}); !errors.As(err, &held) || held.Reader != "one" {
		t.Errorf("a second reader of an exclusive subscription: %v", err)
	}
	if err := f.RemoveSub(ctx, "topic:orders", "billing"); err != nil {
		t.Fatal(err)
	}
	if _, err := billing.Next(ctx, 1); !errors.Is(err, ErrGone) {
		t.Errorf("a removed subscription: %v", err)
	}

	f.send("agent:ceo", "a", "b")
	if n, err := f.Purge(ctx, "agent:ceo", 1, "spring"); n != 1 || err != nil || f.info("agent:ceo").Waiting != 1 {
		t.Errorf("purged %d, %v", n, err)
	}
	if _, err := f.Send(ctx, []Item{{Box: "agent:ceo", Letter: f.letter("c", func(l *proto.Letter) { l.BounceTo = []byte("agent:desk") })}}, false); err != nil {
		t.Fatal(err)
	}
	if err := f.RemoveBox(ctx, "agent:ceo"); err != nil {
		t.Fatal(err)
	}
	var to []string
	for range 3 {
		to = append(to, (<-bounced).To)
	}
	if slices.Sort(to); fmt.Sprintf("%q", to) != `["" "" "agent:desk"]` { // two name nobody
		t.Errorf("bounces to %q", to)
	}
	if sent, err := f.Send(ctx, []Item{{Box: "agent:ceo", Letter: f.letter("d", nil)}}, false); err != nil || sent[0].Code != proto.CodeNoHandler {
		t.Errorf("a removed box: %+v, %v", sent, err)
	}
}

// Dead letters that are too many are forgotten when the archive has them.
func TestArchive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var kept []string
		fail := true
		f := newFixture(t, Config{Archive: func(_ context.Context, all []DeadLetter) error {
			mu.Lock()
			defer mu.Unlock()
			if fail {
				return errors.New("disk full")
			}
			for _, d := range all {
				l, err := proto.ParseLetter(d.Letter)
				if err != nil {
					return err
				}
				kept = append(kept, d.Box+" "+string(l.Body))
			}
			return nil
		}})
		f.mailbox("agent:ceo")
		if err := f.SetSub(t.Context(), "agent:ceo", box.SubSettings{Dead: 1}, box.Start{}); err != nil {
			t.Fatal(err)
		}
		f.send("agent:ceo", "a", "b")
		got, _ := f.next(f.read("agent:ceo", 2), 2)
		for _, d := range got {
			f.settle("agent:ceo", d, box.Final, proto.CodeOK)
		}
		dead := func() (n int) {
			f.View(t.Context(), func(s *box.State) {
				id, _ := s.Find("agent:ceo")
				i, _ := s.SubInfo(id, 0)
				n = i.Dead
			})
			return n
		}
		time.Sleep(time.Minute)
		if n := dead(); n != 2 {
			t.Errorf("%d dead letters although the archive failed", n)
		}
		mu.Lock()
		fail = false
		mu.Unlock()
		time.Sleep(time.Minute)
		if n := dead(); n != 1 || fmt.Sprint(kept) != "[agent:ceo a]" {
			t.Errorf("%d dead letters, archived %q", n, kept)
		}
	})
}

// A session that is closed gives back what it has, for nothing if it did not break.
func TestClosedSessionsGiveBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{})
		f.mailbox("agent:ceo")
		f.send("agent:ceo", "a")
		for n, broke := range []bool{false, true, false} {
			s := f.read("agent:ceo", 1)
			got, _ := f.next(s, 1)
			if got[0].Attempt != 1 || got[0].Redelivered != (n > 0) {
				t.Errorf("reader %d: %+v", n, got[0])
			}
			if err := s.Close(t.Context(), broke); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Next(t.Context(), 1); !errors.Is(err, ErrStopped) {
				t.Errorf("a closed session: %v", err)
			}
			if err := s.Close(t.Context(), broke); err != nil {
				t.Errorf("closed twice: %v", err)
			}
		}
		s := f.read("agent:ceo", 1)
		f.send("agent:ceo", "b")
		f.next(s, 1)
		if err := s.AddCredit(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if _, bodies := f.next(s, 1); bodies[0] != "b" {
			t.Errorf("with more credit: %q", bodies)
		}
	})
}

// A failedLog fails with the first record that it is given.
type failedLog struct {
	*ledger.Ledger
	failed chan struct{}
	once   sync.Once
	after  int // records that it takes first
}

func (l *failedLog) Queue(es []ledger.Entry) *ledger.Pending {
	if l.after -= len(es); l.after >= 0 {
		return l.Ledger.Queue(es)
	}
	for _, e := range es {
		e.After(0, ledger.Place{}, store.ErrFailed)
	}
	l.once.Do(func() { close(l.failed) })
	return nil
}
func (l *failedLog) Failed() <-chan struct{} { return l.failed }
func (l *failedLog) Err() error              { return store.ErrFailed }

// When the log fails, what was asked for is unknown, and the broker ends with the cause.
func TestLogFails(t *testing.T) {
	log, err := ledger.Open(t.TempDir()+"/ledger", ledger.Config{Segment: 2 << 20, Ring: 2 << 20, Reserve: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	b, err := New(&failedLog{Ledger: log, failed: make(chan struct{}), after: 2}, Config{Boot: 1})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- b.Run(t.Context()) }()
	f := &fixture{t: t, Broker: b}
	f.mailbox("agent:ceo")
	s := f.read("agent:ceo", 1)
	if _, err := f.Send(t.Context(), []Item{{Box: "agent:ceo", Letter: f.letter("a", nil)}}, false); !errors.Is(err, ErrUnknown) {
		t.Errorf("send: %v", err)
	}
	if err := <-ended; !errors.Is(err, store.ErrFailed) {
		t.Errorf("the broker ended with %v", err)
	}
	if _, err := s.Next(t.Context(), 1); !errors.Is(err, ErrStopped) {
		t.Errorf("next: %v", err)
	}
	if _, err := f.Send(t.Context(), []Item{{Box: "agent:ceo", Letter: f.letter("a", nil)}}, false); !errors.Is(err, ErrStopped) {
		t.Errorf("send later: %v", err)
	}
	if err := f.SetBox(t.Context(), box.BoxSettings{Name: "agent:x", Kind: box.Mailbox}); !errors.Is(err, ErrStopped) {
		t.Errorf("set a box later: %v", err)
	}
	if _, err := f.Read(t.Context(), Reading{Box: "agent:ceo"}); !errors.Is(err, ErrStopped) {
		t.Errorf("read later: %v", err)
	}
}

// The segment of a place is found when its index has more bits than a place keeps of it.
func TestPlacesOfLateSegments(t *testing.T) {
	for _, newest := range []uint64{1, 1 << 20, 1<<37 - 1, 1 << 37, 1<<37 + 5, 3<<37 + 12345, 1 << 62} {
		for _, age := range []uint64{0, 1, 77, 1 << 30, 1<<37 - 1} {
			if age >= newest {
				continue
			}
			if got := segmentOf(pack(ledger.Place{Segment: newest - age, Offset: ledger.MaxSegment}), newest); got != newest-age {
				t.Errorf("segment %d, newest %d: found %d", newest-age, newest, got)
			}
		}
	}
}

// A start must be newer than those in the ledger.
func TestOldBootIsRefused(t *testing.T) {
	f := newFixture(t, Config{Boot: 6})
	f.stop()
	log, err := ledger.Open(f.dir, ledger.Config{Segment: 2 << 20, Ring: 2 << 20, Reserve: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := New(log, Config{Boot: 7}); err == nil {
		t.Error("the same boot twice")
	}
}
