package node

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// newMailMesh returns nodes that are connected, for tests of mail.
func newMailMesh(t *testing.T, n int) *simMesh {
	w := newSimMeshWith(t, n, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, quietMesh)
	time.Sleep(10 * time.Second)
	return w
}

// addMailbox makes a mailbox that every member may write to.
func (s *simNode) addMailbox(name string, allow ...string) {
	s.mesh.t.Helper()
	if _, err := s.node.Mail.SetMailbox(s.mesh.t.Context(), name, wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: &allow}}); err != nil {
		s.mesh.t.Fatal(err)
	}
}

// sendMail sends mails, each of which must be taken.
func (s *simNode) sendMail(mails ...wire.Mail) {
	s.mesh.t.Helper()
	for len(mails) > 0 {
		part := mails[:min(len(mails), wire.MaxMailBatch)]
		mails = mails[len(part):]
		_, errs := s.node.Mail.Send(s.mesh.t.Context(), part)
		for i, err := range errs {
			if err != nil {
				s.mesh.t.Fatalf("mail %d: %v", i, err)
			}
		}
	}
}

// readMail reads and acknowledges n mails, and returns them.
func (s *simNode) readMail(box string, n int, within time.Duration) (all []wire.ReceivedMail) {
	s.mesh.t.Helper()
	end := time.Now().Add(within)
	for len(all) < n && time.Now().Before(end) {
		given, err := s.node.Mail.Lease(s.mesh.t.Context(), box, "", wire.LeaseMail{Max: 100, Wait: wire.Wait(time.Second)})
		if err != nil {
			s.mesh.t.Fatal(err)
		}
		var done wire.SettleMail
		for _, d := range given {
			all, done.Ack = append(all, d.Mail), append(done.Ack, d.Lease)
		}
		if len(given) == 0 {
			continue
		}
		settled, err := s.node.Mail.Settle(s.mesh.t.Context(), box, "", done)
		if err != nil {
			s.mesh.t.Fatal(err)
		}
		for _, r := range settled {
			if r.Code != wire.SettledOK {
				s.mesh.t.Errorf("ack: %+v", r)
			}
		}
	}
	if len(all) != n {
		s.mesh.t.Errorf("%s has %d mails for %s within %s, want %d", s.name, len(all), box, within, n)
	}
	return all
}

func (s *simNode) outgoing() (n int) {
	s.mesh.t.Helper()
	spools, err := s.node.Mail.Outgoing(s.mesh.t.Context())
	if err != nil {
		s.mesh.t.Fatal(err)
	}
	for _, x := range spools {
		n += x.Mails
	}
	return n
}

// I21, I22: mail for a node that is off waits at its sender, survives the sender's restart, and is
// read once and in order when both run.
func TestMailWaitsForANodeThatIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.addMailbox("ceo", "peer:n0")
		beta.halt()
		const mails = 1000
		var all []wire.Mail
		for i := range mails {
			all = append(all, wire.Mail{To: "agent:ceo@n1", Body: fmt.Append(nil, i)})
		}
		alpha.sendMail(all...)
		if s := alpha.node.Views.Status(t.Context()); s.Mail == nil || s.Mail.Outgoing != mails {
			t.Errorf("the status has %+v", s.Mail)
		}
		if n := alpha.outgoing(); n != mails {
			t.Errorf("%d mails wait, want %d", n, mails)
		}
		alpha.halt()
		alpha.start()
		beta.start()
		for i, m := range beta.readMail("ceo", mails, time.Minute) {
			if string(m.Body) != fmt.Sprint(i) || m.From != "n0" {
				t.Fatalf("mail %d is %q from %s", i, m.Body, m.From)
			}
		}
		time.Sleep(time.Second)
		if n := alpha.outgoing(); n != 0 {
			t.Errorf("%d mails still wait", n)
		}
	})
}

// I21, S11: the sender of a mail that a box does not allow is told, even if that is the only mail that
// it may get from there.
func TestRefusedMailBouncesToItsSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.addMailbox("ceo")
		alpha.addMailbox("me")
		alpha.sendMail(wire.Mail{To: "agent:ceo@n1", Sender: "me", Body: []byte("hello")})
		bounce := alpha.readMail("me", 1, time.Minute)
		if len(bounce) == 1 && (bounce[0].Type != "balefire.bounce" || bounce[0].BounceOf == "") {
			t.Errorf("%+v", bounce[0])
		}
		if n := alpha.outgoing(); n != 0 {
			t.Errorf("%d mails still wait", n)
		}
	})
}

// I21: who sent a mail from an agent without a mailbox is told by an event that it was not
// delivered, where that is known: the bounce does not wait for the mailbox.
func TestBounceWithoutAMailboxIsAnEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.addMailbox("ceo", "*")
		alpha.sendMail(wire.Mail{To: "agent:ceo@n1", Sender: "me", Body: []byte("hello")})
		time.Sleep(5 * time.Second)
		if err := beta.node.Mail.Remove(t.Context(), "ceo"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		var told []wire.NodeEvent
		for _, e := range alpha.node.Events.Read(t.Context(), 0, 1000, 0).Items {
			if e.Kind == wire.EventMailBounced {
				told = append(told, e)
			}
		}
		if n := beta.outgoing(); len(told) != 1 || n != 0 {
			t.Errorf("%d bounces wait, events %+v", n, told)
		}
	})
}

// Mail for a box that does not exist yet waits for it, and is there as soon as it is made:
// its node notifies its peers.
func TestMailWaitsForItsBox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		alpha.sendMail(wire.Mail{To: "agent:later@n1", Key: "k", Body: []byte("1")}, wire.Mail{To: "agent:later@n1", Key: "k", Body: []byte("2")})
		time.Sleep(20 * time.Minute)
		spools, err := alpha.node.Mail.Outgoing(t.Context())
		if err != nil || len(spools) != 1 || len(spools[0].Stops) == 0 || spools[0].Stops[0].Code != "NO_HANDLER" {
			t.Errorf("%+v, %v", spools, err)
		}
		beta.addMailbox("later", "*")
		got := beta.readMail("later", 2, 2*time.Second)
		if len(got) == 2 && (string(got[0].Body) != "1" || string(got[1].Body) != "2") {
			t.Errorf("%q, then %q", got[0].Body, got[1].Body)
		}
	})
}

// interceptMail makes a node, at its next start, call f for each message about mail before
// it is received; one for which f is false is dropped.
func (s *simNode) interceptMail(f func(ctx context.Context, m *proto.Message) bool) {
	s.receiveMail(func(ctx context.Context, m *proto.Message, receive func() error) error {
		if !f(ctx, m) {
			return nil
		}
		return receive()
	})
}

// receiveMail makes a node, at its next start, call f for each message about mail in place of
// what receives it.
func (s *simNode) receiveMail(f func(ctx context.Context, m *proto.Message, receive func() error) error) {
	s.halt()
	s.change = func(cfg *Config) {
		configure := cfg.Simulated.Transport
		cfg.Simulated.Transport = func(c *transport.Config) {
			configure(c)
			receive := c.Mail
			c.Mail = func(ctx context.Context, from proto.PeerID, m *proto.Message) error {
				return f(ctx, m, func() error { return receive(ctx, from, m) })
			}
		}
	}
	s.start()
	time.Sleep(10 * time.Second)
}

// I22, S09: a mail whose answer was lost is sent again, also while the answers to others come.
func TestLostAnswerOfMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.addMailbox("ceo", "*")
		beta.addMailbox("desk", "*")
		var lost atomic.Int32
		alpha.interceptMail(func(_ context.Context, m *proto.Message) bool {
			return m.GetType() != proto.TypeBundled || lost.Add(1) > 1
		})
		alpha.sendMail(wire.Mail{To: "agent:ceo@n1"})
		for range 100 {
			time.Sleep(time.Second)
			alpha.sendMail(wire.Mail{To: "agent:desk@n1"})
		}
		time.Sleep(time.Second)
		if n := alpha.outgoing(); n > 0 || lost.Load() < 2 {
			t.Errorf("%d mails still wait after %d answers", n, lost.Load())
		}
		beta.readMail("ceo", 1, time.Second)
		beta.readMail("desk", 100, time.Second)
	})
}

// A node that takes long for each bundle is sent each mail once.
func TestSlowNodeIsSentMailOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.addMailbox("ceo", "*")
		var bundles atomic.Int32
		beta.interceptMail(func(ctx context.Context, m *proto.Message) bool {
			bundles.Add(1)
			select {
			case <-time.After(2 * time.Minute):
			case <-ctx.Done():
			}
			return true
		})
		const mails = 10
		for range mails {
			alpha.sendMail(wire.Mail{To: "agent:ceo@n1"})
			time.Sleep(time.Second)
		}
		beta.readMail("ceo", mails, time.Hour)
		time.Sleep(time.Second)
		if n := alpha.outgoing(); n > 0 || bundles.Load() != mails {
			t.Errorf("%d mails still wait after %d bundles", n, bundles.Load())
		}
	})
}

// A topic and a mailbox of the mesh are found by their names from every node.
func TestMailByNamesOfTheMesh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 3)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		everyone := []string{"*"}
		if _, err := alpha.node.Mail.SetMailbox(t.Context(), "desk", wire.MailboxSettings{Named: true, BoxSettings: wire.BoxSettings{Allow: &everyone}}); err != nil {
			t.Fatal(err)
		}
		if _, err := beta.node.Mail.SetTopic(t.Context(), "orders", wire.BoxSettings{Allow: &everyone}); err != nil { // alpha signs
			t.Fatal(err)
		}
		for name, filter := range map[string]string{"all": "", "eu": "eu.>"} {
			if _, err := beta.node.Mail.SetSubscription(t.Context(), "orders", name, wire.SubscriptionSettings{Filter: &filter}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute) // the names are told
		w.nodes[2].sendMail(wire.Mail{To: "agent:desk", Body: []byte("1")},
			wire.Mail{To: "topic:orders", Subject: "eu.created", Body: []byte("2")}, wire.Mail{To: "topic:orders", Subject: "us.created", Body: []byte("3")})
		if got := alpha.readMail("agent:desk", 1, time.Minute); len(got) == 1 && got[0].From != "n2" {
			t.Errorf("%+v", got[0])
		}
		time.Sleep(time.Minute)
		for name, want := range map[string]int{"all": 2, "eu": 1} {
			got, err := beta.node.Mail.Lease(t.Context(), "topic:orders", name, wire.LeaseMail{Max: 10})
			if err != nil || len(got) != want {
				t.Errorf("%s has %d mails, want %d: %v", name, len(got), want, err)
			}
		}
		if _, errs := w.nodes[2].node.Mail.Send(t.Context(), []wire.Mail{{To: "topic:unknown"}}); errs[0] == nil {
			t.Error("a mail to a topic that nobody knows was taken")
		}
	})
}
