package mailbox

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/wire"
)

// The mails of a key that are leased together are handled one after the other, in order, each
// once; those of other keys are handled at the same time. A failure holds up what is behind it.
func TestHandlerKeepsTheOrderOfAKey(t *testing.T) {
	for _, forward := range []string{"", "agent:next"} {
		bubble(t, func(t *testing.T, f *fixture) {
			var mu sync.Mutex
			var order []string
			now, most, failed := map[byte]int{}, 0, false
			f.programs.run = func(_ context.Context, r *handler.Run, body string) *handler.Result {
				mu.Lock()
				order = append(order, fmt.Sprint(body, " ", r.Attempt))
				now[body[0]]++
				if now[body[0]] > 1 {
					t.Errorf("%s while another one of its key", body)
				}
				most = max(most, now['a']+now['b'])
				mu.Unlock()
				if body[1] == '0' {
					time.Sleep(5 * time.Minute) // longer than a lease
				}
				time.Sleep(time.Second)
				mu.Lock()
				defer mu.Unlock()
				now[body[0]]--
				if body == "a1" && !failed {
					failed = true
					return &handler.Result{Outcome: handler.Retry, Reason: "not now"}
				}
				return &handler.Result{Outcome: handler.Success}
			}
			f.mailbox("next", nil)
			f.mailbox("raw", func(s *wire.MailboxSettings) {
				s.KeyBatch = ptr(4)
				s.Handler = &wire.MailHandler{Exec: []string{"program"}, Concurrency: 8, Forward: forward}
			})
			var mails []wire.Mail
			for _, body := range []string{"a0", "a1", "a2", "a3", "b0", "b1", "b2"} {
				mails = append(mails, wire.Mail{Body: []byte(body), Key: body[:1], Class: "critical"})
			}
			f.sendRaw(mails...)
			time.Sleep(10 * time.Minute)
			if v := f.box("raw"); v.Ended.Done != 7 || most != 2 {
				t.Errorf("%d at once, %+v", most, v)
			}
			for key, want := range map[string][]string{"a": {"a0 1", "a1 1", "a1 2", "a2 1", "a3 1"}, "b": {"b0 1", "b1 1", "b2 1"}} {
				got := slices.DeleteFunc(slices.Clone(order), func(run string) bool { return run[:1] != key })
				if !slices.Equal(got, want) {
					t.Errorf("%q, want %q", got, want)
				}
			}
		})
	}
}

// What waits for another mail of its key when its handler is changed is not run by the old one.
func TestHandlerChangesWhileAKeyWaits(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		runs := make(chan string, 8)
		f.programs.run = func(_ context.Context, r *handler.Run, body string) *handler.Result {
			runs <- fmt.Sprint(body, " ", r.Attempt)
			time.Sleep(9 * time.Minute)
			return &handler.Result{Outcome: handler.Success}
		}
		f.mailbox("raw", func(s *wire.MailboxSettings) {
			s.KeyBatch = ptr(2)
			s.Handler = &wire.MailHandler{Exec: []string{"program"}, Concurrency: 2}
		})
		f.sendRaw(wire.Mail{Body: []byte("0"), Key: "k"}, wire.Mail{Body: []byte("1"), Key: "k"})
		synctest.Wait()
		f.mailbox("raw", func(s *wire.MailboxSettings) { s.Handler = &wire.MailHandler{} })
		time.Sleep(10 * time.Minute)
		if v := f.box("raw"); v.Ended.Done != 1 || v.Waiting != 1 || len(runs) != 1 {
			t.Errorf("%d runs, %+v", len(runs), v)
		}
		f.handle(wire.MailHandler{})
		time.Sleep(10 * time.Minute)
		if first, second := <-runs, <-runs; f.box("raw").Ended.Done != 2 || first != "0 1" || second != "1 1" {
			t.Errorf("%q, then %q", first, second)
		}
	})
}
