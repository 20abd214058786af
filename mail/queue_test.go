package mail

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// TestQueuedWorkKeepsItsOrder queues sends and settlements without waiting for any of them,
// and reads them with a buffer that is used again.
func TestQueuedWorkKeepsItsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, each = 50, 7
		f := newFixture(t, Config{})
		f.mailbox("b")
		var queued []*Sending
		for i := range calls {
			var items []Item
			for j := range each {
				items = append(items, Item{Box: "b", Letter: f.letter(fmt.Sprint(i*each+j), nil)})
			}
			s, err := f.QueueSend(items, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, it := range items {
				clear(it.Letter) // they were copied
			}
			queued = append(queued, s)
		}
		for i, s := range slices.Backward(queued) {
			for j, r := range must(s.Wait(t.Context()))(t) {
				if r.Code != proto.CodeOK || r.Seq != uint64(i*each+j+1) {
					t.Fatalf("mail %d: %+v", i*each+j, r)
				}
			}
		}
		s, err := f.Read(t.Context(), Reading{Box: "b", Credit: 31})
		if err != nil {
			t.Fatal(err)
		}
		var given []Delivery
		var buf []byte
		var settled []*Settling
		for next := 0; next < calls*each; {
			given, buf, err = s.NextInto(t.Context(), 10, given[:0], buf[:0])
			if err != nil || len(given) > 10 {
				t.Fatalf("%d deliveries, %v", len(given), err)
			}
			var acks []Settlement
			for _, d := range given {
				l, err := proto.ParseLetter(d.Letter)
				if want := fmt.Sprint(next); err != nil || string(l.Body) != want {
					t.Fatalf("%q, %v; want %s", l.Body, err, want)
				}
				acks = append(acks, Settlement{Handle: d.Handle, Op: box.Ack})
				next++
			}
			q, err := f.QueueSettle("b", "", acks)
			if err != nil {
				t.Fatal(err)
			}
			settled = append(settled, q)
		}
		for _, q := range settled {
			for _, r := range must(q.Wait(t.Context()))(t) {
				if r.Code != proto.CodeOK {
					t.Errorf("an acknowledgment: %v", r.Code)
				}
			}
		}
		if q, err := f.QueueSettle("none", "", nil); err != nil {
			t.Error(err)
		} else if _, err := q.Wait(t.Context()); err == nil {
			t.Error("settling in a box that does not exist had no error")
		}
	})
}

// TestNextIsBounded checks that one call of Next reads no more than maxNext of large mails.
func TestNextIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{})
		f.mailbox("b")
		large := string(bytes.Repeat([]byte("x"), proto.MaxInlineBody))
		for range 10 {
			f.send("b", large)
		}
		given := must(f.Lease(t.Context(), Reading{Box: "b", Credit: 10}, 0))(t)
		if len(given) < 3 || len(given) > 4 {
			t.Errorf("%d mails of %d bytes", len(given), len(large))
		}
		if again := must(f.Lease(t.Context(), Reading{Box: "b", Reader: "other", Credit: 2}, 0))(t); len(again) != 2 {
			t.Errorf("the rest was not given back: %d", len(again))
		}
	})
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
