package box

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// The list of mails is walked backward as it is forward.
func TestMailsBackward(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var l mailList
		var seqs []uint64
		for seq := uint64(1); len(seqs) < 300; seq += 1 + rng.Uint64N(1<<rng.UintN(9)) {
			l.push(seq, mail{accepted: uint32(seq)})
			seqs = append(seqs, seq)
		}
		seqs = slices.DeleteFunc(seqs, func(seq uint64) bool {
			gone := rng.IntN(3) == 0
			if gone {
				l.remove(seq)
			}
			return gone
		})
		for at := uint64(0); at < seqs[len(seqs)-1]+200; at++ {
			i, exact := slices.BinarySearch(seqs, at)
			if !exact {
				i--
			}
			seq, m := l.prev(at)
			if m == nil && i >= 0 || m != nil && (i < 0 || seq != seqs[i] || m.accepted != uint32(seq)) {
				t.Fatalf("before %d there is %d, want %v", at, seq, seqs[max(i, 0)])
			}
		}
	}
	if _, m := new(mailList).prev(7); m != nil {
		t.Error("an empty list has a mail")
	}
}

// kept returns the mails that a box keeps with their states.
func (b *bench) kept(id BoxID, from uint64) (all []string) {
	for i := range b.s.Kept(id, from) {
		all = append(all, fmt.Sprintf("%d %v", i.Seq, i.State))
	}
	return all
}

// A box shows all that it keeps, the newest first: a topic also what was read, a mailbox its
// dead letters.
func TestKept(t *testing.T) {
	b := newBench(t)
	b.topic(BoxSettings{}, SubSettings{}, SubSettings{Filter: "us.>"})
	for _, s := range []string{"eu.a", "us.b", "eu.c"} {
		b.publish(s)
	}
	d := b.want(b.attach(2, 1), 1, 2, 3)
	for _, x := range d[:2] {
		b.settle(Settlement{Box: 2, Sub: 1, Handle: x.Handle, Op: Ack})
	}
	if got := b.kept(2, 0); !slices.Equal(got, []string{"3 LEASED", "2 WAITING", "1 DONE"}) {
		t.Errorf("%q", got)
	}
	if got := b.kept(2, 2); !slices.Equal(got, []string{"2 WAITING", "1 DONE"}) {
		t.Errorf("from 2: %q", got)
	}
	for range 4 {
		b.mustSend(note{})
	}
	d = b.want(b.attach(1, 0), 1, 2, 3, 4)
	b.settle(Settlement{Box: 1, Handle: d[0].Handle, Op: Final})
	b.settle(Settlement{Box: 1, Handle: d[1].Handle, Op: Ack})
	b.settle(Settlement{Box: 1, Handle: d[3].Handle, Op: Final})
	for from, want := range map[uint64][]string{0: {"4 DEAD", "3 LEASED", "1 DEAD"}, 3: {"3 LEASED", "1 DEAD"}, 2: {"1 DEAD"}} {
		if got := b.kept(1, from); !slices.Equal(got, want) {
			t.Errorf("from %d: %q", from, got)
		}
	}
	for range b.s.Kept(1, 0) {
		break
	}
	if got := b.kept(9, 0); got != nil {
		t.Errorf("no box: %q", got)
	}
}
