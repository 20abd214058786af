package mailbox

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// waitingFor returns how many mails wait for a node, by name.
func (f *fixture) waitingFor(home string) (n int) {
	f.t.Helper()
	all, err := f.Outgoing(f.t.Context())
	f.must(err)
	for _, s := range all {
		if s.Home == home {
			n += s.Mails
		}
	}
	return n
}

// I21: what is in a box of the mesh that has another home goes there, also if the node stopped
// before it did that; the box is removed, and its dead letters are in the archive.
func TestBoxThatLostItsHome(t *testing.T) {
	for _, stop := range []bool{false, true} {
		bubble(t, func(t *testing.T, f *fixture) {
			f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Named = true })
			f.mailbox("own", nil)
			f.mail("agent:ceo", "dead", nil)
			f.kill("ceo", "", "dead")
			f.mail("agent:ceo", "waits", nil)
			f.mail("agent:ceo", "leased", nil)
			f.lease("ceo", "", 1, time.Second)
			if stop {
				f.stop()
			}
			f.names.move("agent:ceo", f.beta)
			if stop {
				f.start()
			}
			synctest.Wait()
			if n := f.waitingFor("beta"); n != 2 {
				t.Errorf("%d mails wait for the new home", n)
			}
			time.Sleep(time.Minute)
			all, err := f.List(t.Context(), "")
			if err != nil || len(all) != 1 || all[0].Name != "agent:own@alpha" {
				t.Errorf("%+v, %v", all, err)
			}
			if dead := f.archived(); len(dead) != 1 || dead[0].Text != "dead" {
				t.Errorf("archived %+v", dead)
			}
			if want := "mailbox.move agent:ceo to beta: 2 mails"; !slices.Contains(f.audits, want) {
				t.Errorf("audits %q, want %q", f.audits, want)
			}
			told := slices.DeleteFunc(slices.Clone(f.events), func(e map[string]string) bool { return e["kind"] != wire.EventMailMoved })
			if len(told) != 1 || told[0]["box"] != "agent:ceo" || told[0]["count"] != "2" || told[0]["peer"] != f.beta.String() {
				t.Errorf("events %v", told)
			}
			f.mail("agent:ceo", "later", nil)
			if n := f.waitingFor("beta"); n != 3 {
				t.Errorf("%d mails wait for the new home", n)
			}
		})
	}
}

// A box whose home is here again before all of it was moved takes and gives mail again, and has what
// a person set.
func TestBoxWhoseHomeComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.stop()
		f.ledgers = fullDisk{f}
		f.start()
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Named = true })
		f.mail("agent:ceo", "dead", nil)
		f.kill("ceo", "", "dead")
		f.mailbox("ceo", func(s *wire.MailboxSettings) {
			s.Named, s.Paused, s.DeadAge = true, ptr(true), ptr(wire.Duration(time.Hour))
		})
		f.names.move("agent:ceo", f.beta)
		time.Sleep(time.Minute) // the archive has no room, so that the box stays
		f.names.move("agent:ceo", f.self)
		time.Sleep(time.Minute)
		f.mail("agent:ceo", "x", nil)
		if i := f.box("agent:ceo"); *i.Settings.Draining || !*i.Subscriptions[0].Settings.Paused || *i.Subscriptions[0].Settings.DeadAge != wire.Duration(time.Hour) {
			t.Errorf("what was set is forgotten: %+v", i)
		}
		_, err := f.Pause(t.Context(), "ceo", "", false)
		f.must(err)
		f.one("ceo", "", "x")
		if n := f.box("agent:ceo").Subscriptions[0].Dead; n != 1 {
			t.Errorf("%d dead letters", n)
		}
	})
}

// MOVED tells a peer where a box of the mesh is, also from a node that never had one.
func TestBundleForABoxElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.names.move("agent:ceo", f.gamma)
		for range 2 {
			m := new(proto.Bundle)
			f.must(proto.DecodeKnown(f.bundleFor("ceo", 1, 10).GetPayload(), m))
			m.Box = "agent:ceo"
			payload, err := proto.Encode(nil, m)
			f.must(err)
			f.must(f.Receive(t.Context(), f.beta, &proto.Message{Type: proto.TypeBundle, Payload: payload}))
			x := f.exchanges.with(f.beta)
			answer, err := x.arrivals[len(x.arrivals)-1].bundled(t.Context())
			if err != nil || answer.Check() != nil || answer.GetCode() != proto.CodeMoved || proto.PeerID(answer.GetHome()) != f.gamma {
				t.Errorf("%v, %v", answer, err)
			}
			f.mailbox("own", nil) // now there is a ledger
		}
	})
}

// I21, I22: what waits for a box whose home this node becomes is in the box then, once, and its
// handler takes it as mail of this node.
func TestSpoolWhoseHomeIsHere(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.names.move("agent:ceo", f.beta)
		var want []string
		for _, body := range strings.Split("abcdef", "") {
			want = append(want, body)
			f.mail("agent:ceo", body, func(m *wire.Mail) { m.Key = "k" })
		}
		f.names.move("agent:ceo", f.self)
		synctest.Wait()
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Named, s.KeyBatch = true, ptr(10) })
		time.Sleep(10 * time.Second)
		given, got := f.lease("ceo", "", 10, time.Second)
		if !slices.Equal(got, want) || given[0].Mail.From != "alpha" || !f.rules.allows("agent:ceo", f.self) {
			t.Errorf("%q, want %q", got, want)
		}
		if all, err := f.Outgoing(t.Context()); err != nil || len(all) > 0 {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// The name of a lost home is seized by an admin who accepts the loss, and told; so is one whose box here was
// closed, which is opened.
func TestSeizeOfAName(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.stop()
		f.ledgers = fullDisk{f}
		f.start()
		f.mailbox("old", func(s *wire.MailboxSettings) { s.Named = true })
		f.mail("agent:old", "dead", nil)
		f.kill("old", "", "dead")
		f.mailbox("own", nil)
		for _, name := range []string{"agent:ceo", "agent:old", "agent:own", "topic:news"} {
			f.names.move(name, f.beta)
		}
		time.Sleep(time.Minute)
		seize := func(name string, z wire.Seize) error {
			_, err := f.SetMailbox(t.Context(), name, wire.MailboxSettings{BoxSettings: wire.BoxSettings{Seize: &z}})
			return err
		}
		f.refused(seize("ceo", wire.Seize{From: "beta"}), wire.ErrInvalid, "accept_loss is not true")
		f.refused(seize("ceo", wire.Seize{From: "gamma", AcceptLoss: true}), wire.ErrRefused, "")
		f.refused(seize("own", wire.Seize{From: "beta", AcceptLoss: true}), wire.ErrRefused, "of its own")
		f.refused(seize("ceo@beta", wire.Seize{From: "beta", AcceptLoss: true}), wire.ErrInvalid, "without a node")
		for _, name := range []string{"ceo", "old"} {
			f.must(seize(name, wire.Seize{From: "beta", AcceptLoss: true}))
			f.mail("agent:"+name, "x", nil)
			f.one(name, "", "x")
		}
		if _, err := f.SetTopic(t.Context(), "news", wire.BoxSettings{Seize: &wire.Seize{From: "beta", AcceptLoss: true}}); err != nil {
			t.Error(err)
		}
		f.mail("topic:news", "x", nil)
		if want := "mailbox.seize agent:ceo from beta: what only that has is lost unless it comes back"; !slices.Contains(f.audits, want) {
			t.Errorf("audits %q, want %q", f.audits, want)
		}
		if !slices.ContainsFunc(f.events, func(e map[string]string) bool {
			return e["kind"] == wire.EventMailSeized && e["box"] == "topic:news" && e["from"] == "beta"
		}) {
			t.Errorf("events %v", f.events)
		}
	})
}
