package mailbox

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/wire"
)

// deliver makes a subscription of the topic orders that delivers into a box.
func (f *fixture) deliver(sub, to string) error {
	f.t.Helper()
	_, err := f.SetSubscription(f.t.Context(), "orders", sub, wire.SubscriptionSettings{To: &to})
	synctest.Wait() // until its runner has the new settings
	return err
}

// publish publishes mails with these bodies, and waits until what they cause has happened.
func (f *fixture) publish(bodies ...string) {
	f.t.Helper()
	for _, body := range bodies {
		f.mail("topic:orders", body, func(m *wire.Mail) { m.Subject, m.Sender = "eu.created", "boss" })
	}
	synctest.Wait()
}

// taken leases and acknowledges all that waits in a mailbox.
func (f *fixture) taken(name string) (bodies []string) {
	f.t.Helper()
	given, bodies := f.lease(name, "", 100, 0)
	for _, d := range given {
		f.ack(name, "", d)
	}
	return bodies
}

// What a subscription selects is in its box once, in order, with its headers, over starts of the
// node, whether the box is here or on another node.
func TestSubscriptionDeliversIntoABox(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("next", nil)
		f.topic("orders", "read")
		filter := "eu.>"
		for sub, to := range map[string]string{"here": "agent:next", "away": "agent:desk@beta"} {
			_, err := f.SetSubscription(t.Context(), "orders", sub, wire.SubscriptionSettings{Filter: &filter, To: &to})
			f.must(err)
		}
		f.mail("topic:orders", "not selected", func(m *wire.Mail) { m.Subject = "us.created" })
		f.mail("topic:orders", "0", func(m *wire.Mail) {
			m.Subject, m.Class, m.Key, m.Type, m.Labels, m.Hops = "eu.created", "high", "k", "order", map[string]string{"a": "b"}, 2
		})
		var want []string
		for i := range 30 {
			if i%10 == 9 {
				f.stop()
				f.start()
			}
			f.publish(fmt.Sprint(i + 1))
			want = append(want, fmt.Sprint(i+1))
		}
		given, _ := f.lease("next", "", 1, 0)
		m := given[0].Mail
		if string(m.Body) != "0" || m.Subject != "eu.created" || m.Class != "high" || m.Key != "k" || m.Type != "order" || m.Labels["a"] != "b" || m.Hops != 3 {
			t.Errorf("%+v", m)
		}
		f.ack("next", "", given[0])
		if got := f.taken("next"); !slices.Equal(got, want) {
			t.Errorf("%q", got)
		}
		out, err := f.Outgoing(t.Context())
		if err != nil || len(out) != 1 || out[0].Box != "agent:desk@beta" || out[0].Mails != 31 {
			t.Errorf("%+v, %v", out, err)
		}
		for _, s := range f.box("topic:orders").Subscriptions {
			waiting := 0
			if s.Name == "read" {
				waiting = 32
			}
			if *s.Waiting != waiting || s.Leased+s.Retrying+s.Dead > 0 || s.Problem != nil {
				t.Errorf("%+v", s)
			}
		}
	})
}

// While its box takes nothing the mail of a subscription waits, in order, nothing is spent, and
// why tells; the other subscriptions go on.
func TestSubscriptionHoldsWhatItsBoxRefuses(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("next", func(s *wire.MailboxSettings) { s.Mails = ptr(2) })
		f.mailbox("other", nil)
		f.topic("orders")
		f.must(f.deliver("held", "agent:next"))
		f.must(f.deliver("free", "agent:other"))
		bodies := []string{"1", "2", "3", "4", "5"}
		f.publish(bodies...)
		held := func(want wire.Note) {
			t.Helper()
			time.Sleep(5 * time.Minute)
			s := f.box("topic:orders").Subscriptions[0]
			if !reflect.DeepEqual(s.Problem, &want) {
				t.Errorf("%+v", s)
			}
			waiting, _, err := f.Mails(t.Context(), "topic:orders", "held", wire.MailQuery{})
			for _, m := range waiting {
				if err != nil || m.Attempts+m.Abandons > 0 || len(m.Tries) > 1 {
					t.Errorf("%+v, %v", m, err)
				}
			}
			e, _, err := f.WhyBox(t.Context(), "topic:orders/held")
			want.Cause, want.Code, want.Box = string(want.Code), wire.NoteForwardStopped, "topic:orders/held"
			if err != nil || !reflect.DeepEqual(e.Cause, want) {
				t.Errorf("%+v, %v", e.Cause, err)
			}
		}
		got := f.taken("next")
		time.Sleep(handlerRetry + time.Second)
		held(wire.Note{Code: wire.ProblemForwardRefused, NoteArgs: wire.NoteArgs{Other: "agent:next@alpha", Refusal: "FULL", Detail: "the box is full"}}) // again: 3 and 4 are there
		f.must(f.Remove(t.Context(), "next"))
		held(wire.Note{Code: wire.ProblemForwardMissing, NoteArgs: wire.NoteArgs{Other: "agent:next@alpha"}})
		f.mailbox("next", nil)
		time.Sleep(time.Minute)
		if got = append(got, f.taken("next")...); !slices.Equal(got, []string{"1", "2", "5"}) { // 3 and 4 went with the box
			t.Errorf("%q", got)
		}
		if got := f.taken("other"); !slices.Equal(got, bodies) {
			t.Errorf("%q", got)
		}
		if s := f.box("topic:orders").Subscriptions[0]; s.Problem != nil || *s.Waiting > 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A mail that its box can never take is a dead letter of the subscription, and its sender is told.
func TestSubscriptionWithAMailThatItsBoxCannotTake(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("boss", nil)
		f.mailbox("next", func(s *wire.MailboxSettings) { s.Bytes = ptr(int64(1000)) })
		f.topic("orders")
		f.must(f.deliver("small", "agent:next"))
		f.publish("1", strings.Repeat("2", 2000), "3")
		if got := f.taken("next"); !slices.Equal(got, []string{"1", "3"}) {
			t.Errorf("%q", got)
		}
		dead, _, err := f.Mails(t.Context(), "topic:orders", "small", wire.MailQuery{State: "DEAD"})
		if err != nil || len(dead) != 1 || dead[0].Cause != "final" {
			t.Errorf("%+v, %v", dead, err)
		}
		if got := f.taken("boss"); len(got) != 1 || !strings.Contains(got[0], "TOO_LARGE") {
			t.Errorf("bounces %q", got)
		}
	})
}

// The box of a subscription is changed and removed like its other settings, and is
// refused if it makes no sense.
func TestSubscriptionsChangeTheirBoxes(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("one", nil)
		f.mailbox("two", nil)
		f.topic("orders")
		f.must(f.deliver("copy", "agent:one"))
		f.publish("1")
		if s := f.box("topic:orders").Subscriptions[0]; *s.Settings.To != "agent:one" || !slices.Equal(s.Readers, []string{"to agent:one"}) {
			t.Errorf("%+v", s)
		}
		f.must(f.deliver("copy", "agent:two"))
		f.publish("2")
		_, err := f.Pause(t.Context(), "topic:orders", "copy", true)
		f.must(err)
		f.publish("3")
		if got := f.taken("two"); !slices.Equal(got, []string{"2"}) {
			t.Errorf("%q", got)
		}
		_, err = f.Pause(t.Context(), "topic:orders", "copy", false)
		f.must(err)
		synctest.Wait()
		f.must(f.deliver("copy", ""))
		f.publish("4")
		if got := f.taken("two"); !slices.Equal(got, []string{"3"}) || !slices.Equal(f.taken("one"), []string{"1"}) {
			t.Errorf("%q", got)
		}
		f.one("topic:orders", "copy", "4")
		f.must(f.deliver("gone", "agent:one"))
		f.must(f.RemoveSubscription(t.Context(), "orders", "gone"))
		f.publish("5")
		if got := f.taken("one"); len(got) > 0 {
			t.Errorf("%q", got)
		}
		f.refused(f.deliver("self", "topic:orders"), wire.ErrInvalid, "would get its own mail")
		f.refused(f.deliver("none", "agent:nobody"), wire.ErrNotFound, "there is no agent:nobody")
		f.refused(f.deliver("node", "beta"), wire.ErrInvalid, "has no mail")
		to := "agent:two"
		_, err = f.SetMailbox(t.Context(), "one", wire.MailboxSettings{SubscriptionSettings: wire.SubscriptionSettings{To: &to}})
		f.refused(err, wire.ErrInvalid, "settings of the subscriptions of a topic")
		if n := len(f.box("topic:orders").Subscriptions); n != 1 {
			t.Errorf("%d subscriptions", n)
		}
	})
}

// While there is no space for the spool of a box on another node the mail waits in its topic.
func TestSubscriptionHoldsWhatItsSpoolRefuses(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.stop()
		f.limits = box.Limits{Bytes: 3000}
		f.start()
		f.mailbox("large", nil)
		f.mail("agent:large", strings.Repeat("x", 1800), nil)
		f.topic("orders")
		f.must(f.deliver("away", "agent:desk@beta"))
		f.publish(strings.Repeat("1", 700), "2") // there is no room for a copy of the first, with or without the second
		time.Sleep(5 * time.Minute)
		if s := f.box("topic:orders").Subscriptions[0]; *s.Waiting != 2 || !reflect.DeepEqual(s.Problem, &wire.Note{Code: wire.ProblemForwardRefused, NoteArgs: wire.NoteArgs{Other: "agent:desk@beta", Refusal: "FULL", Detail: "the node has too much mail"}}) {
			t.Errorf("%d wait: %+v", *s.Waiting, s)
		}
		f.taken("large")
		time.Sleep(handlerRetry + time.Second)
		if out, err := f.Outgoing(t.Context()); err != nil || len(out) != 1 || out[0].Mails != 2 {
			t.Errorf("%+v, %v", out, err)
		}
	})
}
