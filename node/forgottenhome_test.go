package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/ownership"
)

// The alarm about a home of which there is no row, because an operator forgot it, does not begin
// again each time that it is asked for.
func TestAlarmOfAForgottenHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Second)
		defer c.close()
		time.Sleep(20 * time.Minute)
		c.nodes[0].crash()
		time.Sleep(10 * time.Minute)
		n := c.nodes[1].node
		if err := n.Pairing.Forget(t.Context(), "n0"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		q, err := n.Queues.Get(t.Context(), "build")
		if a := q.Alarm; err != nil || a == nil || a.State != "UNKNOWN" || a.Seconds < 60 {
			t.Errorf("%+v, %v", q.Alarm, err)
		}
	})
}

// Results for a home that was revoked are kept for a limited time also where an operator removed
// it from the address book since; the alarm still says that it was revoked.
func TestResultsForARevokedHomeThatIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 10*time.Second)
		defer c.close()
		time.Sleep(10 * time.Second)
		c.handOffAndWait(0, 2, nil)
		time.Sleep(time.Minute) // all have learned of it
		c.waitAccepted(2, c.submitMany(1, 6))
		time.Sleep(5 * time.Second)
		c.nodes[2].crash()
		time.Sleep(20 * time.Second)
		node := c.nodes[0].node
		if err := node.Pairing.Revoke(t.Context(), "n2", "lost"); err != nil {
			t.Fatal(err)
		}
		if err := node.Pairing.Forget(t.Context(), "n2"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		held, err := node.Queues.Driver.Leases(t.Context(), func(v ownership.LeaseView) bool { return !v.Home }, 100)
		if err != nil || len(held) == 0 {
			t.Fatalf("%d results wait: %v", len(held), err)
		}
		for _, v := range held {
			if !v.Unknown {
				t.Errorf("the result of %s is kept without a limit, as %s", v.Task, v.State)
			}
			if state, _, gone := node.Queues.HomeGone(v.Peer); !gone || state != "REVOKED" {
				t.Errorf("its home is %q, %v", state, gone)
			}
		}
	})
}
