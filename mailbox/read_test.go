package mailbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

func TestLeaseRefused(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.topic("orders", "billing")
		for _, tt := range []struct {
			name, box, sub string
			l              wire.LeaseMail
			want           error
			says           string
		}{
			{"no such mailbox", "none", "", wire.LeaseMail{}, wire.ErrNotFound, "make it with balefire-node mailbox add none"},
			{"no such subscription", "topic:orders", "none", wire.LeaseMail{}, wire.ErrNotFound, "make it with balefire-node sub add orders none"},
			{"a topic", "topic:orders", "", wire.LeaseMail{}, wire.ErrInvalid, "topic:orders is a topic: name one of its subscriptions"},
			{"a subscription of a mailbox", "ceo", "x", wire.LeaseMail{}, wire.ErrInvalid, `agent:ceo@alpha is a mailbox: it has no subscription "x"`},
			{"a mailbox of a node that is off", "ceo@beta", "", wire.LeaseMail{}, context.DeadlineExceeded, "beta cannot be reached"},
			{"a negative number", "ceo", "", wire.LeaseMail{Max: -1}, wire.ErrInvalid, "max -1: must be from 1 to 512"},
			{"a large number", "ceo", "", wire.LeaseMail{Max: 513}, wire.ErrInvalid, "max 513: must be from 1 to 512"},
			{"a negative wait", "ceo", "", wire.LeaseMail{Wait: -1}, wire.ErrInvalid, "wait -1ns: must be from 0 to 10 minutes"},
			{"a long wait", "ceo", "", wire.LeaseMail{Wait: wire.Wait(maxWait + 1)}, wire.ErrInvalid, "must be from 0 to 10 minutes"},
			{"a long name", "ceo", "", wire.LeaseMail{Reader: strings.Repeat("x", 65)}, wire.ErrInvalid, "reader of 65 bytes: the limit is 64"},
		} {
			if got, err := f.Lease(t.Context(), tt.box, tt.sub, tt.l); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) || got != nil {
				t.Errorf("%s: %v, %v, want %v that says %q", tt.name, got, err, tt.want, tt.says)
			}
		}
		if got, _ := f.lease("ceo", "", 512, 0); len(got) != 0 {
			t.Errorf("leased %d mails of an empty mailbox", len(got))
		}
	})
}

func TestLeaseWaits(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		before := time.Now()
		if got, _ := f.lease("ceo", "", 1, 10*time.Minute); len(got) != 0 || time.Since(before) != 10*time.Minute {
			t.Errorf("%d mails after %v", len(got), time.Since(before))
		}
		go func() {
			time.Sleep(time.Second) // in the bubble
			f.mail("agent:ceo", "late", nil)
		}()
		d := f.one("ceo", "", "late")
		if d.Attempt != 1 || d.Redelivered || time.Until(d.Until) != 30*time.Second || !strings.HasPrefix(d.Lease, "1.1.") {
			t.Errorf("delivery %+v", d)
		}
	})
}

func TestSettle(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		for i := range 8 {
			f.mail("agent:ceo", fmt.Sprint(i), nil)
		}
		d, _ := f.lease("ceo", "", 8, 0)
		items := f.settle("ceo", "", wire.SettleMail{
			Ack: []string{d[0].Lease, d[1].Lease}, Nack: []wire.NackMail{{Lease: d[2].Lease, Reason: "busy"}, {Lease: d[3].Lease, Final: true, Reason: "bad"}},
			Extend: []wire.ExtendMail{{Lease: d[4].Lease, For: wire.Duration(time.Hour)}, {Lease: d[5].Lease, For: wire.Duration(24 * time.Hour)}},
			Defer:  []wire.DeferMail{{Lease: d[6].Lease, Delay: wire.Duration(time.Hour), Reason: "later"}}, Bounce: []wire.BouncedMail{{Lease: d[7].Lease, Reason: "not me"}},
		})
		now := time.Now()
		for i, item := range items {
			wantUntil := map[int]time.Time{4: now.Add(time.Hour), 5: now.Add(12 * time.Hour)}[i]
			if item.Lease != d[i].Lease || item.Code != wire.SettledOK || (item.Until != nil) != !wantUntil.IsZero() || item.Until != nil && !item.Until.Equal(wantUntil) {
				t.Errorf("item %d: %+v", i, item)
			}
		}
		states := map[string]string{}
		for _, q := range []wire.MailQuery{{}, {State: "DEAD"}} {
			all, _, err := f.Mails(t.Context(), "ceo", "", q)
			f.must(err)
			for _, m := range all {
				states[string(m.Body)] = fmt.Sprintf("%s %d %s %s", m.State, m.Attempts, m.Cause, m.Reason)
			}
		}
		if got, want := fmt.Sprint(states), fmt.Sprint(map[string]string{"2": "RETRYING 1  ", "3": "DEAD 1 final bad", "4": "LEASED 0  ", "5": "LEASED 0  ", "6": "RETRYING 0  "}); got != want {
			t.Errorf("states %s, want %s", got, want)
		}
		if v := f.box("ceo"); v.Ended.Done != 2 || v.Ended.Cancelled != 1 || v.Ended.Dead != 1 || v.Subscriptions[0].Leased != 2 || v.Subscriptions[0].Retrying != 2 || v.Subscriptions[0].Dead != 1 {
			t.Errorf("box %s", asJSON(t, v))
		}
		again := f.one("ceo", "", "2") // after the backoff
		if again.Attempt != 2 || !again.Redelivered {
			t.Errorf("delivery %+v", again)
		}
		codes := func(s wire.SettleMail) (all []string) {
			for _, item := range f.settle("ceo", "", s) {
				all = append(all, item.Code)
			}
			return all
		}
		boot := "." + strings.SplitN(again.Lease, ".", 3)[1] + "."
		if got, want := codes(wire.SettleMail{Ack: []string{d[2].Lease, d[0].Lease, d[3].Lease, d[6].Lease, "99" + boot + "1", "1" + boot + "99", "1.9.1"}}),
			[]string{"STALE", "OK", "STALE", "OK", "UNKNOWN", "UNKNOWN", "UNKNOWN"}; !slices.Equal(got, want) {
			t.Errorf("acks: %v, want %v", got, want)
		}
		if got, want := codes(wire.SettleMail{Nack: []wire.NackMail{{Lease: d[2].Lease}, {Lease: d[0].Lease}}, Extend: []wire.ExtendMail{{Lease: d[7].Lease, For: 1e9}}}), []string{"STALE", "STALE", "STALE"}; !slices.Equal(got, want) {
			t.Errorf("what is stale: %v, want %v", got, want)
		}
		conflicts := f.Conflicts()
		if len(conflicts) != 5 {
			t.Fatalf("%d conflicts, want one for each that was stale: %+v", len(conflicts), conflicts)
		}
		for i, d := range []wire.DeliveredMail{d[2], d[3]} { // the second one is a dead letter
			if c := conflicts[i]; c.Mail != d.Mail.ID || c.Epoch != d.Lease || c.Box != "agent:ceo@alpha" || c.Task != "" || c.Time.IsZero() || c.Cause != wire.LeaseMailSettled {
				t.Errorf("conflict %+v", c)
			}
		}
	})
}

func TestSettleRefused(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("desk", nil)
		f.topic("orders", "billing")
		f.mail("agent:ceo", "hello", nil)
		f.mail("agent:desk", "other", nil)
		d, other := f.one("ceo", "", "hello"), f.one("desk", "", "other")
		var many []string
		for range 513 {
			many = append(many, d.Lease)
		}
		for _, tt := range []struct {
			name, box, sub string
			s              wire.SettleMail
			want           error
			says           string
		}{
			{"nothing", "ceo", "", wire.SettleMail{}, wire.ErrInvalid, "nothing to settle: give ack, nack, extend, defer or bounce"},
			{"no handle", "ceo", "", wire.SettleMail{Ack: []string{"x"}}, wire.ErrInvalid, `lease "x": must be what a delivery names, such as 88121.1795212606.4`},
			{"a handle in another form", "ceo", "", wire.SettleMail{Ack: []string{"01.1.1"}}, wire.ErrInvalid, `lease "01.1.1"`},
			{"too many", "ceo", "", wire.SettleMail{Ack: many}, wire.ErrInvalid, "513 deliveries at once: the limit is 512"},
			{"a negative delay", "ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: d.Lease, Delay: -1}}}, wire.ErrInvalid, "a time of -1ns: must be from 0 to 30 days"},
			{"a long delay", "ceo", "", wire.SettleMail{Defer: []wire.DeferMail{{Lease: d.Lease, Delay: wire.Duration(31 * 24 * time.Hour)}}}, wire.ErrInvalid, "must be from 0 to 30 days"},
			{"an extension of nothing", "ceo", "", wire.SettleMail{Extend: []wire.ExtendMail{{Lease: d.Lease}}}, wire.ErrInvalid, "extend without for: say how long"},
			{"no such mailbox", "none", "", wire.SettleMail{Ack: []string{d.Lease}}, wire.ErrNotFound, "mailbox add none"},
			{"a topic", "topic:orders", "", wire.SettleMail{Ack: []string{d.Lease}}, wire.ErrInvalid, "name one of its subscriptions"},
			{"no such subscription", "topic:orders", "none", wire.SettleMail{Ack: []string{d.Lease}}, wire.ErrNotFound, "sub add orders none"},
		} {
			if _, err := f.Settle(t.Context(), tt.box, tt.sub, tt.s); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %v, want %v that says %q", tt.name, err, tt.want, tt.says)
			}
		}
		// A handle of another box names a mail here that somebody else has.
		if code := f.ack("ceo", "", other); code != wire.SettledStale {
			t.Errorf("a handle of another mailbox: %s", code)
		}
		if code := f.ack("ceo", "", d); code != wire.SettledOK {
			t.Errorf("the right one: %s", code)
		}
	})
}

func TestLeaseLapses(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Attempts, s.Lease = ptr(2), ptr(wire.Duration(time.Second)) })
		f.mail("agent:ceo", "hello", nil)
		first := f.one("ceo", "", "hello")
		second := f.one("ceo", "", "hello")
		if second.Attempt != 2 {
			t.Errorf("delivery %+v", second)
		}
		if code := f.ack("ceo", "", first); code != wire.SettledStale {
			t.Errorf("ack of the first delivery: %s", code)
		}
		time.Sleep(2 * time.Second)
		all, _, err := f.Mails(t.Context(), "ceo", "", wire.MailQuery{State: "DEAD"})
		f.must(err)
		if len(all) != 1 || all[0].Cause != "lapsed" || all[0].Attempts != 2 || len(all[0].Tries) != 1 || all[0].Tries[0].Cause != "lapsed" || all[0].Tries[0].Reader != "test" {
			t.Errorf("dead letters %s", asJSON(t, all))
		}
		if code := f.ack("ceo", "", second); code != wire.SettledStale {
			t.Errorf("ack of a dead letter: %s", code)
		}
	})
}

func TestOutOfOrder(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.KeyBatch = ptr(3) })
		for _, body := range []string{"1", "2", "3"} {
			f.mail("agent:ceo", body, func(m *wire.Mail) { m.Key = "order-7" })
		}
		d, _ := f.lease("ceo", "", 9, 0)
		if code := f.ack("ceo", "", d[1]); code != wire.SettledOutOfOrder {
			t.Errorf("the second one first: %s", code)
		}
		for _, item := range f.settle("ceo", "", wire.SettleMail{Ack: []string{d[0].Lease, d[1].Lease, d[2].Lease}}) {
			if item.Code != wire.SettledOK {
				t.Errorf("in order: %+v", item)
			}
		}
	})
}

// A nack with a reason of any form is kept, and readable.
func TestReasons(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mail("agent:ceo", "hello", nil)
		d := f.one("ceo", "", "hello")
		f.settle("ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: d.Lease, Reason: "x" + strings.Repeat("é", 127)}}})
		m, err := f.Mail(t.Context(), d.Mail.ID)
		f.must(err)
		if want := "x" + strings.Repeat("é", 127); len(m.Tries) != 1 || m.Tries[0].Reason != want || m.Due == nil || m.State != "RETRYING" {
			t.Errorf("mail %+v", m)
		}
	})
}

func TestModes(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		mode := func(m string) func(*wire.MailboxSettings) {
			return func(s *wire.MailboxSettings) { s.Mode = &m }
		}
		f.mailbox("one", mode("exclusive"))
		f.mailbox("first", mode("failover"))
		read := func(name, reader string, priority int) *Reader {
			t.Helper()
			r, err := f.Read(t.Context(), name, "", wire.LeaseMail{Reader: reader, Priority: priority, Max: 1})
			f.must(err)
			return r
		}
		next := func(r *Reader, want string) wire.DeliveredMail {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			got, err := r.Next(ctx, 9)
			if want == "" {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatalf("%v, %v, want no mail", got, err)
				}
				return wire.DeliveredMail{}
			}
			f.must(err)
			if len(got) != 1 || string(got[0].Mail.Body) != want {
				t.Fatalf("%v, want %s", got, want)
			}
			return got[0]
		}
		a := read("one", "a", 0)
		_, err := f.Lease(t.Context(), "one", "", wire.LeaseMail{Reader: "b"})
		f.refused(err, wire.ErrHeld, `agent:one@alpha has one reader at a time, and "a" reads it`)
		f.at(err, "alpha")
		_, err = f.Read(t.Context(), "one", "", wire.LeaseMail{Reader: "b"})
		f.refused(err, wire.ErrHeld, `and "a" reads it`)
		f.at(err, "alpha")
		_, err = f.Read(t.Context(), "one", "", wire.LeaseMail{Reader: strings.Repeat("b", 65)})
		f.refused(err, wire.ErrInvalid, "reader of 65 bytes")
		if got := f.box("one").Subscriptions[0].Readers; !slices.Equal(got, []string{"a"}) {
			t.Errorf("readers %q", got)
		}
		f.must(a.Close(t.Context(), false))
		f.must(read("one", "b", 0).Close(t.Context(), true))

		low, high := read("first", "low", 1), read("first", "high", 2)
		f.mail("agent:first", "1", nil)
		f.mail("agent:first", "2", nil)
		next(low, "")
		next(high, "1")
		f.must(high.AddCredit(t.Context(), 1))
		next(high, "2")
		f.must(high.Close(t.Context(), true)) // it broke: both are given back
		if d := next(low, "1"); d.Redelivered != true || d.Attempt != 1 {
			t.Errorf("delivery %+v", d)
		}
		f.must(low.Close(t.Context(), false))
		if m, _, err := f.Mails(t.Context(), "first", "", wire.MailQuery{}); err != nil || m[0].Abandons != 1 || m[0].Attempts != 0 {
			t.Errorf("mails %+v, %v", m, err)
		}
		_, err = low.Next(t.Context(), 1)
		f.refused(err, wire.ErrDraining, "stopped")
	})
}

// Each strategy gives the next mail to its reader, and can be changed while there are readers.
func TestStrategies(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		readers := make([]*Reader, 3)
		for i := range readers {
			r, err := f.Read(t.Context(), "ceo", "", wire.LeaseMail{Reader: string('a' + rune(i)), Priority: i, Max: 4})
			f.must(err)
			readers[i] = r
		}
		for _, tt := range []struct{ strategy, want string }{
			{"ordered", "aaaabb"}, {"priority", "ccccbb"}, {"round_robin", "abcabc"}, {"least_loaded", "abcabc"}, {"ordered", "aaaabb"},
		} {
			f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Strategy = &tt.strategy })
			if got := f.box("ceo").Subscriptions[0].Settings.Strategy; tt.strategy != "ordered" && (got == nil || *got != tt.strategy) {
				t.Errorf("%s: the settings have %v", tt.strategy, got)
			}
			for range 6 {
				f.mail("agent:ceo", "hello", nil)
			}
			synctest.Wait()
			var got []byte
			for i, r := range readers {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				for {
					given, err := r.Next(ctx, 9)
					if err != nil {
						break
					}
					for _, d := range given {
						got = append(got, 'a'+byte(i))
						f.settle("ceo", "", wire.SettleMail{Ack: []string{d.Lease}})
					}
				}
				cancel()
			}
			want := []byte(tt.want)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("%s: given to %s, want %s", tt.strategy, got, want)
			}
		}
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Strategy = ptr("priority") })
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Mode = ptr("failover") })
		if got := f.box("ceo").Subscriptions[0].Settings.Strategy; got != nil {
			t.Errorf("failover has the strategy %s", *got)
		}
		for _, r := range readers {
			f.must(r.Close(t.Context(), false))
		}
	})
}

func TestPaused(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Paused = ptr(true) })
		f.mail("agent:ceo", "hello", nil)
		if got, _ := f.lease("ceo", "", 1, time.Minute); len(got) != 0 {
			t.Errorf("a paused mailbox delivered %v", got)
		}
		waiting := make(chan []string)
		go func() {
			_, bodies := f.lease("ceo", "", 1, time.Minute)
			waiting <- bodies
		}()
		synctest.Wait()
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Paused = ptr(false) })
		if got := <-waiting; !slices.Equal(got, []string{"hello"}) {
			t.Errorf("resumed: %q", got)
		}
	})
}

func TestSubscriptions(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.topic("orders", "all")
		publish := func(subject, body string) {
			t.Helper()
			f.mail("topic:orders", body, func(m *wire.Mail) { m.Subject = subject })
		}
		publish("eu.created", "1")
		publish("us.created", "2")
		publish("eu.paid", "3")
		time.Sleep(10 * time.Second)
		later := time.Now().UTC().Format(time.RFC3339)
		publish("eu.created", "4")
		sub := func(name, filter, from string, want ...string) {
			t.Helper()
			s := wire.SubscriptionSettings{From: from}
			if filter != "" {
				s.Filter = &filter
			}
			_, err := f.SetSubscription(t.Context(), "orders", name, s)
			f.must(err)
			if got := f.mails("topic:orders", name, wire.MailQuery{}); !slices.Equal(got, want) {
				t.Errorf("subscription %s: %q, want %q", name, got, want)
			}
		}
		sub("default", "", "")
		sub("new", "", "new")
		sub("first", "", "first", "1", "2", "3", "4")
		sub("eu", "eu.*", "first", "1", "3", "4")
		sub("created", "*.created", "first", "1", "2", "4")
		sub("rest", "eu.>", "2", "3", "4")
		sub("seq", "", "3", "3", "4")
		sub("beyond", "", "99")
		sub("time", "", later, "4")
		sub("last", "", "last", "2", "3", "4")
		publish("eu.created", "5")
		for name, want := range map[string][]string{"all": {"1", "2", "3", "4", "5"}, "new": {"5"}, "last": {"2", "3", "4", "5"}, "beyond": {"5"}} {
			got, bodies := f.lease("topic:orders", name, 9, 0)
			if !slices.Equal(bodies, want) || got[0].Mail.Box != "topic:orders" || got[0].Mail.Subject == "" {
				t.Errorf("subscription %s reads %q, want %q", name, bodies, want)
			}
		}
		seek := func(to string, want ...string) {
			t.Helper()
			_, err := f.Seek(t.Context(), "orders", "all", wire.SeekSubscription{To: to})
			f.must(err)
			if _, bodies := f.lease("topic:orders", "all", 9, 0); !slices.Equal(bodies, want) {
				t.Errorf("after a seek to %s: %q, want %q", to, bodies, want)
			}
		}
		seek("first", "1", "2", "3", "4", "5")
		seek("new")
		seek("4", "4", "5")
		seek("last", "2", "3", "5")
		d, _ := f.lease("topic:orders", "eu", 1, 0)
		if code := f.ack("topic:orders", "created", d[0]); code != wire.SettledUnknown {
			t.Errorf("a handle of another subscription: %s", code)
		}
		if code := f.ack("topic:orders", "eu", d[0]); code != wire.SettledOK {
			t.Errorf("ack: %s", code)
		}
		v := f.box("topic:orders")
		if v.Waiting != 5 || v.Next != 6 || len(v.Subscriptions) != 11 || *v.Subscriptions[4].Waiting != 3 || v.Subscriptions[4].Name != "eu" {
			t.Errorf("topic %s", asJSON(t, v))
		}
	})
}

// A topic drops the oldest mail when it is full; one that keeps mail until everybody has
// read it refuses.
func TestRetention(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		for name, interest := range map[string]bool{"drops": false, "keeps": true} {
			_, err := f.SetTopic(t.Context(), name, wire.BoxSettings{Mails: ptr(2), Interest: &interest})
			f.must(err)
			_, err = f.SetSubscription(t.Context(), name, "all", wire.SubscriptionSettings{})
			f.must(err)
			f.mail("topic:"+name, "1", nil)
			f.mail("topic:"+name, "2", nil)
		}
		f.mail("topic:drops", "3", nil)
		_, err := f.trySend("topic:keeps", "3", nil)
		f.refused(err, wire.ErrFull, "topic:keeps: the box is full")
		if got, v := f.mails("topic:drops", "all", wire.MailQuery{}), f.box("topic:drops"); !slices.Equal(got, []string{"2", "3"}) || v.Ended.Dropped != 1 {
			t.Errorf("left %q, dropped %d", got, v.Ended.Dropped)
		}
		d, _ := f.lease("topic:keeps", "all", 1, 0)
		f.ack("topic:keeps", "all", d[0])
		f.mail("topic:keeps", "3", nil)
		_, err = f.SetTopic(t.Context(), "drops", wire.BoxSettings{Age: ptr(wire.Duration(time.Minute))})
		f.must(err)
		time.Sleep(2 * time.Minute)
		if v := f.box("topic:drops"); v.Waiting != 0 || v.Ended.Dropped != 3 {
			t.Errorf("after its age: %s", asJSON(t, v))
		}
	})
}

// at checks which node an error names as the home of a box, "": none.
func (f *fixture) at(err error, home string) {
	f.t.Helper()
	got := ""
	if e, ok := errors.AsType[*wire.HomeError](err); ok {
		got = e.Home
	}
	if got != home {
		f.t.Errorf("%v: at %q, want %q", err, got, home)
	}
}

// A session tells why it ends, and where its box is: it was removed, has moved, or its node stops.
func TestEndsOfSessions(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		for _, name := range []string{"gone", "moved", "stopped"} {
			f.mailbox(name, func(s *wire.MailboxSettings) { s.Named = true })
		}
		read := func(name string) *Reader {
			r, err := f.Read(t.Context(), "agent:"+name, "", wire.LeaseMail{})
			f.must(err)
			return r
		}
		ended := func(r *Reader, want error, says, home string) {
			t.Helper()
			_, err := r.Next(t.Context(), 1)
			f.refused(err, want, says)
			f.at(err, home)
		}
		gone, moved, stopped := read("gone"), read("moved"), read("stopped")
		f.must(f.Remove(t.Context(), "agent:gone"))
		ended(gone, wire.ErrNotFound, "agent:gone was removed", "")
		f.names.move("agent:moved", f.beta)
		f.must(f.ledger.broker().RemoveBox(t.Context(), "agent:moved"))
		ended(moved, wire.ErrMoved, "the home of agent:moved is beta now", "beta")
		f.stop()
		ended(stopped, wire.ErrDraining, "", "alpha")
	})
}

// A reason that is too long is refused, in bytes: nothing of it is cut in silence.
func TestReasonsAreNotCut(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mail("agent:ceo", "x", nil)
		lease, long := f.leased("ceo").Lease, strings.Repeat("ä", 129)
		for _, s := range []wire.SettleMail{
			{Nack: []wire.NackMail{{Lease: lease, Reason: long}}},
			{Defer: []wire.DeferMail{{Lease: lease, Reason: long}}},
			{Bounce: []wire.BouncedMail{{Lease: lease, Reason: long}}},
		} {
			_, err := f.Settle(t.Context(), "ceo", "", s)
			f.refused(err, wire.ErrInvalid, "a reason of 258 bytes: the limit is 256")
		}
		_, err := f.Purge(t.Context(), "ceo", wire.PurgeMail{Reason: long})
		f.refused(err, wire.ErrInvalid, "a reason of 258 bytes")
	})
}
