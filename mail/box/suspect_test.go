package box

import (
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// TestPoisonDiesAlone checks S16: of the mails that a reader was leased together, the one
// that kills each of its readers is the only dead letter. A mail that was leased with it
// spends at most two deliveries.
func TestPoisonDiesAlone(t *testing.T) {
	const mails, poison = 24, 3
	for _, tt := range []struct {
		name     string
		sessions int // of the program that dies
		leaves   bool
		settings SubSettings
		keys     []string // in turn
	}{
		{"one session breaks", 1, false, SubSettings{}, []string{""}},
		{"one session is exclusive", 1, false, SubSettings{Mode: Exclusive}, []string{""}},
		{"one program has four sessions", 4, false, SubSettings{}, []string{""}},
		{"one program has four sessions and lanes", 4, false, SubSettings{}, []string{"a", "b", "", "c"}},
		{"lanes are leased in batches", 1, false, SubSettings{KeyBatch: 4}, []string{"a", "b", "", "c"}},
		{"leases lapse", 1, true, SubSettings{}, []string{""}},
		{"leases of four readers lapse", 4, true, SubSettings{}, []string{"a", "b", "", "c"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.apply(EncodeSub(1, 0, &tt.settings, Start{}))
			for i := range mails {
				b.mustSend(note{key: tt.keys[i%len(tt.keys)]})
			}
			given := map[uint64]int{}
			for range 100 {
				if b.info().Waiting == 0 {
					break
				}
				b.runReader(tt.sessions, tt.leaves, poison, given)
				b.wait(time.Minute)
			}
			var dead []uint64
			for d := range b.s.DeadLetters(1, 0, 0) {
				dead = append(dead, d.Seq)
			}
			if !slices.Equal(dead, []uint64{poison}) || b.info().EndedAs(Done) != mails-1 {
				t.Errorf("dead %v, done %d: %+v", dead, b.info().EndedAs(Done), b.info())
			}
			for seq, n := range given {
				if seq != poison && n > 3 {
					t.Errorf("mail %d was given %d times", seq, n)
				}
			}
		})
	}
}

// runReader is one life of a program that reads with some sessions: it acknowledges what it
// is given until that is all, or the poison, which kills it before the rest.
func (b *bench) runReader(sessions int, leaves bool, poison uint64, given map[uint64]int) {
	b.Helper()
	readers := make([]*Session, sessions)
	for i := range readers {
		readers[i] = b.attach(1, 0)
	}
	for {
		var held []Delivery
		for _, x := range readers {
			held = append(held, b.deliver(x, 8)...)
			if leaves {
				b.s.Leave(x, &b.out)
			}
		}
		died := len(held) == 0
		for _, d := range held {
			given[d.Handle.Seq]++
			died = died || d.Handle.Seq == poison
		}
		for _, d := range held {
			if !died {
				b.must(Ack, d.Handle)
			}
		}
		for _, x := range readers {
			if died && !leaves {
				b.out.Reset()
				b.s.Detach(b.now, x, len(held) > 0, &b.out)
				b.commit()
			}
		}
		if died || leaves {
			return
		}
	}
}

// broken has a reader lease all that waits and break.
func (b *bench) broken(seq ...uint64) {
	b.Helper()
	x := b.attach(1, 0)
	b.want(x, seq...)
	b.out.Reset()
	b.s.Detach(b.now, x, true, &b.out)
	b.commit()
}

// woken fails unless a session is to be served.
func (b *bench) woken(x *Session) {
	b.Helper()
	if !x.waking {
		b.Error("the session is not woken")
	}
}

// TestASuspectIsLeasedAlone checks what a session is given with a suspect (S16).
func TestASuspectIsLeasedAlone(t *testing.T) {
	b := newBench(t)
	b.mustSend(note{})
	b.mustSend(note{})
	b.broken(1, 2)
	b.mustSend(note{})
	x, y := b.attach(1, 0), b.attach(1, 0)
	first := b.want(x, 1)[0]
	b.want(x) // and nothing with it, not even an urgent one
	b.mustSend(note{class: proto.Critical})
	b.want(x)
	rest := b.deliver(y, 1) // another session goes on
	if !slices.Equal(seqs(rest), []uint64{4}) {
		t.Fatalf("delivered %v", seqs(rest))
	}
	b.want(y) // the next one is a suspect: y gets it when it holds nothing
	b.must(Ack, rest[0].Handle)
	b.woken(y)
	second := b.want(y, 2)[0]
	b.must(Ack, first.Handle)
	b.woken(x)
	b.want(x, 3)
	b.must(Ack, second.Handle)
}

// TestALeasedSuspectHoldsUpNobody checks that sessions which stopped before a suspect are
// served when another one has it.
func TestALeasedSuspectHoldsUpNobody(t *testing.T) {
	b := newBench(t)
	b.mustSend(note{})
	b.broken(1)
	b.mustSend(note{class: proto.Critical})
	x := b.attach(1, 0)
	if got := b.deliver(x, 1); !slices.Equal(seqs(got), []uint64{2}) {
		t.Fatalf("delivered %v", seqs(got))
	}
	b.mustSend(note{})
	b.want(x)
	y := b.attach(1, 0)
	b.want(y, 1)
	b.woken(x)
	b.want(x, 3)
}

// TestASuspectWaitsAMinute checks that mail which is held for long neither keeps a suspect
// from its session nor, if it is one, the session from other mail.
func TestASuspectWaitsAMinute(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeSub(1, 0, &SubSettings{Lease: 10 * time.Minute}, Start{}))
	b.mustSend(note{})
	b.broken(1)
	b.mustSend(note{class: proto.Critical})
	x := b.attach(1, 0)
	if got := b.deliver(x, 1); !slices.Equal(seqs(got), []uint64{2}) {
		t.Fatalf("delivered %v", seqs(got))
	}
	b.want(x)
	b.wait(suspectAlone - time.Millisecond)
	b.want(x)
	b.wait(time.Millisecond)
	b.woken(x)
	b.want(x, 1)
	b.mustSend(note{})
	b.wait(suspectAlone - time.Millisecond)
	b.want(x)
	b.wait(time.Millisecond)
	b.woken(x)
	b.want(x, 3)
	b.mustSend(note{})
	b.want(x, 4)
}

// TestAnExpiredSuspectHoldsUpNobody checks that a session which stopped before a suspect is
// served as soon as the end of that is decided.
func TestAnExpiredSuspectHoldsUpNobody(t *testing.T) {
	b := newBench(t)
	b.mustSend(note{ttl: 10 * time.Second})
	b.broken(1)
	b.mustSend(note{class: proto.Critical})
	x := b.attach(1, 0)
	b.deliver(x, 1)
	b.mustSend(note{})
	b.want(x)
	b.now.Wall, b.now.Mono = b.now.Wall+11_000, b.now.Mono+11_000
	b.out.Reset()
	b.s.sweep(b.now, &b.out)
	b.woken(x)
	b.want(x, 3)
}

// TestWhatClearsASuspect checks which ends of a delivery make a suspect of a mail: the last
// one counts.
func TestWhatClearsASuspect(t *testing.T) {
	for _, tt := range []struct {
		name  string
		end   func(b *bench, x *Session, h Handle)
		clear bool
	}{
		{"a reader failed it", func(b *bench, _ *Session, h Handle) { b.must(Nack, h) }, true},
		{"a reader deferred it", func(b *bench, _ *Session, h Handle) { b.must(Defer, h) }, true},
		{"a reader returned it", func(b *bench, _ *Session, h Handle) { b.must(Return, h) }, false},
		{"its session was closed", func(b *bench, x *Session, _ Handle) { b.s.Detach(b.now, x, false, &b.out) }, false},
		{"its session broke", func(b *bench, x *Session, _ Handle) {
			b.out.Reset()
			b.s.Detach(b.now, x, true, &b.out)
			b.commit()
		}, false},
		{"its lease lapsed", func(b *bench, x *Session, _ Handle) { b.wait(time.Minute) }, false},
		{"the home restarted", func(b *bench, _ *Session, _ Handle) { b.restart() }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.mustSend(note{})
			b.broken(1)
			x := b.attach(1, 0)
			tt.end(b, x, b.want(x, 1)[0].Handle)
			b.mustSend(note{})
			b.wait(10 * time.Second) // the backoff
			if tt.clear {
				b.want(b.attach(1, 0), 1, 2)
			} else {
				b.want(b.attach(1, 0), 1)
			}
		})
	}
}

// TestTwoDeaths checks that of the mails that were leased at two deaths one is leased at a
// time, whatever else there is to lease: a program may have several sessions.
func TestTwoDeaths(t *testing.T) {
	b := newBench(t)
	b.mustSend(note{key: "k"})
	b.mustSend(note{})
	b.mustSend(note{key: "k"})
	b.broken(1, 2)
	x, y := b.attach(1, 0), b.attach(1, 0)
	b.want(x, 1)
	b.want(y, 2)
	b.out.Reset()
	b.s.Detach(b.now, x, true, &b.out)
	b.s.Detach(b.now, y, true, &b.out)
	b.commit()
	b.mustSend(note{})
	x, y, z := b.attach(1, 0), b.attach(1, 0), b.attach(1, 0)
	first := b.want(x, 1)[0].Handle
	b.want(y, 4) // it passes 2
	b.must(Ack, first)
	b.woken(z)
	b.want(z, 2)
	b.want(x, 3)
}

// TestEachLeaseIsABatch checks that what a reader leased by an earlier call keeps no suspect
// from it, and a suspect of an earlier call no mail.
func TestEachLeaseIsABatch(t *testing.T) {
	b := newBench(t)
	b.mustSend(note{})
	b.broken(1)
	for range 3 {
		b.mustSend(note{})
	}
	lease := func(n int, want ...uint64) {
		t.Helper()
		x := b.attach(1, 0)
		if got := b.deliver(x, n); !slices.Equal(seqs(got), want) {
			t.Fatalf("leased %v, want %v", seqs(got), want)
		}
		b.s.Leave(x, &b.out)
	}
	lease(9, 1)
	lease(2, 2, 3)
	b.must(Return, Handle{1, 1, 2})
	lease(9, 1)
	lease(9, 4)
}

// TestKeyBatchesAndSuspects checks that a batch of a lane ends before a suspect, and that a
// suspect begins none.
func TestKeyBatchesAndSuspects(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeSub(1, 0, &SubSettings{KeyBatch: 4}, Start{}))
	for i := range 4 {
		b.mustSend(note{key: "k", class: []proto.Class{2: proto.Critical, 3: 0}[i]})
	}
	x := b.attach(1, 0)
	got := b.want(x, 1, 2, 3, 4)
	b.wait(10 * time.Second) // the lease of 3 ends
	b.must(Return, got[0].Handle)
	b.wait(10 * time.Second)
	got = b.want(x, 1, 2)
	b.must(Ack, got[0].Handle)
	b.must(Ack, got[1].Handle)
	b.must(Ack, b.want(x, 3)[0].Handle)
	b.want(x, 4)
}

// TestManyRepeatedSuspects has two sessions go through thousands of repeated suspects: they are
// leased one at a time and in order, and each is moved a few times at most, not once for each end.
func TestManyRepeatedSuspects(t *testing.T) {
	const mails = 5000
	b := newBench(t)
	for seq := range uint64(mails) {
		b.mustSend(note{})
		for n := range uint8(2) {
			b.apply(appendNack(nil, 1, 0, &nack{seq: seq + 1, abandons: n + 1, cause: CauseAbandoned, at: start, due: start}))
		}
	}
	x, y := b.attach(1, 0), b.attach(1, 0)
	moved := 0
	ask := func(x *Session, want ...uint64) []Delivery {
		before := x.sub.candidates()
		got := b.want(x, want...)
		moved += max(before-x.sub.candidates(), x.sub.candidates()-before)
		return got
	}
	for seq := range uint64(mails) {
		h := ask(x, seq+1)[0].Handle
		ask(y)
		b.must(Ack, h)
		b.woken(y)
	}
	if moved > 4*mails {
		t.Errorf("%d candidates were moved for %d mails", moved, mails)
	}
}
