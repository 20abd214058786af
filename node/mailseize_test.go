package node

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

func (s *simNode) seizeMailbox(name, from string) error {
	_, err := s.get().Mail.SetMailbox(s.mesh.t.Context(), name, wire.MailboxSettings{BoxSettings: wire.BoxSettings{Seize: &wire.Seize{From: from, AcceptLoss: true}, Allow: &[]string{"*"}}})
	return err
}

// I21: an admin seizes the name of a mailbox whose home is lost. What waits in spools, also in its
// own, goes into the new box; when the old home is back, so does what waits there, and it takes no
// more.
func TestMailboxOfALostHomeIsSeized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 4)
		defer w.close()
		old, admin, want := w.nodes[1], w.nodes[2], map[string]int{}
		if err := named("ceo", "*")(old); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		send := func(what string, from ...*simNode) {
			for _, s := range from {
				for i := range 5 {
					body := fmt.Sprintf("%s %s %d", s.name, what, i)
					want[body]++
					s.sendMail(wire.Mail{To: "agent:ceo", Body: []byte(body), Key: s.name})
				}
			}
			time.Sleep(10 * time.Second)
		}
		send("before", w.nodes...)
		lost := maps.Clone(want)
		old.halt()
		send("meanwhile", w.nodes[0], admin, w.nodes[3])
		sent, errs := admin.get().Mail.Send(t.Context(), []wire.Mail{{To: "agent:ceo", Body: []byte("asked")}})
		if want["asked"]++; errs[0] != nil {
			t.Fatal(errs[0])
		}
		time.Sleep(5 * time.Minute)
		for _, asked := range []string{"agent:ceo", sent[0].ID} {
			e, err := admin.get().Explainer.Why(t.Context(), asked)
			if c := e.Cause; err != nil || c.Code != wire.NoteBoxHomeLost || c.Box != "agent:ceo" || c.Peer != "n1" || c.State != "LEFT" || c.Seconds == 0 {
				t.Errorf("why %s: %+v, %v", asked, c, err)
			}
		}
		for says, try := range map[string]func() error{
			"the home of agent:ceo is n1, not n0": func() error { return admin.seizeMailbox("ceo", "n0") },
			"is not known here":                   func() error { return admin.seizeMailbox("cto", "n1") },
			"needs the admin role":                func() error { return w.nodes[3].seizeMailbox("ceo", "n1") },
			"accept_loss": func() error {
				_, err := admin.get().Mail.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Seize: &wire.Seize{From: "n1"}}})
				return err
			},
		} {
			if err := try(); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%v, want one that says %q", err, says)
			}
		}
		if err := admin.seizeMailbox("ceo", "n1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		send("after", w.nodes[0], admin, w.nodes[3])
		for body := range lost {
			delete(want, body)
		}
		got := bodiesOf(admin.readMail("agent:ceo", len(want), time.Minute))
		if !maps.Equal(got, want) {
			t.Errorf("the new home has %v, want %v", got, want)
		}
		if n := len(admin.events(wire.EventMailSeized)); n != 1 {
			t.Errorf("%d events tell of it", n)
		}
		old.start()
		time.Sleep(10 * time.Minute)
		if got := bodiesOf(admin.readMail("agent:ceo", len(lost), time.Minute)); !maps.Equal(got, lost) {
			t.Errorf("after its return: %v, want %v", got, lost)
		}
		send("together", w.nodes...)
		admin.readMail("agent:ceo", 20, time.Minute)
		time.Sleep(time.Second) // until the answers are there
		if all, err := old.get().Mail.Page(t.Context(), "", "", 0); err != nil || len(all.Items) > 0 {
			t.Errorf("the old home has %+v, %v", all, err)
		}
		for _, s := range w.nodes {
			if n := s.outgoing(); n > 0 {
				t.Errorf("%d mails still wait at %s", n, s.name)
			}
		}
	})
}

// The name of a revoked home is seized, of a topic as well, and so is one that its home gave up.
func TestNamesOfARevokedHomeAreSeized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 4)
		defer w.close()
		old, admin := w.nodes[1], w.nodes[2]
		if _, err := old.get().Mail.SetTopic(t.Context(), "news", wire.BoxSettings{Allow: &[]string{"*"}}); err != nil {
			t.Fatal(err)
		}
		if err := named("gone")(old); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		if err := old.get().Mail.Remove(t.Context(), "gone"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		id := old.peer().String()
		if err := w.nodes[0].get().Pairing.Revoke(t.Context(), "n1", ""); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if e, err := admin.get().Explainer.Why(t.Context(), "topic:news"); err != nil || e.Cause.Code != wire.NoteBoxHomeLost || e.Cause.State != "REVOKED" {
			t.Errorf("%+v, %v", e, err)
		}
		if _, err := admin.get().Mail.SetTopic(t.Context(), "news", wire.BoxSettings{Seize: &wire.Seize{From: id, AcceptLoss: true}, Allow: &[]string{"*"}}); err != nil {
			t.Fatal(err)
		}
		if err := admin.seizeMailbox("gone", "n1"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		for _, name := range []string{"topic:news", "agent:gone"} {
			w.nodes[3].sendMail(wire.Mail{To: name})
			time.Sleep(10 * time.Second)
			if v, err := admin.get().Mail.Get(t.Context(), name); err != nil || v.Waiting != 1 {
				t.Errorf("%s: %+v, %v", name, v, err)
			}
		}
	})
}
