package mail

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{})
		f.mailbox("b")
		lease := func(reader string, n int, wait time.Duration) (bodies []string, got []Delivery) {
			t.Helper()
			got, err := f.Lease(t.Context(), Reading{Box: "b", Reader: reader, Credit: n}, wait)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range got {
				l, _ := proto.ParseLetter(d.Letter)
				bodies = append(bodies, string(l.Body))
			}
			return bodies, got
		}
		before := time.Now()
		if got, _ := lease("r", 1, 0); got != nil || time.Since(before) != 0 {
			t.Errorf("an empty box: %q after %v", got, time.Since(before))
		}
		if got, _ := lease("r", 1, time.Minute); got != nil || time.Since(before) != time.Minute {
			t.Errorf("an empty box: %q after %v", got, time.Since(before))
		}
		f.send("b", "1", "2", "3")
		first, given := lease("r", 2, 0)
		second, _ := lease("r", 5, 0)
		if !slices.Equal(first, []string{"1", "2"}) || !slices.Equal(second, []string{"3"}) {
			t.Errorf("leased %q, then %q", first, second)
		}
		f.settle("b", given[0], box.Ack, proto.CodeOK)
		var third []string
		for len(third) < 2 { // when they have lapsed
			bodies, given := lease("s", 9, time.Minute)
			for i, d := range given {
				f.settle("b", d, box.Ack, proto.CodeOK)
				third = append(third, bodies[i])
			}
		}
		if slices.Sort(third); !slices.Equal(third, []string{"2", "3"}) {
			t.Errorf("leased %q", third)
		}
		late := f.letter("4", nil)
		go func() {
			time.Sleep(time.Second) // in the bubble
			if sent, err := f.Send(t.Context(), []Item{{Box: "b", Letter: late}}, false); err != nil || sent[0].Code != proto.CodeOK {
				t.Errorf("%+v, %v", sent, err)
			}
		}()
		if got, _ := lease("s", 9, time.Minute); !slices.Equal(got, []string{"4"}) {
			t.Errorf("leased %q", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if got, err := f.Lease(ctx, Reading{Box: "b", Credit: 1}, 20*time.Second); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that went away: %v, %v", got, err)
		}
		if _, err := f.Lease(t.Context(), Reading{Box: "none", Credit: 1}, 0); !errors.Is(err, box.ErrNotFound) {
			t.Errorf("no such box: %v", err)
		}
	})
}

// TestAReaderLeasesTheRestOfLargeMail checks that what one lease had to give back, because it
// was too large together, is there at once for the next one of the same reader.
func TestAReaderLeasesTheRestOfLargeMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{})
		f.mailbox("b")
		const count = 20
		for range count {
			f.send("b", strings.Repeat("x", 200<<10))
		}
		var seqs []uint64
		for len(seqs) < count {
			given, err := f.Lease(t.Context(), Reading{Box: "b", Reader: "r", Credit: 100}, 0)
			if err != nil || len(given) == 0 {
				t.Fatalf("after %d mails: %d, %v", len(seqs), len(given), err)
			}
			for _, d := range given {
				seqs = append(seqs, d.Handle.Seq)
				if d.Attempt != 1 {
					t.Errorf("mail %d: attempt %d", d.Handle.Seq, d.Attempt)
				}
			}
		}
		if !slices.IsSorted(seqs) || len(slices.Compact(seqs)) != count {
			t.Errorf("leased %d", seqs)
		}
	})
}

// I23: an acknowledgement of a delivery of a box that was removed ends no mail of the box that has its
// name now.
func TestHandleOfARemovedBox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{})
		f.mailbox("agent:ceo")
		f.send("agent:ceo", "of the first box")
		old := f.first("agent:ceo")
		if err := f.RemoveBox(t.Context(), "agent:ceo"); err != nil {
			t.Fatal(err)
		}
		f.mailbox("agent:ceo")
		f.send("agent:ceo", "of the second box")
		f.restart()
		r, err := f.Settle(t.Context(), "agent:ceo", "", []Settlement{{Handle: old.Handle, Op: box.Ack}})
		if err != nil || r[0].Code == proto.CodeOK {
			t.Errorf("acknowledged: %+v, %v", r, err)
		}
		if got := f.all("agent:ceo"); len(got) != 1 {
			t.Errorf("%q was never delivered: got %q", "of the second box", got)
		}
	})
}
