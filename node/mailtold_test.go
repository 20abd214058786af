package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

// I21: a sender on another node is told that its mail is DONE, though its mailbox allows nobody, once,
// whatever of both nodes is killed in between.
func TestDoneIsToldToAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		from, home := w.nodes[0], w.nodes[1]
		home.addMailbox("ceo", "*")
		from.addMailbox("me")
		from.sendMail(wire.Mail{To: "agent:ceo@n1", Sender: "me", Notify: "done", Body: []byte("asked")}, wire.Mail{To: "agent:ceo@n1", Sender: "me"})
		time.Sleep(10 * time.Second)
		from.crash()
		home.readMail("agent:ceo", 2, time.Minute)
		time.Sleep(10 * time.Second)
		home.crash()
		home.start()
		from.start()
		time.Sleep(time.Minute)
		got := from.readMail("agent:me", 1, time.Minute)
		if box, err := from.get().Mail.Get(t.Context(), "me"); err != nil || box.Next != 2 {
			t.Errorf("%+v, %v", box, err)
		}
		if got[0].Type != wire.TypeDone || got[0].From != "n1" || got[0].BounceOf == "" {
			t.Errorf("told by %+v", got)
		}
		if n := len(home.events(wire.EventMailUntold)); n != 0 {
			t.Errorf("%d events tell that nobody could be told", n)
		}
	})
}

// I21: a mail for another node has a receipt that this node has signed and its origin keeps, though both
// are killed around it; the home states the same of it, and so does a node of what is in its own box.
func TestReceiptsOfMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		from, home := w.nodes[0], w.nodes[1]
		home.addMailbox("ceo", "*")
		from.addMailbox("me")
		home.crash()
		sent, errs := from.get().Mail.Send(t.Context(), []wire.Mail{{To: "agent:ceo@n1", Receipt: true, Body: []byte("asked")}, {To: "agent:ceo@n1"}, {To: "agent:me", Receipt: true}})
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		receipts := func(s *simNode, id string, wait time.Duration) []wire.MailReceipt {
			t.Helper()
			all, err := s.get().Mail.Receipts(t.Context(), id, wait)
			if err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
			return all
		}
		if all := receipts(from, sent[0].ID, time.Minute); len(all) != 0 {
			t.Fatalf("while the home is down: %+v", all)
		}
		home.start()
		all := receipts(from, sent[0].ID, 10*time.Minute)
		if len(all) != 1 || !all[0].Verified || all[0].Node != "n1" || all[0].Origin != "n0" {
			t.Fatalf("%+v", all)
		}
		from.crash()
		from.start()
		if again := receipts(from, sent[0].ID, 0); len(again) != 1 || again[0].Proof != all[0].Proof {
			t.Errorf("after a restart: %+v", again)
		}
		for s, id := range map[*simNode]string{home: sent[0].ID, from: sent[2].ID} {
			if own := receipts(s, id, 0); len(own) != 1 || !own[0].Verified || own[0].Node != s.name || own[0].Origin != "n0" {
				t.Errorf("%s states %+v", s.name, own)
			}
		}
		if own := receipts(home, sent[0].ID, 0); own[0].Digest != all[0].Digest || own[0].Box != all[0].Box || own[0].Number != all[0].Number {
			t.Errorf("the home states %+v, and stated %+v", own, all)
		}
		if n := len(from.events(wire.EventMailUnproven)); n != 0 {
			t.Errorf("%d events tell of missing receipts", n)
		}
	})
}
