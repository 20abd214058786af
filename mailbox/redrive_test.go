package mailbox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// dead makes n dead letters in a mailbox, 1 to n.
func (f *fixture) dead(name string, n int) (ids []string) {
	f.t.Helper()
	for i := range n {
		sent := f.mail("agent:"+name, fmt.Sprint(i+1), func(m *wire.Mail) {
			m.Type, m.TTL, m.Labels = "order", wire.Duration(time.Hour), map[string]string{"a": "b"}
		})
		f.kill(name, "", fmt.Sprint(i+1))
		ids = append(ids, sent.ID)
	}
	return ids
}

// TestRedrive checks S17: dead letters are sent again at a rate, as new mails.
func TestRedrive(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("desk", nil)
		ids := f.dead("ceo", 5)
		redrive := func(r wire.RedriveMail, n int, more bool) wire.RedrivenMail {
			t.Helper()
			out, err := f.Redrive(t.Context(), "ceo", "", r)
			if err != nil || len(out.Items) != n || out.More != more {
				t.Fatalf("redrive %+v: %+v, %v, want %d mails", r, out, err, n)
			}
			return out
		}
		time.Sleep(2 * time.Hour) // past the life of the mails
		before := time.Now()
		out := redrive(wire.RedriveMail{Max: 2, Rate: 1}, 2, true)
		if took := time.Since(before); took != time.Second {
			t.Errorf("two mails at one a second took %v", took)
		}
		if item := out.Items[0]; item.Status != 202 || item.Mail.Box != "agent:ceo@alpha" || item.Mail.Known || item.Mail.ID == ids[0] {
			t.Errorf("item %+v", item.Mail)
		}
		before = time.Now()
		redrive(wire.RedriveMail{}, 3, false)
		if took := time.Since(before); took != 40*time.Millisecond {
			t.Errorf("three mails at the default rate took %v", took)
		}
		redrive(wire.RedriveMail{}, 0, false)
		got, bodies := f.lease("ceo", "", 9, 0)
		if !slices.Equal(bodies, []string{"1", "2", "3", "4", "5"}) {
			t.Fatalf("leased %q", bodies)
		}
		if m := got[0].Mail; m.RedriveOf != ids[0] || m.FirstID != ids[0] || m.Type != "order" || m.Labels["a"] != "b" || got[0].Attempt != 1 || m.NotAfter.Sub(m.Created) != time.Hour {
			t.Errorf("mail %+v", got[0])
		}
		f.settle("ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: got[1].Lease, Final: true}, {Lease: got[2].Lease, Final: true}}})
		redrive(wire.RedriveMail{To: "agent:desk"}, 2, false)
		other, bodies := f.lease("desk", "", 9, 0)
		if !slices.Equal(bodies, []string{"2", "3"}) || other[0].Mail.RedriveOf != got[1].Mail.ID || other[0].Mail.FirstID != ids[1] {
			t.Errorf("to another mailbox: %q", bodies)
		}
		f.settle("desk", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: other[0].Lease, Final: true}}})
		_, err := f.Redrive(t.Context(), "desk", "", wire.RedriveMail{})
		f.must(err)
		if m := f.one("desk", "", "2").Mail; m.RedriveOf != other[0].Mail.ID || m.FirstID != ids[1] {
			t.Errorf("a series: %+v", m)
		}
		if want := "mailbox.redrive agent:ceo@alpha: 2 mails to agent:desk@alpha"; !slices.Contains(f.audits, want) {
			t.Errorf("audited %q", f.audits)
		}
		if v := f.mails("ceo", "", wire.MailQuery{State: "DEAD"}); len(v) != 7 {
			t.Errorf("%d dead letters are kept", len(v))
		}
	})
}

// A dead letter that was sent again is not sent once more, by its number, elsewhere, or when its
// dedupe key is forgotten; the others of the call are.
func TestDeadLetterIsSentAgainOnce(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("desk", nil)
		f.dead("ceo", 3)
		for i, r := range []wire.RedriveMail{{Seqs: []uint64{1}}, {Seqs: []uint64{1}}, {Seqs: []uint64{1}, To: "agent:desk"}, {Seqs: []uint64{1, 2}}, {Seqs: []uint64{1, 2}}, {}, {}} {
			out, err := f.Redrive(t.Context(), "ceo", "", r)
			f.must(err)
			var got []string
			for _, item := range out.Items {
				switch {
				case item.Status == 202 && !item.Mail.Known && item.Problem == nil:
					got = append(got, "sent")
				case item.Status == 409 && item.Mail == nil:
					got = append(got, item.Problem.Detail)
				default:
					t.Errorf("call %d: %s", i, asJSON(t, item))
				}
			}
			const first, second = "refused: dead letter 1 of agent:ceo@alpha was already sent again", "refused: dead letter 2 of agent:ceo@alpha was already sent again"
			if want := [][]string{{"sent"}, {first}, {first}, {first, "sent"}, {first, second}, {"sent"}, nil}[i]; !slices.Equal(got, want) {
				t.Errorf("call %d: %q, want %q", i, got, want)
			}
			if i == 0 {
				time.Sleep(37 * time.Hour) // past the dedupe key of the new mail
			}
		}
		if n := len(slices.DeleteFunc(f.audits, func(a string) bool { return !strings.HasSuffix(a, ": 1 mails to agent:ceo@alpha") })); n != 3 {
			t.Errorf("%d audits of a mail that was sent again, want 3", n)
		}
		if v := f.box("desk"); v.Next != 1 {
			t.Errorf("desk has %+v", v)
		}
	})
}

func TestRedriveRefused(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("full", func(s *wire.MailboxSettings) { s.Mails = ptr(1) })
		f.topic("orders", "billing")
		f.dead("ceo", 3)
		f.mail("topic:orders", "published", nil)
		f.kill("topic:orders", "billing", "published")
		for _, tt := range []struct {
			box, sub string
			r        wire.RedriveMail
			want     error
			says     string
		}{
			{"none", "", wire.RedriveMail{}, wire.ErrNotFound, "mailbox add none"},
			{"topic:orders", "", wire.RedriveMail{}, wire.ErrInvalid, "name one of its subscriptions"},
			{"topic:orders", "billing", wire.RedriveMail{}, wire.ErrInvalid, "a mail of a topic goes to every subscription: name the mailbox with to that is to get what is dead in topic:orders/billing"},
			{"ceo", "", wire.RedriveMail{To: "beta"}, wire.ErrInvalid, "has no mail"},
			{"ceo", "", wire.RedriveMail{To: "agent:none"}, wire.ErrNotFound, "dead letter 1 of agent:ceo@alpha, after 0 were sent: not found: there is no agent:none@alpha"},
			{"ceo", "", wire.RedriveMail{To: "agent:full"}, wire.ErrFull, "dead letter 2 of agent:ceo@alpha, after 1 were sent: full: agent:full@alpha: the box is full"},
			{"ceo", "", wire.RedriveMail{Seqs: []uint64{1, 9}}, wire.ErrNotFound, "there is no dead letter 9"},
			{"ceo", "", wire.RedriveMail{Seqs: make([]uint64, 1001)}, wire.ErrInvalid, "at most 1000 dead letters at once"},
			{"ceo", "", wire.RedriveMail{Max: -1}, wire.ErrInvalid, "at most 1000 dead letters at once"},
			{"ceo", "", wire.RedriveMail{Max: 1001}, wire.ErrInvalid, "at most 1000 dead letters at once"},
			{"ceo", "", wire.RedriveMail{Rate: -1}, wire.ErrInvalid, "rate -1: must be from 1 to 10000 mails a second"},
			{"ceo", "", wire.RedriveMail{Rate: 10_001}, wire.ErrInvalid, "rate 10001"},
		} {
			_, err := f.Redrive(t.Context(), tt.box, tt.sub, tt.r)
			f.refused(err, tt.want, tt.says)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		time.Sleep(time.Second)
		ctx, stop := context.WithTimeout(ctx, 1500*time.Millisecond)
		defer stop()
		f.dead("ceo", 1)
		out, err := f.Redrive(ctx, "ceo", "", wire.RedriveMail{Seqs: []uint64{1, 2, 3, 4}, Rate: 1})
		f.refused(err, context.DeadlineExceeded, "after 2 were sent")
		if len(out.Items) != 3 || !slices.Contains(f.audits, "mailbox.redrive agent:ceo@alpha: 2 mails to agent:ceo@alpha") {
			t.Errorf("%d items, audited %q", len(out.Items), f.audits)
		}
		out, err = f.Redrive(t.Context(), "topic:orders", "billing", wire.RedriveMail{To: "agent:ceo"})
		f.must(err)
		if len(out.Items) != 1 || out.Items[0].Mail.Box != "agent:ceo@alpha" {
			t.Errorf("of a topic: %+v", out)
		}
	})
}

// An id is what a sender says: dead letters with the same one are told to the sender, and sent
// again, each for itself.
func TestDeadLettersWithOneID(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("boss", nil)
		now := time.Now()
		id := proto.NewMailID(now)
		for i, body := range []string{"1", "2", "3"} {
			if i == 2 {
				id = proto.NewMailID(now)
			}
			letter, err := proto.AppendLetter(nil, &proto.Letter{
				Class: proto.Normal, ID: id, Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Sender: []byte("boss"), Body: []byte(body),
			})
			f.must(err)
			to, err := f.places.findTarget("agent:ceo")
			f.must(err)
			_, err = f.Boxes.mailer.deliver(t.Context(), []place{to}, [][]byte{letter}, false, nil)
			f.must(err)
			f.kill("ceo", "", body)
		}
		synctest.Wait()
		if got, _ := f.lease("boss", "", 9, time.Second); len(got) != 3 || len(f.events) > 0 {
			t.Errorf("%d bounces, events %v", len(got), f.events)
		}
		out, err := f.Redrive(t.Context(), "ceo", "", wire.RedriveMail{})
		if err != nil || len(out.Items) != 3 {
			t.Errorf("%d mails were sent again: %v", len(out.Items), err)
		}
		if _, bodies := f.lease("ceo", "", 9, time.Second); !slices.Equal(bodies, []string{"1", "2", "3"}) {
			t.Errorf("leased %q", bodies)
		}
	})
}

func TestUnblock(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.OnDead = ptr("block") })
		keyed := func(m *wire.Mail) { m.Key = "order-7" }
		f.mail("agent:ceo", "1", keyed)
		f.kill("ceo", "", "1")
		f.mail("agent:ceo", "2", keyed)
		if got, _ := f.lease("ceo", "", 1, time.Minute); len(got) != 0 || f.box("ceo").Subscriptions[0].Blocked != 1 {
			t.Errorf("behind a dead letter: %v", got)
		}
		f.restart() // it stays
		unblock := func(u wire.UnblockMail) error { return f.Unblock(t.Context(), "ceo", "", u) }
		f.refused(unblock(wire.UnblockMail{}), wire.ErrInvalid, "key of 0 bytes: must be that of a dead letter, of 1 to 256")
		f.refused(unblock(wire.UnblockMail{Key: strings.Repeat("k", 257)}), wire.ErrInvalid, "key of 257 bytes")
		f.refused(unblock(wire.UnblockMail{Key: "order-7", Origin: "delta"}), wire.ErrNotFound, "known peers")
		f.refused(unblock(wire.UnblockMail{Key: "order-7", Origin: "beta"}), wire.ErrNotFound, "no mail came from beta")
		f.refused(unblock(wire.UnblockMail{Key: "order-8"}), wire.ErrNotFound, `no dead letter blocks the key "order-8" in agent:ceo@alpha`)
		f.refused(f.Unblock(t.Context(), "none", "", wire.UnblockMail{Key: "x"}), wire.ErrNotFound, "mailbox add none")
		if got, _ := f.lease("ceo", "", 1, time.Second); len(got) != 0 {
			t.Errorf("what was refused unblocked %v", got)
		}
		f.must(unblock(wire.UnblockMail{Key: "order-7", Origin: "alpha"}))
		f.one("ceo", "", "2")
		f.refused(unblock(wire.UnblockMail{Key: "order-7"}), wire.ErrNotFound, "no dead letter blocks")
		if !slices.Contains(f.audits, "mailbox.unblock agent:ceo@alpha order-7") {
			t.Errorf("audited %q", f.audits)
		}
	})
}

// I21: the sender of a mail that is sent back is told, in the first mailbox that it named, once,
// or an event says why it was not.
func TestBounces(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*wire.Mail)
		to     string           // the mailbox that is told; "": nobody
		cause  wire.BounceCause // of the event
	}{
		{"to the box for bounces", func(m *wire.Mail) { m.BounceTo, m.ReplyTo, m.Sender = "agent:bounces", "agent:replies", "boss" }, "bounces", ""},
		{"to the box for replies", func(m *wire.Mail) { m.ReplyTo, m.Sender = "agent:replies@alpha", "boss" }, "replies", ""},
		{"to the mailbox of the sender", func(m *wire.Mail) { m.Sender = "boss" }, "boss", ""},
		{"to a topic", func(m *wire.Mail) { m.BounceTo = "topic:bounces" }, "topic:bounces", ""},
		{"to a mailbox of the mesh", func(m *wire.Mail) { m.BounceTo = "agent:desk" }, "desk", ""},
		{"to the mailbox of a sender with a full name", func(m *wire.Mail) { m.Sender = "agent:boss" }, "boss", ""},
		{"to nobody", nil, "", wire.BounceNoSender},
		{"to a sender without a mailbox", func(m *wire.Mail) { m.Sender = "nobody" }, "", wire.BounceNoBox},
		{"to nobody from the end of a loop", func(m *wire.Mail) { m.Sender, m.Hops = "boss", 16 }, "", wire.BounceLoop},
		{"to a sender that is no name", func(m *wire.Mail) { m.Sender = "The Boss" }, "", wire.BounceNoName},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				for _, name := range []string{"ceo", "boss", "bounces", "replies"} {
					f.mailbox(name, nil)
				}
				f.mailbox("desk", func(s *wire.MailboxSettings) { s.Named = true })
				f.topic("bounces", "all")
				sent := f.mail("agent:ceo", strings.Repeat("x", 2000), func(m *wire.Mail) {
					m.Type, m.Key, m.Correlation, m.ContentType, m.Labels = "order", "order-7", "c-1", "text/plain", map[string]string{"region": "eu"}
					if tt.change != nil {
						tt.change(m)
					}
				})
				d, _ := f.lease("ceo", "", 1, 0)
				f.settle("ceo", "", wire.SettleMail{Bounce: []wire.BouncedMail{{Lease: d[0].Lease, Reason: "not me"}}})
				synctest.Wait()
				if tt.to == "" {
					if len(f.events) != 1 || f.events[0]["kind"] != wire.EventMailBounced || f.events[0]["mail"] != sent.ID || f.events[0]["peer"] != f.self.String() || f.events[0]["cause"] != string(tt.cause) {
						t.Errorf("events %v", f.events)
					}
					if v := f.box("boss"); v.Next != 1 {
						t.Errorf("the sender has %+v", v)
					}
					return
				}
				sub := ""
				if strings.HasPrefix(tt.to, "topic:") {
					sub = "all"
				}
				got, _ := f.lease(tt.to, sub, 9, time.Second)
				if len(got) != 1 || len(f.events) > 0 {
					t.Fatalf("%d bounces, events %v", len(got), f.events)
				}
				m := got[0].Mail
				if m.BounceOf != sent.ID || m.Type != "balefire.bounce" || m.Class != "high" || m.Correlation != "c-1" || m.Hops != 1 || m.From != "alpha" ||
					!strings.Contains(string(m.Body), `"cause":"bounced","reason":"not me","id":"`+sent.ID+`","key":"order-7","type":"order"`) ||
					!strings.Contains(string(m.Body), `"content_type":"text/plain","labels":{"region":"eu"}`) || len(m.Body) > 2000 {
					t.Errorf("bounce %+v\n%s", m, m.Body)
				}
				// A bounce does not bounce itself.
				f.settle(tt.to, sub, wire.SettleMail{Bounce: []wire.BouncedMail{{Lease: got[0].Lease}}})
				synctest.Wait()
				if all, err := f.List(t.Context(), ""); err != nil || slices.ContainsFunc(all, func(v wire.Box) bool { return v.Waiting > 0 && v.Kind == wire.BoxMailbox }) || len(f.events) > 0 {
					t.Errorf("the bounce was bounced: %v, %v", all, f.events)
				}
			})
		})
	}
}

// A bounce that was written before a crash, and perhaps not sent, is sent once.
func TestBounceAfterRestart(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("boss", nil)
		f.mail("agent:ceo", "hello", func(m *wire.Mail) { m.Sender = "boss" })
		f.kill("ceo", "", "hello")
		synctest.Wait()
		f.restart()
		synctest.Wait()
		if got, _ := f.lease("boss", "", 9, time.Second); len(got) != 1 {
			t.Errorf("%d bounces", len(got))
		}
	})
}

func TestReplyTo(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		for to, want := range map[string]string{
			"agent:desk": "agent:desk@alpha", "agent:desk@beta": "agent:desk@beta", "agent:desk@" + f.gamma.String(): "agent:desk@gamma", "topic:replies": "topic:replies", "": "",
		} {
			f.mail("agent:ceo", "hello", func(m *wire.Mail) { m.ReplyTo = to })
			d := f.one("ceo", "", "hello")
			if d.Mail.ReplyTo != want {
				t.Errorf("reply to %q: %q, want %q", to, d.Mail.ReplyTo, want)
			}
			f.ack("ceo", "", d)
		}
	})
}

// Of two calls at once for the same dead letters, with different targets, one sends each of them.
func TestRedrivesAtOnce(t *testing.T) {
	for _, seqs := range [][]uint64{nil, {1, 2, 3, 4, 5}} {
		bubble(t, func(t *testing.T, f *fixture) {
			f.mailbox("ceo", nil)
			f.mailbox("desk", nil)
			f.dead("ceo", 5)
			var items, sent atomic.Int64
			var calls sync.WaitGroup
			for _, to := range []string{"", "agent:desk"} {
				calls.Go(func() {
					out, err := f.Redrive(t.Context(), "ceo", "", wire.RedriveMail{To: to, Seqs: seqs})
					if err != nil {
						t.Error(err)
						return
					}
					items.Add(int64(len(out.Items)))
					for _, item := range out.Items {
						if item.Status == 202 {
							sent.Add(1)
						}
					}
				})
			}
			calls.Wait()
			_, here := f.lease("ceo", "", 9, 0)
			_, there := f.lease("desk", "", 9, 0)
			if all := slices.Sorted(slices.Values(append(here, there...))); !slices.Equal(all, []string{"1", "2", "3", "4", "5"}) || sent.Load() != 5 || items.Load() != int64(5+len(seqs)) {
				t.Errorf("%d of %d were sent: %q and %q", sent.Load(), items.Load(), here, there)
			}
		})
	}
}
