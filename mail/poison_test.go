package mail

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// TestPoisonDiesAlone checks S16 with a broker: readers die of one mail of many, whose
// neighbors are all acknowledged. The poison is the only dead letter, and its sender is told.
func TestPoisonDiesAlone(t *testing.T) {
	const mails, poison, credit = 60, "7", 16
	for _, tt := range []struct {
		name string
		read func(f *fixture, handle func(Delivery) bool)
	}{
		{"sessions break", func(f *fixture, handle func(Delivery) bool) {
			s := f.read("b", credit)
			defer s.Close(f.t.Context(), true)
			for {
				synctest.Wait() // the session has all that it is given at once
				ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
				got, err := s.Next(ctx, credit)
				cancel()
				if err != nil {
					return
				}
				for _, d := range got {
					if !handle(d) {
						return
					}
				}
			}
		}},
		{"leases lapse", func(f *fixture, handle func(Delivery) bool) {
			time.Sleep(30 * time.Second) // in the bubble: what lapsed is due
			got, err := f.Lease(f.t.Context(), Reading{Box: "b", Reader: "r", Credit: credit}, time.Minute)
			if err != nil {
				f.t.Fatal(err)
			}
			for _, d := range got {
				if !handle(d) {
					return
				}
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bounced := make(chan Bounce, mails)
				f := newFixture(t, Config{Bounced: func(_ context.Context, b Bounce) { bounced <- b }})
				f.mailbox("b")
				for i := range mails {
					f.send("b", fmt.Sprint(i))
				}
				given := map[string]int{}
				for f.info("b").Waiting > 0 {
					tt.read(f, func(d Delivery) bool {
						l, err := proto.ParseLetter(d.Letter)
						if err != nil {
							t.Fatal(err)
						}
						given[string(l.Body)]++
						if string(l.Body) == poison {
							return false
						}
						f.settle("b", d, box.Ack, proto.CodeOK)
						return f.info("b").Waiting > 0
					})
				}
				if i := f.info("b"); i.EndedAs(box.Done) != mails-1 || i.EndedAs(box.Dead) != 1 {
					t.Errorf("%+v", i)
				}
				l, err := proto.ParseLetter((<-bounced).Letter)
				if err != nil || len(bounced) > 0 || l.BounceOf.IsZero() {
					t.Errorf("%d more bounces, %v", len(bounced), err)
				}
				for body, n := range given {
					if body != poison && n > 2 {
						t.Errorf("mail %s was given %d times", body, n)
					}
				}
			})
		})
	}
}

// TestAPoolOutlivesItsPoison has readers that hold mail at the same time, of which each that
// is given the poison dies: what the others have is not touched, and all of it is done.
func TestAPoolOutlivesItsPoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const mails, poison, readers = 200, "50", 4
		f := newFixture(t, Config{})
		f.mailbox("b")
		for i := range mails {
			f.send("b", fmt.Sprint(i))
		}
		var sessions [readers]*Session
		for i := range sessions {
			sessions[i] = f.read("b", 8)
		}
		redelivered := 0
		for range 10 * mails {
			if f.info("b").Waiting == 0 {
				break
			}
			for i, s := range sessions {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				got, err := s.Next(ctx, 1+i)
				cancel()
				if err != nil {
					continue
				}
				died := slices.ContainsFunc(got, func(d Delivery) bool {
					l, _ := proto.ParseLetter(d.Letter)
					return string(l.Body) == poison
				})
				for _, d := range got {
					if d.Redelivered {
						redelivered++
					}
					if !died {
						f.settle("b", d, box.Ack, proto.CodeOK)
					}
				}
				if died {
					s.Close(t.Context(), true)
					sessions[i] = f.read("b", 8)
				}
			}
		}
		if i := f.info("b"); i.EndedAs(box.Done) != mails-1 || i.EndedAs(box.Dead) != 1 {
			t.Errorf("%+v", i)
		}
		if most := box.MaxAbandons + 8; redelivered > most {
			t.Errorf("%d mails were given once more, want at most %d", redelivered, most)
		}
	})
}

// A mail whose record is damaged is a dead letter when it is delivered, and those around it are read, by one
// reader each: what came behind it in the same delivery is delivered again.
func TestDamagedMailStopsNoReader(t *testing.T) {
	for _, tt := range []struct {
		name   string
		credit int
		key    string
	}{{"one at a time", 1, ""}, {"all at once", 8, ""}, {"of one key at once", 8, "k"}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, Config{})
				f.mailbox("b")
				if err := f.SetSub(t.Context(), "b", box.SubSettings{KeyBatch: 4}, box.Start{}); err != nil {
					t.Fatal(err)
				}
				f.mailbox("agent:local")
				var items []Item
				for _, body := range []string{"first", "damaged", "next", "last"} {
					items = append(items, Item{Box: "b", Letter: f.letter(body, func(l *proto.Letter) { l.Key = []byte(tt.key) })})
				}
				if _, err := f.Send(t.Context(), items, false); err != nil {
					t.Fatal(err)
				}
				big := strings.Repeat("x", 60<<10)
				for range 40 { // what is new is read from memory
					f.send("agent:local", big)
				}
				damage(t, f.dir, "damaged")
				s := f.read("b", tt.credit)
				for _, want := range []string{"first", "next", "last"} {
					got, bodies := f.next(s, 1)
					if bodies[0] != want || got[0].Attempt != 1 {
						t.Fatalf("attempt %d of %q, want %q", got[0].Attempt, bodies, want)
					}
					f.settle("b", got[0], box.Ack, proto.CodeOK)
				}
				synctest.Wait()
				if i := f.info("b"); i.EndedAs(box.Done) != 3 || i.EndedAs(box.Dead) != 1 || i.Waiting != 0 {
					t.Errorf("%+v", i)
				}
			})
		})
	}
}
