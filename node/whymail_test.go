package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

// Why follows a mail from its sender's disk to its reader: no path to the home of its box, what
// the home says, the box there, and its end, asked at both nodes.
func TestWhyOfAMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		want := func(at *simNode, subject, state string, code wire.NoteCode) wire.Blocker {
			t.Helper()
			b, err := at.node.Explainer.Why(t.Context(), subject)
			if err != nil || b.State != state || b.Cause.Code != code {
				t.Errorf("%s at %s: %s because of %+v, %v; want %s, %s", subject, at.name, b.State, b.Cause, err, state, code)
			}
			return b
		}
		beta.halt()
		time.Sleep(time.Minute)
		sent, errs := alpha.node.Mail.Send(t.Context(), []wire.Mail{{To: "agent:ceo@n1", Body: []byte("hello")}})
		if errs[0] != nil {
			t.Fatal(errs[0])
		}
		id := sent[0].ID
		if b := want(alpha, id, "PENDING", wire.NotePeerLeft); b.Cause.Peer != "n1" || b.Cause.Box != "agent:ceo@n1" {
			t.Errorf("%+v", b.Cause)
		}
		want(alpha, "agent:ceo@n1", "ELSEWHERE", wire.NotePeerLeft)
		beta.start()
		time.Sleep(time.Minute)
		if b := want(alpha, id, "PENDING", wire.NoteMailRefused); b.Cause.Refusal != "NO_HANDLER" || b.Next == nil {
			t.Errorf("%+v", b)
		}
		beta.addMailbox("ceo", "peer:n0")
		time.Sleep(6 * time.Minute)
		if b := want(alpha, id, "ACCEPTED", wire.NoteMailTaken); b.Cause.Peer != "n1" {
			t.Errorf("%+v", b.Cause)
		}
		want(alpha, "agent:ceo@n1", "ELSEWHERE", wire.NoteBoxElsewhere)
		want(beta, id, "WAITING", wire.NoteNoReader)
		want(beta, "ceo", "OPEN", wire.NoteNoReader)
		beta.readMail("ceo", 1, time.Minute)
		want(beta, id[:18], "DONE", wire.NoteMailEnded)
		if _, err := beta.node.Explainer.Why(t.Context(), "agent:nobody"); !errors.Is(err, wire.ErrNotFound) {
			t.Error(err)
		}
		beta.halt()
		beta.start()
		if _, err := beta.node.Explainer.Why(t.Context(), id); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("after a restart: %v", err)
		}
	})
}
