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
