package node

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
)

// An admin signs the creation of a queue, and the confirmation of its home, only for a member
// that has the role work now. One that never had it, or has lost it, gets no deed when it asks
// with its own program (I17).
func TestForgedAsksGetNoDeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, time.Second)
		defer c.close()
		admin := c.nodes[0].node
		to := admin.keys.Peer()
		sender, worker := c.forger("mallory", identity.RoleSend), c.forger("mole", identity.RoleSend, identity.RoleWork)
		defer sender.Close()
		defer worker.Close()
		time.Sleep(10 * time.Second)
		refused := func(f *transporttest.Forger, queue string, generation uint64) {
			t.Helper()
			if a := askDeed(t, f, to, queue, generation); a.GetDeed() != nil || !strings.Contains(a.GetReason(), "a home needs the role work") {
				t.Errorf("%s, generation %d: the answer is %v", queue, generation, a)
			}
		}
		refused(sender, "deploy", 1)
		refused(sender, "build", 2)

		if a := askDeed(t, worker, to, "deploy", 1); a.GetDeed() == nil {
			t.Fatalf("with the role work it gets no deed: %s", a.GetReason())
		}
		if err := admin.Queues.Driver.HandOff(t.Context(), "build", worker.Peer()); err != nil {
			t.Fatal(err)
		}
		if a := askDeed(t, worker, to, "build", 2); a.GetDeed() == nil {
			t.Fatalf("with the role work its home is not confirmed: %s", a.GetReason())
		}
		now := time.Now()
		cert, err := rootIn(t, c.nodes[0].dir).IssueMember(identity.Member{Peer: worker.Peer(), Name: "mole", Roles: []string{identity.RoleSend}}, now)
		if err == nil {
			err = admin.book.Learn(t.Context(), &proto.KnownPeer{Certificate: cert, KeyRecord: worker.Keys.KeyRecord()})
		}
		if err != nil {
			t.Fatal(err)
		}
		refused(worker, "deploy", 1) // also what was signed for it before
		refused(worker, "other", 1)
		refused(worker, "build", 2)
	})
}

// askDeed asks a node, as an admin, for a deed, and returns its answer.
func askDeed(t *testing.T, f *transporttest.Forger, to proto.PeerID, queue string, generation uint64) *proto.QueueAnswer {
	t.Helper()
	f.Received()
	f.Send(to, proto.StreamTask, f.Frame(proto.TypeQueueAsk, &proto.QueueAsk{Number: 7, Queue: queue, Generation: generation}))
	time.Sleep(5 * time.Second)
	for _, r := range f.Received() {
		if r.Message.GetType() != proto.TypeQueueAnswer {
			continue
		}
		a := new(proto.QueueAnswer)
		if err := proto.DecodeKnown(r.Message.GetPayload(), a); err != nil || a.GetNumber() != 7 {
			t.Fatalf("the answer is %v, %v", a, err)
		}
		return a
	}
	t.Fatalf("no answer for %s", queue)
	return nil
}
