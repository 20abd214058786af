package box

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

func TestLimitsOfBoxes(t *testing.T) {
	b := newBench(t)
	b.apply(EncodePeer(1, proto.PeerID{1}))
	b.apply(EncodePeer(2, proto.PeerID{2}))
	set := func(x BoxSettings) {
		x.Name, x.Kind = "agent:ceo", Mailbox
		if r := b.apply(EncodeBox(1, &x)); r.Code != proto.CodeOK {
			t.Fatalf("%+v", r)
		}
	}
	refused := func(why string, code proto.Code, n note) {
		t.Helper()
		waiting := b.info().Waiting
		if r := b.send(n); r.Code != code || b.info().Waiting != waiting {
			t.Errorf("%s: %+v", why, r)
		}
	}
	set(BoxSettings{Mails: 10})
	for range 9 {
		b.mustSend(note{origin: 1})
	}
	refused("nine times what is free", proto.CodeFull, note{origin: 1})
	b.mustSend(note{origin: 2})
	refused("a full box", proto.CodeFull, note{})
	set(BoxSettings{Mails: 100, Bytes: uint64(b.info().Bytes) + 60})
	b.mustSend(note{})
	refused("a full box by bytes", proto.CodeFull, note{})
	refused("more than the box can have", proto.CodeTooLarge, note{body: strings.Repeat("x", 1000)})
	set(BoxSettings{Mails: 100})
	b.apply(EncodeLimits(Limits{Bytes: uint64(b.info().Bytes) + 100}))
	b.mustSend(note{})
	refused("a full node", proto.CodeFull, note{})
	b.apply(EncodeLimits(Limits{}))
	set(BoxSettings{Draining: true})
	refused("draining", proto.CodeDraining, note{})
	set(BoxSettings{})
	refused("no such box", proto.CodeNoHandler, note{box: 9})
	refused("an unknown origin", proto.CodeBusy, note{origin: 3})
	m, _ := ParseMail(b.record(note{}))
	m.Letter = slices.Concat(m.Letter, []byte("x"))
	if r := b.apply(AppendMail(nil, &m)); r.Code != proto.CodeBadForm || !r.ForGood {
		t.Errorf("no letter: %+v", r)
	}
	m.Letter[0] = 2
	if r := b.apply(AppendMail(nil, &m)); r.Code != proto.CodeUnknownVersion || r.ForGood {
		t.Errorf("a letter of a later version: %+v", r)
	}
	for _, d := range []struct{ got, want int64 }{
		{int64((&box{settings: BoxSettings{Kind: Mailbox}}).maxMails()), 100_000},
		{(&box{settings: BoxSettings{Kind: Mailbox}}).maxBytes(), 256 << 20},
		{int64((&box{settings: BoxSettings{Kind: Topic}}).maxMails()), 1_000_000},
		{(&box{settings: BoxSettings{Kind: Topic}}).maxBytes(), 1 << 30},
		{int64((&box{settings: BoxSettings{Kind: Topic}}).retention()), int64(7 * 24 * time.Hour)},
		{int64((&box{settings: BoxSettings{Kind: Topic, Interest: true}}).retention()), 0},
	} {
		if d.got != d.want {
			t.Errorf("default %d, want %d", d.got, d.want)
		}
	}
}

func TestCounts(t *testing.T) {
	b := newBench(t)
	for i := 2; i <= MaxBoxes; i++ {
		b.apply(EncodeBox(BoxID(i), &BoxSettings{Name: fmt.Sprint("topic:", i), Kind: Topic}))
	}
	if r := b.apply(EncodeBox(MaxBoxes+1, &BoxSettings{Name: "more", Kind: Topic})); r.Code != proto.CodeFull {
		t.Errorf("box %d: %+v", MaxBoxes+1, r)
	}
	for i := 1; i <= MaxSubs; i++ {
		if r := b.apply(EncodeSub(2, b.s.NewSub(2), &SubSettings{Name: fmt.Sprint(i)}, Start{})); r.Code != proto.CodeOK {
			t.Fatalf("subscription %d: %+v", i, r)
		}
	}
	if r := b.apply(EncodeSub(2, MaxSubs+1, &SubSettings{Name: "more"}, Start{})); r.Code != proto.CodeFull {
		t.Errorf("subscription %d: %+v", MaxSubs+1, r)
	}
	for range MaxSessions {
		b.attach(1, 0)
	}
	if _, err := b.s.Attach(1, 0, "more", 0, 1); !errors.Is(err, ErrTooManySessions) {
		t.Errorf("session %d: %v", MaxSessions+1, err)
	}
	var out Output
	for i := 1; i <= MaxOrigins+1; i++ {
		rec := EncodePeer(uint32(i), proto.PeerID{byte(i), byte(i >> 8), byte(i >> 16)})
		if err := b.s.Apply(1, rec, &out); err != nil {
			t.Fatal(err)
		}
	}
	if r := out.Results; r[MaxOrigins-1].Code != proto.CodeOK || r[MaxOrigins].Code != proto.CodeFull {
		t.Errorf("the last origins: %+v", r[MaxOrigins-1:])
	}
	if p, ok := b.s.Peer(2); !ok || p != (proto.PeerID{2}) || b.s.Origin(p) != 2 || b.s.NewOrigin() != MaxOrigins+1 {
		t.Errorf("origin 2 is %v", p)
	}
	if _, ok := b.s.Peer(MaxOrigins + 1); ok {
		t.Error("an origin that is not there")
	}
}

func TestPeers(t *testing.T) {
	b := newBench(t)
	for _, tt := range []struct {
		name  string
		index uint32
		peer  byte
		want  proto.Code
	}{
		{"the first", 1, 1, proto.CodeOK},
		{"again", 1, 1, proto.CodeOK},
		{"with another index", 2, 1, proto.CodeBusy},
		{"one left out", 3, 2, proto.CodeBusy},
		{"the index of another", 1, 2, proto.CodeBusy},
		{"the second", 2, 2, proto.CodeOK},
	} {
		if r := b.apply(EncodePeer(tt.index, proto.PeerID{tt.peer})); r.Code != tt.want {
			t.Errorf("%s: %+v", tt.name, r)
		}
	}
}

func TestChains(t *testing.T) {
	b := newBench(t)
	b.apply(EncodePeer(1, proto.PeerID{1}))
	n := func(boot, counter uint64) proto.Seq { return proto.Seq{Boot: boot, Counter: counter} }
	for _, tt := range []struct {
		name         string
		number, prev proto.Seq
		skip         bool
		code         proto.Code
		duplicate    bool
	}{
		{"the first", n(1, 1), n(0, 0), false, proto.CodeOK, false},
		{"again", n(1, 1), n(0, 0), false, proto.CodeOK, true},
		{"one is missing", n(1, 3), n(1, 2), false, proto.CodeBusy, false},
		{"the missing one is skipped", n(1, 2), n(1, 1), true, proto.CodeOK, false},
		{"skipped again", n(1, 2), n(1, 1), true, proto.CodeOK, true},
		{"it comes after all", n(1, 2), n(1, 1), false, proto.CodeOK, true},
		{"the next one", n(1, 3), n(1, 2), false, proto.CodeOK, false},
		{"a later one is skipped", n(1, 9), n(1, 8), true, proto.CodeBusy, false},
		{"the origin restarted", n(2, 1), n(1, 3), false, proto.CodeOK, false},
	} {
		waiting := b.info().Waiting
		var r Result
		if tt.skip {
			r = b.apply(AppendSkip(nil, &Skip{Box: 1, Origin: 1, Chain: proto.High, Number: tt.number, Prev: tt.prev, Code: proto.CodeDenied}))
		} else {
			r = b.send(note{origin: 1, chain: proto.High, number: tt.number, prev: tt.prev})
		}
		taken := b.info().Waiting - waiting
		if r.Code != tt.code || r.Duplicate != tt.duplicate || (taken == 1) != (r.Code == proto.CodeOK && !r.Duplicate && !tt.skip) {
			t.Errorf("%s: %+v, %d taken (I22)", tt.name, r, taken)
		}
	}
	for why, rec := range map[proto.Code][]byte{
		proto.CodeNoHandler: AppendSkip(nil, &Skip{Box: 9, Origin: 1, Chain: 1, Number: n(1, 1)}),
		proto.CodeBusy:      AppendSkip(nil, &Skip{Box: 1, Origin: 9, Chain: 1, Number: n(1, 1)}),
	} {
		if r := b.apply(rec); r.Code != why {
			t.Errorf("%+v, want %v", r, why)
		}
	}
}

// TestExtensionsAreBounded extends some deliveries again and again, also to earlier ends: what
// waits for their ends stays small, and their leases end when the last extension says.
func TestExtensionsAreBounded(t *testing.T) {
	const mails = 10
	for _, tt := range []struct {
		name  string
		delay func(i int) time.Duration // of the extension i
		ticks bool
		last  time.Duration
	}{
		{"later", func(i int) time.Duration { return time.Minute + time.Duration(i)*time.Millisecond }, false, 2 * time.Minute},
		{"earlier", func(i int) time.Duration { return 10*time.Minute - time.Duration(i)*time.Millisecond }, false, time.Second},
		{"later and earlier", func(i int) time.Duration { return time.Duration(i%2) * time.Hour }, false, 40 * time.Second},
		{"to the same end after each timer", func(i int) time.Duration { return time.Duration(i%2) * MaxDelay }, true, MaxLease},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.apply(EncodeSub(1, 0, &SubSettings{Lease: MaxLease}, Start{}))
			for range mails {
				b.mustSend(note{ttl: 48 * time.Hour})
			}
			x := b.attach(1, 0)
			held := b.deliver(x, mails)
			extend := func(d time.Duration) {
				for _, h := range held {
					if code := b.settle(Settlement{Handle: h.Handle, Op: Extend, Delay: d}); code != proto.CodeOK {
						t.Fatal(code)
					}
				}
			}
			for i := range 100_000 / mails {
				extend(tt.delay(i))
				if n := len(b.s.lapses.list); n > 1024 {
					t.Fatalf("%d timers of %d deliveries", n, mails)
				}
				if tt.ticks && i%2 == 1 {
					b.wait(0)
				}
			}
			extend(tt.last)
			b.wait(tt.last - time.Millisecond)
			if x.held != mails {
				t.Error("a lease ended early")
			}
			if b.wait(time.Millisecond); x.held != 0 {
				t.Error("a lease did not end")
			}
		})
	}
}
