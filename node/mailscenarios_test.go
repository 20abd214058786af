package node

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// S09: the bundles of a mail are all that tells another node of it. The first ones are lost
// behind the acknowledgment of the stream, while the reader is idle: the mail is sent again
// until it is answered, and read once.
func TestLostBundleReachesAnIdleReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.addMailbox("ceo", "*")
		const loses = 2
		var bundles atomic.Int32
		beta.interceptMail(func(_ context.Context, m *proto.Message) bool {
			return m.GetType() != proto.TypeBundle || bundles.Add(1) > loses
		})
		began := time.Now()
		alpha.sendMail(wire.Mail{To: "agent:ceo@n1", Body: []byte("hello")})
		if got := beta.readMail("ceo", 1, 5*time.Minute); len(got) == 1 && string(got[0].Body) != "hello" {
			t.Errorf("%q", got[0].Body)
		}
		if took := time.Since(began); bundles.Load() != loses+1 || took > loses*time.Minute {
			t.Errorf("%d bundles in %v", bundles.Load(), took)
		}
		time.Sleep(time.Minute)
		if n := alpha.outgoing(); n != 0 {
			t.Errorf("%d mails still wait", n)
		}
		beta.readMail("ceo", 0, time.Second)
		t.Logf("counted: 1 mail, %d bundles, %d of them lost", bundles.Load(), loses)
	})
}

// S10: two agents on two nodes answer each other's mail with mail. The chain of causes ends,
// each mail is handled once, and nothing is left.
func TestAgentsThatTriggerEachOtherAreStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		for _, n := range w.nodes {
			n.addMailbox("agent", "*")
		}
		w.nodes[0].sendMail(wire.Mail{To: "agent:agent@n1", Sender: "agent"})
		handled := map[string]int{}
		last := error(nil)
		for at := 1; last == nil; at = 1 - at {
			got := w.nodes[at].readMail("agent", 1, time.Minute)
			if len(got) != 1 {
				break
			}
			handled[got[0].ID]++
			if got[0].Hops != len(handled)-1 {
				t.Errorf("mail %d has %d hops", len(handled), got[0].Hops)
			}
			_, errs := w.nodes[at].node.Mail.Send(t.Context(), []wire.Mail{{To: fmt.Sprintf("agent:agent@n%d", 1-at), Sender: "agent", Hops: got[0].Hops + 1}})
			last = errs[0]
		}
		if last == nil || !strings.Contains(last.Error(), "hops 17: must be from 0 to 16") || len(handled) != 17 {
			t.Errorf("after %d mails: %v", len(handled), last)
		}
		time.Sleep(time.Minute)
		for _, n := range w.nodes {
			if box, err := n.node.Mail.Get(t.Context(), "agent"); err != nil || box.Waiting != 0 || n.outgoing() != 0 {
				t.Errorf("%s has %+v, %d for others, %v", n.name, box, n.outgoing(), err)
			}
		}
		t.Logf("counted: %d mails over two nodes", len(handled))
	})
}

// S11: a mailbox is removed while mail waits in it and more is sent to it, and then its node
// goes for good. The sender is told of each mail once, and both sides are empty at the end.
func TestMailForWhatIsRemovedComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		alpha.addMailbox("me")
		beta.addMailbox("ceo", "*")
		want := map[string]string{} // causes by body
		send := func(cause string, n int) {
			for range n {
				body := fmt.Sprint(len(want))
				want[body] = cause
				alpha.sendMail(wire.Mail{To: "agent:ceo@n1", Sender: "me", Body: []byte(body), TTL: wire.Duration(10 * time.Minute)})
			}
			time.Sleep(5 * time.Second)
		}
		send("removed", 4) // they wait in the box
		if err := beta.node.Mail.Remove(t.Context(), "ceo"); err != nil {
			t.Fatal(err)
		}
		send("expired", 3) // there is no such box: they wait for it
		beta.halt()        // for good
		send("expired", 2)
		told := map[string]int{}
		for _, m := range alpha.readMail("me", len(want), 20*time.Minute) {
			found := ""
			for body, cause := range want {
				if strings.Contains(string(m.Body), fmt.Sprintf(`"body":"%s"`, base64.StdEncoding.EncodeToString([]byte(body)))) {
					found = body
					if !strings.Contains(string(m.Body), `"cause":"`+cause) && !strings.Contains(string(m.Body), `"cause":"unheard"`) {
						t.Errorf("%s, want the cause %s", m.Body, cause)
					}
				}
			}
			if told[found]++; found == "" || told[found] > 1 {
				t.Errorf("told %s", m.Body)
			}
		}
		alpha.readMail("me", 0, time.Minute)
		if box, err := alpha.node.Mail.Get(t.Context(), "me"); err != nil || box.Waiting != 0 || alpha.outgoing() != 0 {
			t.Errorf("%+v, %d for others, %v", box, alpha.outgoing(), err)
		}
		t.Logf("counted: %d mails, %d bounces", len(want), len(told))
	})
}

// S11: a node is revoked while mail waits for it, some of which it may have. The senders are told
// at once, also of what is sent afterwards and after a restart, and nothing is left.
func TestMailForARevokedNodeComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 3)
		defer w.close()
		alpha, beta, gamma := w.nodes[0], w.nodes[1], w.nodes[2]
		alpha.addMailbox("me")
		beta.addMailbox("ceo", "*")
		gamma.addMailbox("ceo", "*")
		beta.interceptMail(func(_ context.Context, m *proto.Message) bool { return m.GetType() != proto.TypeBundle })
		send := func(to, body string) {
			alpha.sendMail(wire.Mail{To: to, Sender: "me", Body: []byte(body)})
		}
		send("agent:ceo@n1", "sent")
		time.Sleep(5 * time.Second)
		beta.halt()
		gamma.halt()
		time.Sleep(5 * time.Second)
		send("agent:ceo@n1", "waits")
		send("agent:ceo@n2", "stays")
		alpha.readMail("me", 0, 10*time.Minute)
		if err := alpha.node.Pairing.Revoke(t.Context(), "n1", "test"); err != nil {
			t.Fatal(err)
		}
		told := func(n int) (all string) {
			t.Helper()
			for _, m := range alpha.readMail("me", n, 5*time.Second) {
				all += string(m.Body) + "\n"
			}
			return all
		}
		all := told(2)
		for _, want := range []string{`"cause":"unheard","reason":"the node of the box was revoked: it may have been delivered"`, `"cause":"refused","reason":"the node of the box was revoked"`} {
			if strings.Count(all, want) != 1 {
				t.Errorf("told %s, want %s once", all, want)
			}
		}
		alpha.halt()
		alpha.start()
		send("agent:ceo@n1", "late")
		if late := told(1); !strings.Contains(late, `"cause":"refused","reason":"the node of the box was revoked"`) {
			t.Errorf("told %s of what was sent afterwards", late)
		}
		if n := alpha.outgoing(); n != 1 {
			t.Errorf("%d mails wait, want that for the other node", n)
		}
		gamma.start()
		gamma.readMail("ceo", 1, time.Minute)
	})
}
