package node

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

// replies reads n mails of a box and replies to each.
func (s *simNode) replies(box string, n int, within time.Duration) {
	s.mesh.t.Helper()
	for _, m := range s.readMail(box, n, within) {
		s.sendMail(wire.Mail{To: m.ReplyTo, Correlation: m.Correlation, Body: append([]byte("re "), m.Body...)})
	}
}

// request sends a request and waits a little for its reply.
func (s *simNode) request(to, body string) wire.MailReply {
	s.mesh.t.Helper()
	r, err := s.node.Mail.Request(s.mesh.t.Context(), wire.MailRequest{Mail: wire.Mail{To: to, Body: []byte(body), Dedupe: body}, Wait: wire.Wait(5 * time.Second)})
	if err != nil {
		s.mesh.t.Fatal(err)
	}
	return r
}

func (s *simNode) reply(id string, wait time.Duration, want string) {
	s.mesh.t.Helper()
	r, err := s.node.Mail.Reply(s.mesh.t.Context(), id, wait)
	if err != nil || r.Reply == nil || string(r.Reply.Body) != want {
		s.mesh.t.Errorf("reply to %s: %+v, %v, want %q", id, r.Reply, err, want)
	}
}

// A request to a node that is away is kept, and so is the reply while the requester's node, or
// the link, is away. A third node can do nothing about it.
func TestRequestAndReplyOverBadLinks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 3)
		defer w.close()
		alpha, beta, gamma := w.nodes[0], w.nodes[1], w.nodes[2]
		beta.addMailbox("ceo", "*")
		done := make(chan struct{})
		go func() { defer close(done); beta.replies("ceo", 1, time.Minute) }()
		if r := alpha.request("agent:ceo@n1", "at once"); r.Reply == nil || r.Reply.From != "n1" || string(r.Reply.Body) != "re at once" {
			t.Errorf("%+v", r.Reply)
		}
		<-done

		beta.crash() // the target is away when it is asked
		r := alpha.request("agent:ceo@n1", "while away")
		if r.Reply != nil || r.State != "PENDING" {
			t.Errorf("%+v", r)
		}
		time.Sleep(10 * time.Minute)
		beta.start()
		beta.replies("ceo", 1, 10*time.Minute)
		alpha.reply(r.ID, time.Minute, "re while away")

		r = alpha.request("agent:ceo@n1", "and I go") // the requester's node is away when it is replied to
		alpha.crash()
		beta.replies("ceo", 1, 10*time.Minute)
		gamma.halt() // two hours are cheap for one node
		time.Sleep(2 * time.Hour)
		gamma.start()
		alpha.start()
		if again := alpha.request("agent:ceo@n1", "and I go"); !again.Known || again.ID != r.ID {
			t.Errorf("asked again: %+v", again)
		}
		alpha.reply(r.ID, 10*time.Minute, "re and I go")

		r = alpha.request("agent:ceo@n1", "a secret")
		for _, m := range beta.readMail("ceo", 1, time.Minute) { // beta forwards the name of the box, and gamma may reply
			gamma.sendMail(wire.Mail{To: m.ReplyTo, Body: []byte("for beta")})
		}
		alpha.reply(r.ID, time.Minute, "for beta")

		beta.addMailbox("closed")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := alpha.node.Mail.Request(ctx, wire.MailRequest{Mail: wire.Mail{To: "agent:closed@n1"}, Wait: wire.Wait(time.Minute)})
		if !errors.Is(err, wire.ErrBounced) {
			t.Errorf("a request that is refused there: %v", err)
		}
	})
}
