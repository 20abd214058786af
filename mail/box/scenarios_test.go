package box

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// S08: a reader is killed between the fetch and the ack. Its mail is there at once, for the
// price of an abandon, with the same number; the one that it acknowledged is not.
func TestAKilledReaderGivesItsMailBack(t *testing.T) {
	b := newBench(t)
	for range 3 {
		b.mustSend(note{})
	}
	x := b.attach(1, 0)
	list := b.want(x, 1, 2, 3)
	b.must(Ack, list[1].Handle)
	b.out.Reset()
	b.s.Detach(b.now, x, true, &b.out)
	b.commit()
	for m := range b.s.Mails(1, 0, 0) {
		if m.Attempts != 0 || m.Abandons != 1 {
			t.Errorf("%+v", m)
		}
	}
	x = b.attach(1, 0)
	for _, seq := range []uint64{1, 3} {
		d := b.deliver(x, 1)[0]
		if d.Handle.Seq != seq || d.Attempt != 1 || !d.Redelivered || d.Place != list[seq-1].Place || d.Handle.N <= list[2].Handle.N {
			t.Errorf("%+v, want mail %d again", d, seq)
		}
		b.must(Ack, d.Handle)
	}
	b.want(x)
}

// TestLowIsServedUnderAFlood checks S14: while high mail comes faster than it is read, one of
// any hundred deliveries is low, also in lanes of keys, however many are leased at once.
func TestLowIsServedUnderAFlood(t *testing.T) {
	const rounds, window = 40, 100
	for _, tt := range []struct {
		name  string
		flood []proto.Class
		keys  bool
		step  int // mails that are leased at once
	}{
		{"critical", []proto.Class{proto.Critical}, false, 1},
		{"high", []proto.Class{proto.High}, false, 100},
		{"all classes above it", []proto.Class{proto.Critical, proto.High, proto.Normal}, false, 7},
		{"critical, in lanes", []proto.Class{proto.Critical}, true, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, Mails: 1 << 20}))
			x, sent := b.attach(1, 0), 0
			send := func(class proto.Class) {
				n := note{class: class}
				if tt.keys {
					n.key = class.Name() + string(rune('a'+sent%26)) + string(rune('a'+sent/26%26)) + string(rune('a'+sent/676%26))
				}
				b.mustSend(n)
				sent++
			}
			for range rounds + 1 {
				send(proto.Low)
			}
			var got []int
			for len(got) < rounds*window {
				for range tt.step {
					for _, class := range tt.flood {
						send(class)
					}
				}
				for _, d := range b.deliver(x, tt.step) {
					got = append(got, b.s.classOf(1, d))
					b.must(Ack, d.Handle)
				}
			}
			since, low := 0, 0
			for i, class := range got {
				if since++; class == fair.Low {
					since, low = 0, low+1
				}
				if since >= window && low <= rounds {
					t.Fatalf("delivery %d is the %d-th without a low one", i, since)
				}
			}
			if low < rounds {
				t.Errorf("%d low mails of %d deliveries", low, len(got))
			}
			t.Logf("counted: %d deliveries, %d of them low", len(got), low)
		})
	}
}

// TestAFailingHeadBlocksItsKeyAlone checks S15: while the first mail of a key fails again and
// again, the other keys go on; those behind it are kept, in order, also by a home that starts
// again from the records or from a checkpoint; and its dead letter lets them go on.
func TestAFailingHeadBlocksItsKeyAlone(t *testing.T) {
	const keys, each = 5, 4
	for _, image := range []bool{false, true} {
		b := newBench(t)
		for range each {
			for k := range keys {
				b.mustSend(note{key: string(rune('a' + k)), ttl: 24 * time.Hour})
			}
		}
		done := map[uint64][]uint64{} // what was acknowledged, by lane
		lane := func(seq uint64) uint64 { return (seq - 1) % keys }
		failures := 0
		for round := 0; b.info().Waiting > 0; round++ {
			if round > 200 {
				t.Fatalf("%d mails wait after %d rounds", b.info().Waiting, round)
			}
			x := b.attach(1, 0)
			for _, d := range b.deliver(x, 100) {
				if d.Handle.Seq == 1 { // the head of the first key never succeeds
					failures++
					b.must(Nack, d.Handle)
					continue
				}
				b.must(Ack, d.Handle)
				done[lane(d.Handle.Seq)] = append(done[lane(d.Handle.Seq)], d.Handle.Seq)
			}
			if n := len(done[0]); failures < 3 && n > 0 {
				t.Fatalf("%d mails behind the head were delivered after %d failures", n, failures)
			} else if want := min(round+1, each); failures < 3 && len(done[1]) < want {
				t.Fatalf("round %d: %d mails of another key", round, len(done[1]))
			}
			if image { // another home, with a checkpoint
				s, err := Load(bytes.NewReader(save(t, b.s)), chainNotes{})
				if err != nil {
					t.Fatal(err)
				}
				boot := b.s.Boot() + 1
				b.s = s
				b.out.Reset()
				b.s.Start(b.now, boot, &b.out)
				b.commit()
			} else {
				b.restart()
			}
			b.wait(2 * time.Second)
		}
		for k := range uint64(keys) {
			var want []uint64
			for i := range uint64(each) {
				if seq := i*keys + k + 1; seq != 1 {
					want = append(want, seq)
				}
			}
			if !slices.Equal(done[k], want) {
				t.Errorf("key %d: %v, want %v", k, done[k], want)
			}
		}
		i, _ := b.s.SubInfo(1, 0)
		if failures != 3 || i.Dead != 1 || b.info().EndedAs(Done) != keys*each-1 || b.info().EndedAs(Dead) != 1 {
			t.Errorf("%d failures, %+v, %+v", failures, i, b.info())
		}
		t.Logf("counted: %d mails of %d keys, %d failures, 1 dead letter", keys*each, keys, failures)
	}
}

// TestManyDeadLettersAreBounded checks S17: of 100 000 mails that fail for good the subscription
// keeps no more than it is set to, every other one is handed to the archive once, oldest first,
// and none is forgotten before the archive has it.
func TestManyDeadLettersAreBounded(t *testing.T) {
	const all, kept, part = 100_000, 1000, 500
	b := newBench(t)
	b.apply(EncodeSub(1, 0, &SubSettings{Dead: kept}, Start{}))
	x, bounced, next := b.attach(1, 0), 0, uint64(1)
	b.s.AddCredit(x, part, &b.out)
	archive := func() {
		b.now.Wall, b.now.Mono = b.now.Wall+cleanPeriod.Milliseconds(), b.now.Mono+cleanPeriod.Milliseconds()
		b.out.Reset()
		b.s.Tick(b.now, &b.out)
		out := b.out
		for _, a := range out.Archive {
			var seqs []uint64
			for _, d := range a.Letters {
				if d.Seq != next {
					t.Fatalf("mail %d is archived, want %d", d.Seq, next)
				}
				next++
				seqs = append(seqs, d.Seq)
			}
			if i, _ := b.s.SubInfo(1, 0); i.Dead < kept+len(seqs) {
				t.Fatalf("%d dead letters when %d are archived", i.Dead, len(seqs))
			}
			b.apply(EncodeArchived(1, 0, seqs))
		}
	}
	for sent := 0; sent < all; sent += part {
		for range part {
			b.mustSend(note{ttl: 24 * time.Hour})
		}
		var what []Settlement
		for _, d := range b.deliver(x, part) {
			what = append(what, Settlement{Box: 1, Handle: d.Handle, Op: Final})
		}
		b.out.Reset()
		b.s.Settle(b.now, what, &b.out)
		b.commit()
		bounced += len(b.out.Bounces)
		archive()
		b.log = b.log[:0] // the state is enough
	}
	for range 10 {
		archive()
	}
	i, _ := b.s.SubInfo(1, 0)
	if i.Dead != kept || next-1 != all-kept || bounced != all || b.info().EndedAs(Dead) != all || b.info().Waiting != 0 {
		t.Errorf("%d dead letters are kept, %d were archived, %d bounced, %+v", i.Dead, next-1, bounced, b.info())
	}
	t.Logf("counted: %d dead letters, %d kept, %d archived, %d bounced", all, i.Dead, next-1, bounced)
}
