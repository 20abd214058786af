package mailbox

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/wire"
)

func TestMailboxSettings(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		v, err := f.SetMailbox(ctx, "ceo", wire.MailboxSettings{})
		f.must(err)
		if got, want := asJSON(t, v), `{"name":"agent:ceo@alpha","kind":"mailbox","settings":{"allow":[],"allow_read":[],"mails":100000,"bytes":268435456,"lanes":"shared","draining":false,"json":false},`+
			`"waiting":0,"bytes":0,"next":1,"ended":{"done":0,"dead":0,"expired":0,"cancelled":0,"dropped":0},`+
			`"subscriptions":[{"name":"","settings":{"mode":"shared","attempts":3,"key_batch":1,"on_dead":"skip","paused":false,"dead":10000,"dead_age":"30d"},"waiting":0,"leased":0,"retrying":0,"dead":0,"blocked":0}],"accepted":{"critical":0,"high":0,"low":0,"normal":0}}`; got != want {
			t.Errorf("defaults:\n%s, want\n%s", got, want)
		}
		all := wire.MailboxSettings{
			BoxSettings: wire.BoxSettings{
				Allow: &[]string{"peer:beta", "role:work"}, AllowRead: &[]string{"*"}, Mails: ptr(5), Bytes: ptr(int64(6000)), Draining: ptr(true), Lanes: ptr(wire.LanesShared),
				Keep: ptr(wire.Duration(time.Hour)), KeepMails: ptr(9), JSON: ptr(true),
			},
			SubscriptionSettings: wire.SubscriptionSettings{
				Mode: ptr("exclusive"), Attempts: ptr(7), Lease: ptr(wire.Duration(time.Minute)), KeyBatch: ptr(4), OnDead: ptr("block"), Paused: ptr(true), Dead: ptr(8), DeadAge: ptr(wire.Duration(time.Hour)),
			},
		}
		_, err = f.SetMailbox(ctx, "agent:ceo", all)
		f.must(err)
		_, err = f.SetMailbox(ctx, "agent:ceo@alpha", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Draining: ptr(false)}, SubscriptionSettings: wire.SubscriptionSettings{Attempts: ptr(0)}})
		f.must(err)
		*all.Draining, *all.Attempts = false, 3
		v = f.box("ceo")
		if got, want := asJSON(t, v.Settings)+asJSON(t, v.Subscriptions[0].Settings), asJSON(t, all.BoxSettings)+asJSON(t, all.SubscriptionSettings); got != want {
			t.Errorf("changed:\n%s, want\n%s", got, want)
		}
		if boxes, err := f.List(ctx, ""); err != nil || len(boxes) != 1 {
			t.Errorf("three names of one mailbox: %v, %v", boxes, err)
		}
		if want := []string{"mailbox.set agent:ceo@alpha", "mailbox.set agent:ceo@alpha", "mailbox.set agent:ceo@alpha"}; !slices.Equal(f.audits, want) {
			t.Errorf("audited %q", f.audits)
		}
	})
}

func TestSettingsRefused(t *testing.T) {
	var many []string
	for range 65 {
		many = append(many, "*")
	}
	mailbox := func(b wire.BoxSettings, s wire.SubscriptionSettings) func(*fixture) error {
		return func(f *fixture) error {
			_, err := f.SetMailbox(f.t.Context(), "ceo", wire.MailboxSettings{BoxSettings: b, SubscriptionSettings: s})
			return err
		}
	}
	boxOf := func(b wire.BoxSettings) func(*fixture) error { return mailbox(b, wire.SubscriptionSettings{}) }
	readerOf := func(s wire.SubscriptionSettings) func(*fixture) error { return mailbox(wire.BoxSettings{}, s) }
	sub := func(topic, name string, s wire.SubscriptionSettings) func(*fixture) error {
		return func(f *fixture) error {
			_, err := f.SetSubscription(f.t.Context(), topic, name, s)
			return err
		}
	}
	tests := []struct {
		name string
		do   func(*fixture) error
		want error
		says string
	}{
		{"a mailbox elsewhere", func(f *fixture) error {
			_, err := f.SetMailbox(f.t.Context(), "ceo@beta", wire.MailboxSettings{})
			return err
		}, wire.ErrRefused, "agent:ceo@beta is on another node, beta: do this there"},
		{"a topic as mailbox", func(f *fixture) error {
			_, err := f.SetMailbox(f.t.Context(), "topic:orders", wire.MailboxSettings{})
			return err
		}, wire.ErrInvalid, "topic:orders is not a mailbox"},
		{"a mailbox as topic", func(f *fixture) error {
			_, err := f.SetTopic(f.t.Context(), "agent:ceo", wire.BoxSettings{})
			return err
		}, wire.ErrInvalid, "1-63 of a-z"},
		{"a prefix as topic", func(f *fixture) error {
			_, err := f.SetTopic(f.t.Context(), "topic:", wire.BoxSettings{})
			return err
		}, wire.ErrInvalid, "1-63 of a-z"},
		{"a bad rule", boxOf(wire.BoxSettings{Allow: &[]string{"beta"}}), wire.ErrInvalid, "allow: "},
		{"a bad rule of readers", boxOf(wire.BoxSettings{AllowRead: &[]string{"beta"}}), wire.ErrInvalid, "allow_read: "},
		{"too many rules", boxOf(wire.BoxSettings{Allow: &many}), wire.ErrInvalid, "allow has 65 entries, the limit is 64"},
		{"a topic that keeps", func(f *fixture) error {
			_, err := f.SetTopic(f.t.Context(), "orders", wire.BoxSettings{Keep: ptr(wire.Duration(time.Hour))})
			return err
		}, wire.ErrInvalid, "keep and keep_mails are settings of mailboxes"},
		{"negative keep", boxOf(wire.BoxSettings{Keep: ptr(wire.Duration(-1))}), wire.ErrInvalid, "must be from 0, which keeps nothing that is done, to 10 years"},
		{"keep_mails without keep", boxOf(wire.BoxSettings{KeepMails: ptr(5)}), wire.ErrInvalid, "keep_mails 5: agent:ceo@alpha keeps nothing that is done: set keep too"},
		{"negative keep_mails", boxOf(wire.BoxSettings{KeepMails: ptr(-1)}), wire.ErrInvalid, "keep_mails -1: must be from 0, the default, to 16777216"},
		{"negative mails", boxOf(wire.BoxSettings{Mails: ptr(-1)}), wire.ErrInvalid, "mails -1: must be from 0, the default, to 16777216"},
		{"too many mails", boxOf(wire.BoxSettings{Mails: ptr(box.MaxMails + 1)}), wire.ErrInvalid, "mails 16777217"},
		{"negative bytes", boxOf(wire.BoxSettings{Bytes: ptr(int64(-1))}), wire.ErrInvalid, "bytes -1: must be from 0, the default, to 1125899906842624"},
		{"an age of a mailbox", boxOf(wire.BoxSettings{Age: ptr(wire.Duration(time.Hour))}), wire.ErrInvalid, "age and interest are settings of topics"},
		{"interest of a mailbox", boxOf(wire.BoxSettings{Interest: ptr(true)}), wire.ErrInvalid, "age and interest are settings of topics"},
		{"lanes", boxOf(wire.BoxSettings{Lanes: ptr("x")}), wire.ErrInvalid, `lanes "x": must be shared or origin`},
		{"other lanes later", boxOf(wire.BoxSettings{Lanes: ptr(wire.LanesOrigin)}), wire.ErrRefused, "what a lane is in agent:ceo@alpha cannot change"},
		{"a filter of a mailbox", readerOf(wire.SubscriptionSettings{Filter: ptr("a")}), wire.ErrInvalid, "filter, from and to are settings of the subscriptions of a topic"},
		{"a start of a mailbox", readerOf(wire.SubscriptionSettings{From: "first"}), wire.ErrInvalid, "filter, from"},
		{"negative attempts", readerOf(wire.SubscriptionSettings{Attempts: ptr(-1)}), wire.ErrInvalid, "attempts -1: must be from 0, the default, to 100"},
		{"many attempts", readerOf(wire.SubscriptionSettings{Attempts: ptr(101)}), wire.ErrInvalid, "attempts 101"},
		{"a large key batch", readerOf(wire.SubscriptionSettings{KeyBatch: ptr(17)}), wire.ErrInvalid, "key_batch 17: must be from 0, the default, to 16"},
		{"a long lease", readerOf(wire.SubscriptionSettings{Lease: ptr(wire.Duration(box.MaxLease + time.Millisecond))}), wire.ErrInvalid, "from 0, the default, to 12 hours"},
		{"a lease of microseconds", readerOf(wire.SubscriptionSettings{Lease: ptr(wire.Duration(time.Microsecond))}), wire.ErrInvalid, "whole milliseconds"},
		{"many dead letters", readerOf(wire.SubscriptionSettings{Dead: ptr(box.MaxMails + 1)}), wire.ErrInvalid, "dead 16777217"},
		{"old dead letters", readerOf(wire.SubscriptionSettings{DeadAge: ptr(wire.Duration(maxAge + time.Hour))}), wire.ErrInvalid, "to 10 years"},
		{"a word for dead letters", readerOf(wire.SubscriptionSettings{OnDead: ptr("stop")}), wire.ErrInvalid, `on_dead "stop": must be skip or block`},
		{"a mode", readerOf(wire.SubscriptionSettings{Mode: ptr("random")}), wire.ErrInvalid, `mode "random": must be shared, exclusive or failover`},
		{"a strategy", readerOf(wire.SubscriptionSettings{Strategy: ptr("lottery")}), wire.ErrInvalid, `strategy "lottery": must be ordered, round_robin, priority or least_loaded`},
		{"a strategy for one reader", readerOf(wire.SubscriptionSettings{Mode: ptr("exclusive"), Strategy: ptr("priority")}), wire.ErrInvalid, "strategy priority: it is for the mode shared"},
		{"a subscription of a mailbox", sub("agent:ceo", "billing", wire.SubscriptionSettings{}), wire.ErrInvalid, "1-63 of a-z"},
		{"a subscription of no topic", sub("none", "billing", wire.SubscriptionSettings{}), wire.ErrNotFound, "make it with balefire-node topic add none"},
		{"a subscription without a name", sub("orders", "", wire.SubscriptionSettings{}), wire.ErrInvalid, `subscription "": use 1-63`},
		{"a bad filter", sub("orders", "x", wire.SubscriptionSettings{Filter: ptr("a.>.b")}), wire.ErrInvalid, `filter "a.>.b": use words with dots between them`},
		{"another filter", sub("orders", "billing", wire.SubscriptionSettings{Filter: ptr("a")}), wire.ErrRefused, "name and filter of a subscription never change"},
		{"a bad start", sub("orders", "x", wire.SubscriptionSettings{From: "yesterday"}), wire.ErrInvalid, `start "yesterday": must be new, first, last, a sequence number, or a time`},
		{"a start of one that exists", sub("orders", "billing", wire.SubscriptionSettings{From: "first"}), wire.ErrRefused, "move this one with sub seek"},
		{"a topic that is too old", func(f *fixture) error {
			_, err := f.SetTopic(f.t.Context(), "orders", wire.BoxSettings{Age: ptr(wire.Duration(maxAge + time.Hour))})
			return err
		}, wire.ErrInvalid, "to 10 years"},
		{"seek of a mailbox", func(f *fixture) error {
			_, err := f.Seek(f.t.Context(), "agent:ceo", "x", wire.SeekSubscription{To: "new"})
			return err
		}, wire.ErrInvalid, "1-63 of a-z"},
		{"seek of no subscription", func(f *fixture) error {
			_, err := f.Seek(f.t.Context(), "orders", "none", wire.SeekSubscription{To: "new"})
			return err
		}, wire.ErrNotFound, "there is no topic:orders/none on this node; make it with balefire-node sub add orders none"},
		{"seek to nowhere", func(f *fixture) error {
			_, err := f.Seek(f.t.Context(), "orders", "billing", wire.SeekSubscription{To: "-1"})
			return err
		}, wire.ErrInvalid, `start "-1"`},
		{"no subscription to remove", func(f *fixture) error { return f.RemoveSubscription(f.t.Context(), "orders", "none") }, wire.ErrNotFound, "topic:orders/none"},
		{"no mailbox to remove", func(f *fixture) error { return f.Remove(f.t.Context(), "none") }, wire.ErrNotFound, "agent:none@alpha"},
		{"a mailbox elsewhere to remove", func(f *fixture) error { return f.Remove(f.t.Context(), "ceo@beta") }, wire.ErrRefused, "on another node"},
		{"a negative purge", func(f *fixture) error {
			_, err := f.Purge(f.t.Context(), "ceo", wire.PurgeMail{Limit: -1})
			return err
		}, wire.ErrInvalid, "limit -1: must not be negative"},
		{"a purge of nothing", func(f *fixture) error {
			_, err := f.Purge(f.t.Context(), "none", wire.PurgeMail{DryRun: true})
			return err
		}, wire.ErrNotFound, "agent:none@alpha"},
	}
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.topic("orders", "billing")
		before := asJSON(t, f.box("ceo")) + asJSON(t, f.box("topic:orders"))
		f.audits = nil
		for _, tt := range tests {
			if err := tt.do(f); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %v, want %v that says %q", tt.name, err, tt.want, tt.says)
			}
		}
		if after := asJSON(t, f.box("ceo")) + asJSON(t, f.box("topic:orders")); after != before || len(f.audits) > 0 {
			t.Errorf("what was refused changed\n%s to\n%s, audited %q", before, after, f.audits)
		}
	})
}

func TestLimitsOfSettings(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", func(s *wire.MailboxSettings) {
			s.Mails, s.Bytes, s.Lanes = ptr(box.MaxMails), ptr(int64(maxBoxBytes)), ptr(wire.LanesOrigin)
			s.Attempts, s.KeyBatch, s.Lease, s.Dead, s.DeadAge = ptr(box.MaxAttempts), ptr(box.MaxKeyBatch), ptr(wire.Duration(box.MaxLease)), ptr(box.MaxMails), ptr(wire.Duration(maxAge))
		})
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Lanes = ptr(wire.LanesOrigin) }) // the same: no change
		v := f.box("ceo")
		if s := v.Subscriptions[0].Settings; *v.Settings.Mails != box.MaxMails || *v.Settings.Bytes != maxBoxBytes || *v.Settings.Lanes != wire.LanesOrigin || *s.Attempts != 100 || *s.Lease != wire.Duration(box.MaxLease) {
			t.Errorf("settings %s, %s", asJSON(t, v.Settings), asJSON(t, s))
		}
		v, err := f.SetTopic(t.Context(), "orders", wire.BoxSettings{Age: ptr(wire.Duration(maxAge)), Interest: ptr(true), Lanes: ptr(wire.LanesOrigin)})
		f.must(err)
		if *v.Settings.Age != wire.Duration(maxAge) || !*v.Settings.Interest || len(v.Subscriptions) != 0 {
			t.Errorf("topic %s", asJSON(t, v))
		}
	})
}

func TestListOfBoxes(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("b", nil)
		f.topic("a")
		f.mailbox("a", nil)
		for kind, want := range map[string]string{"": "agent:a@alpha agent:b@alpha topic:a", wire.BoxMailbox: "agent:a@alpha agent:b@alpha", wire.BoxTopic: "topic:a"} {
			all, err := f.List(t.Context(), kind)
			f.must(err)
			var names []string
			for _, v := range all {
				names = append(names, v.Name)
			}
			if got := strings.Join(names, " "); got != want {
				t.Errorf("of kind %q: %s, want %s", kind, got, want)
			}
		}
	})
}

// TestRemove checks S11: who sent what waits in a box hears of its removal.
func TestRemove(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("boss", nil)
		f.topic("orders", "billing", "audit")
		f.mail("agent:ceo", "hello", func(m *wire.Mail) { m.Sender = "boss" })
		waiting := make(chan error)
		go func() {
			_, err := f.Lease(t.Context(), "topic:orders", "audit", wire.LeaseMail{Wait: wire.Wait(time.Minute)})
			waiting <- err
		}()
		synctest.Wait()
		f.must(f.Remove(t.Context(), "ceo"))
		f.must(f.RemoveSubscription(t.Context(), "topic:orders", "audit"))
		f.refused(<-waiting, wire.ErrNotFound, "topic:orders/audit was removed")
		_, err := f.Get(t.Context(), "ceo")
		f.refused(err, wire.ErrNotFound, "mailbox add ceo")
		if got, _ := f.lease("boss", "", 9, time.Second); len(got) != 1 || got[0].Mail.BounceOf == "" {
			t.Errorf("the sender got %+v", got)
		}
		if subs := f.box("topic:orders").Subscriptions; len(subs) != 1 || subs[0].Name != "billing" {
			t.Errorf("subscriptions %+v", subs)
		}
		f.must(f.Remove(t.Context(), "topic:orders"))
		f.restart()
		if all, err := f.List(t.Context(), ""); err != nil || len(all) != 1 {
			t.Errorf("left: %v, %v", all, err)
		}
	})
}

func TestPurge(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("boss", nil)
		f.topic("orders", "billing", "audit")
		for _, body := range []string{"1", "2", "3", "4"} {
			f.mail("agent:ceo", body, func(m *wire.Mail) { m.Sender = "boss" })
			f.mail("topic:orders", body, nil)
		}
		f.lease("ceo", "", 1, 0)
		f.lease("topic:orders", "billing", 2, 0)
		f.lease("topic:orders", "audit", 1, 0) // which the other one has too
		purge := func(name string, r wire.PurgeMail, want int) {
			t.Helper()
			got, err := f.Purge(t.Context(), name, r)
			if err != nil || got.Mails != want || got.DryRun != r.DryRun {
				t.Errorf("purge of %s %+v: %+v, %v, want %d mails", name, r, got, err, want)
			}
		}
		purge("ceo", wire.PurgeMail{DryRun: true}, 3)
		purge("ceo", wire.PurgeMail{DryRun: true, Limit: 2}, 2)
		purge("ceo", wire.PurgeMail{Limit: 1, Reason: strings.Repeat("é", 128)}, 1)
		synctest.Wait() // its bounce is the first
		if got := f.mails("ceo", "", wire.MailQuery{}); !slices.Equal(got, []string{"1", "3", "4"}) {
			t.Errorf("left: %q", got)
		}
		purge("ceo", wire.PurgeMail{}, 2)
		purge("ceo", wire.PurgeMail{}, 0)
		purge("topic:orders", wire.PurgeMail{DryRun: true}, 2)
		purge("topic:orders", wire.PurgeMail{}, 2)
		if v := f.box("ceo"); v.Waiting != 1 || v.Ended.Cancelled != 3 {
			t.Errorf("%d wait, %d were cancelled", v.Waiting, v.Ended.Cancelled)
		}
		synctest.Wait()
		if bounces, _ := f.lease("boss", "", 9, 0); len(bounces) != 3 || !strings.Contains(string(bounces[0].Mail.Body), `"reason":"`+strings.Repeat("é", 128)+`"`) {
			t.Errorf("the sender got %d mails: %+v", len(bounces), bounces)
		}
	})
}

// A mailbox can be closed, and opened, when its handler could not be set any more: where its
// mail goes is removed and its program may not run.
func TestAllowChangesBesideABrokenHandler(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		for _, name := range []string{"next", "raw"} {
			if _, err := f.SetMailbox(t.Context(), name, wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: &[]string{"*"}}}); err != nil {
				t.Fatal(err)
			}
		}
		f.handle(wire.MailHandler{Forward: "agent:next"})
		if err := f.Remove(t.Context(), "next"); err != nil {
			t.Fatal(err)
		}
		f.programs.mu.Lock()
		f.programs.denied = wire.ErrDenied
		f.programs.mu.Unlock()
		for _, allow := range [][]string{{}, {"peer:beta"}} {
			v, err := f.SetMailbox(t.Context(), "raw", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: &allow}})
			if err != nil || !slices.Equal(*v.Settings.Allow, allow) || v.Settings.Handler == nil || v.Settings.Handler.Forward != "agent:next" {
				t.Errorf("%q: %+v, %v", allow, v.Settings, err)
			}
		}
	})
}
