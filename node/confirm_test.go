package node

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// A home that was given a queue has it confirmed, whomever the setting queues.made_by of
// the admin names for new queues.
func TestHomesAreConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClusterOf(t, newSimMeshWith(t, 3, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(_ *simNode, cfg *Config) {
			cfg.Queues.MadeBy = []string{} // signs new ones for no member
		}), time.Second)
		defer c.close()
		time.Sleep(time.Minute)
		c.renewCertificate(t, c.nodes[2], identity.RoleSend, identity.RoleWork)
		for from, to := range []int{1, 2} { // itself an admin, and none
			c.handOffAndWait(from, to, nil)
			c.await(2*time.Minute, "an admin to confirm the home", func() bool {
				q := c.nodes[to].node.Queues.Driver.QueueStates()["build"]
				all, err := c.nodes[to].node.Queues.Driver.Unconfirmed(t.Context())
				return err == nil && len(all) == 0 && q.GetGeneration() == uint64(to)+1
			})
		}
	})
}

// Asking admins that do not answer holds up nothing else: members and their kinds are
// known within seconds.
func TestSilentAdminsHoldUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, time.Second)
		defer c.close()
		time.Sleep(time.Minute)
		for _, i := range []int{1, 2} {
			c.renewCertificate(t, c.nodes[i], identity.RoleSend, identity.RoleWork)
		}
		const names = 20
		for i := range names {
			if _, err := c.nodes[2].node.Queues.Set(t.Context(), fmt.Sprint("q", i), wire.QueueSettings{Home: "here"}); err != nil {
				t.Fatal(err)
			}
		}
		f := c.forger("mute", "admin", "send", identity.RoleWork)
		defer f.Close()
		time.Sleep(5 * time.Second)
		c.nodes[0].halt() // the other admin
		for i := range names {
			if _, err := c.nodes[2].node.Queues.HandOff(t.Context(), fmt.Sprint("q", i), c.nodes[1].name); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(30 * time.Second)
		home := c.nodes[1]
		if all, err := home.node.Queues.Driver.Unconfirmed(t.Context()); err != nil || len(all) == 0 {
			t.Fatalf("all homes are confirmed, so that nobody is asked: %v", err)
		}
		for k := range 3 {
			kind := fmt.Sprint("new", k)
			if err := home.node.inbox.Register(inbox.Spec{Kind: kind, Allow: []string{"role:send"}, OnCrash: inbox.OnCrashRetry, Handler: clusterHandler{c, home.place, time.Second}}); err != nil {
				t.Fatal(err)
			}
			home.node.gossip.Describe()
			x, err := home.node.Submit(t.Context(), wire.Request{Target: "queue:q0", Kind: kind})
			if err != nil {
				t.Fatal(err)
			}
			c.waitAll(1, []string{x.ID}, 10*time.Second)
			time.Sleep(7 * time.Second)
		}
	})
}
