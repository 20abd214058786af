package box

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// done has a reader take some mails and acknowledge them in this order.
func (b *bench) done(x *Session, seqs ...uint64) {
	b.Helper()
	list := b.deliver(x, len(seqs))
	for _, seq := range seqs {
		i := slices.IndexFunc(list, func(d Delivery) bool { return d.Handle.Seq == seq })
		if code := b.settle(Settlement{Box: x.sub.box.id, Handle: list[i].Handle, Op: Ack}); code != proto.CodeOK {
			b.Fatal(code)
		}
	}
}

func (b *bench) wantKept(id BoxID, want ...string) {
	b.Helper()
	if got := b.kept(id, 0); !slices.Equal(got, want) {
		b.Errorf("box %d keeps %q, want %q", id, got, want)
	}
}

// TestDoneMailIsKept keeps what is done in a mailbox until it is too old, and gives it nobody
// again.
func TestDoneMailIsKept(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, Keep: 24 * time.Hour}))
	b.mustSend(note{key: "k"})
	b.mustSend(note{})
	b.mustSend(note{key: "k"})
	b.wait(agePeriod)
	x := b.attach(1, 0)
	b.done(x, 2, 1)
	b.wantKept(1, "3 WAITING", "2 DONE", "1 DONE")
	if got, ok := b.s.Record(1, 1); !ok || got.Seq != 1 {
		t.Errorf("the record of what is kept: %+v, %v", got, ok)
	}
	if i := b.info(); i.Waiting != 1 || b.s.bytes != i.Bytes {
		t.Errorf("what is kept counts as waiting: %+v, %d bytes", i, b.s.bytes)
	}
	b.want(x, 3)
	b.restart()
	b.wantKept(1, "3 WAITING", "2 DONE", "1 DONE")
	b.done(b.attach(1, 0), 3)
	b.wait(24*time.Hour - 2*agePeriod)
	b.wantKept(1, "3 DONE", "2 DONE", "1 DONE")
	b.wait(3 * agePeriod)
	b.wantKept(1)
	if b.s.kept != 0 {
		t.Errorf("nothing is kept, in %d bytes", b.s.kept)
	}
	if i := b.info(); i.EndedAs(Done) != 3 {
		t.Errorf("%d are done", i.EndedAs(Done))
	}
}

// TestNoTimeForgetsKeptMail checks that only a time that is believed makes mail too old, and
// that a mail that waited for longer than it is kept is kept from its end on.
func TestNoTimeForgetsKeptMail(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, Keep: time.Hour}))
	b.mustSend(note{ttl: 24 * time.Hour})
	b.wait(3 * time.Hour)
	b.done(b.attach(1, 0), 1)
	b.now.Doubted = true
	b.wait(2 * time.Hour)
	b.wantKept(1, "1 DONE")
	b.now.Doubted = false
	b.wait(agePeriod)
	b.wantKept(1)
}

// TestMailDoneInDoubtIsKept checks that mail which is done while no time is believed, after the
// machine was off or while it runs, is kept from the next time on that is, also if the home is
// restarted before that.
func TestMailDoneInDoubtIsKept(t *testing.T) {
	for _, tt := range []struct {
		name  string
		doubt func(b *bench)
	}{
		{"the machine was off", func(b *bench) {
			b.now.Doubted, b.now.Wall = true, b.now.Wall+(48*time.Hour).Milliseconds()
			b.restart()
		}},
		{"the home runs on", func(b *bench) { b.now.Doubted = true; b.wait(48 * time.Hour) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, Keep: 24 * time.Hour}))
			b.mustSend(note{ttl: 7 * 24 * time.Hour})
			b.mustSend(note{ttl: 7 * 24 * time.Hour})
			b.wait(agePeriod)
			b.done(b.attach(1, 0), 1)
			tt.doubt(b)
			b.done(b.attach(1, 0), 2)
			b.wait(agePeriod)
			b.restart()
			b.wantKept(1, "2 DONE", "1 DONE")
			b.now.Doubted = false
			b.wait(agePeriod)
			b.wantKept(1, "2 DONE")
			b.wait(24*time.Hour - time.Second - agePeriod)
			b.wait(agePeriod)
			b.wantKept(1, "2 DONE")
			b.wait(agePeriod)
			b.wantKept(1)
		})
	}
}

// TestLimitsOfKeptMail goes through what bounds the mail that is kept.
func TestLimitsOfKeptMail(t *testing.T) {
	keeps := func(b *bench, id BoxID, mails uint32) {
		name := fmt.Sprint("agent:", id)
		if id == 1 {
			name = "agent:ceo"
		}
		b.apply(EncodeBox(id, &BoxSettings{Name: name, Kind: Mailbox, Keep: time.Hour, KeepMails: mails}))
	}
	t.Run("mails of a box", func(t *testing.T) {
		b := newBench(t)
		keeps(b, 1, 2)
		for range 4 {
			b.mustSend(note{})
		}
		b.done(b.attach(1, 0), 4, 2, 1, 3)
		b.wantKept(1, "4 DONE", "3 DONE")
		keeps(b, 1, 1)
		b.wantKept(1, "4 DONE")
		b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox}))
		b.wantKept(1)
	})
	t.Run("bytes of all boxes", func(t *testing.T) {
		b := newBench(t)
		keeps(b, 1, 0)
		keeps(b, 2, 0)
		size := int64(0)
		for id, n := range map[BoxID]int{1: 12, 2: 4} {
			for range n {
				b.mustSend(note{box: id})
			}
			size = b.s.boxes[id].bytes / int64(n)
		}
		b.apply(EncodeLimits(Limits{Kept: uint64(15*size + 1)}))
		b.done(b.attach(2, 0), 1, 2, 3, 4)
		x := b.attach(1, 0)
		for seq := range uint64(11) {
			b.done(x, seq+1)
		}
		if got := len(b.kept(1, 0)) + len(b.kept(2, 0)); got != 16 {
			t.Fatalf("%d mails are there", got)
		}
		b.done(x, 12)
		if n, other := b.s.boxes[1].kept.mails.count, b.s.boxes[2].kept.mails.count; n != 10 || other != 4 {
			t.Errorf("%d and %d mails are kept: the box that keeps the most must lose them", n, other)
		}
		b.apply(EncodeLimits(Limits{Kept: uint64(3 * size)}))
		if b.s.kept > 3*size || b.s.boxes[2].kept.mails.count == 0 {
			t.Errorf("%d bytes are kept, %d of a mail, with %d in the second box", b.s.kept, size, b.s.boxes[2].kept.mails.count)
		}
	})
	t.Run("a large body", func(t *testing.T) {
		b := newBench(t)
		keeps(b, 1, 0)
		b.mustSend(note{object: 'a'})
		b.done(b.attach(1, 0), 1)
		b.wantBodies("", "a")
		b.wantKept(1)
	})
	t.Run("a box that is removed", func(t *testing.T) {
		b := newBench(t)
		keeps(b, 1, 0)
		b.mustSend(note{})
		b.done(b.attach(1, 0), 1)
		b.apply(EncodeRemoveBox(1))
		if b.s.kept != 0 {
			t.Errorf("%d bytes are kept", b.s.kept)
		}
	})
}

// TestInsertedMails compares the list of mails with a map, when they come in any order.
func TestInsertedMails(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		var l mailList
		want := map[uint64]uint32{}
		for n := range uint32(400) {
			seq := 1 + rng.Uint64N(600)
			if _, there := want[seq]; there {
				l.remove(seq)
				delete(want, seq)
				continue
			}
			l.insert(seq, mail{accepted: n})
			want[seq] = n
		}
		got := map[uint64]uint32{}
		before := uint64(0)
		for seq, m := l.next(0); m != nil; seq, m = l.next(seq + 1) {
			if seq <= before {
				t.Fatalf("%d comes after %d", seq, before)
			}
			before, got[seq] = seq, m.accepted
		}
		if !maps.Equal(got, want) || l.count != len(want) {
			t.Fatalf("%d of %d mails are there", len(got), len(want))
		}
	}
}
