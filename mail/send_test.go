package mail

import (
	"testing"

	"github.com/balefire/balefire/proto"
)

// I21: when a send has returned, the power is cut, and the mail is there: in its box, or in the
// spool of a box of another node. One that was sent as relaxed may be lost.
func TestASendIsSyncedWhenItReturns(t *testing.T) {
	for _, tt := range []struct {
		name          string
		away, relaxed bool
	}{
		{"to a box of this node", false, false},
		{"to a box of another node", true, false},
		{"relaxed to a box of this node", false, true},
		{"relaxed to a box of another node", true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSim(t)
			c := &crashes{sim: s, t: t, o: s.nodes[0], h: s.home()}
			n, call := c.h, func() *Sending { return c.sendHere("1", tt.relaxed) }
			if tt.away {
				n, call = c.o, func() *Sending { return c.forward("1", tt.relaxed).Sending }
			}
			sent := call()
			n.step()
			if sent.left == 0 {
				t.Error("it was answered before it was written")
			}
			n.log.write(1<<30, true)
			n.step()
			if sent.left > 0 || sent.err != nil || sent.sent[0].Code != proto.CodeOK {
				t.Fatalf("it was written, and answered with %+v, %v", sent.sent, sent.err)
			}
			c.lost(n, 0)
			if kept := c.has(n, tt.away); kept == tt.relaxed {
				t.Errorf("after a power cut the mail is there: %v", kept)
			}
		})
	}
}

// sendHere hands the home a mail for its own box.
func (c *crashes) sendHere(text string, relaxed bool) *Sending {
	c.t.Helper()
	s, err := c.h.QueueSend([]Item{{Box: "agent:a", Letter: c.letter(text)}}, relaxed, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

// has reports whether agent:a, or at the origin its spool, has a mail.
func (c *crashes) has(n *simNode, away bool) bool {
	if away {
		return n.waitingIn(n.spools.targets["agent:a"]) > 0
	}
	id, _ := n.state.Find("agent:a")
	for range n.state.Mails(id, 0, 0) {
		return true
	}
	return false
}
