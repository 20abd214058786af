package node

import (
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
)

// forger makes a member of the mesh that runs no node, and knows every node that runs.
// It must be closed before the mesh is.
func (sm *simMesh) forger(name string, roles ...string) *transporttest.Forger {
	sm.t.Helper()
	f := transporttest.NewForgerOn(sm.t, rootIn(sm.t, sm.nodes[0].dir), name, sm.Network, 200+len(name), roles...)
	for _, s := range sm.nodes {
		if n := s.get(); n != nil {
			f.Connect(n.keys.Peer(), n.net.Addrs())
		}
	}
	return f
}

// forger makes a member of the mesh that l founded. It runs no node and is connected
// with l.
func (l *testNode) forger(name string, roles ...string) *transporttest.Forger {
	l.t.Helper()
	f := transporttest.NewForger(l.t, rootIn(l.t, l.cfg.Dir), name, roles...)
	<-l.net.Opened()
	f.Connect(l.keys.Peer(), l.net.Addrs())
	return f
}

// rootIn returns the root key of the mesh that the node in dir founded.
func rootIn(t testing.TB, dir string) *identity.Root {
	t.Helper()
	root, err := identity.LoadRoot(filepath.Join(dir, datadir.Identity))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// A node accepts the hello of a forger, reads what it sends on each kind of stream,
// and tells it what members are told.
func TestForgerIsTreatedAsMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, time.Second)
		defer c.close()
		f := c.forger("mallory", "send")
		defer f.Close()
		n := c.nodes[0].node
		time.Sleep(30 * time.Second)
		if m, ok := n.book.Member(f.Peer()); !ok || m.Name != "mallory" || !n.net.Connected(f.Peer()) || f.Listeners() != 1 {
			t.Fatalf("to the node it is %+v, %v", m, ok)
		}
		bad := counted(t, n, "balefire_ownership_refused_total", "renew")
		f.Send(n.keys.Peer(), proto.StreamTask, transporttest.FrameOf(proto.TypeRenew, []byte("no renewal"), nil))
		if got := counted(t, n, "balefire_ownership_refused_total", "renew"); got != bad+1 {
			t.Errorf("%v bad messages were counted, want %v", got, bad+1)
		}
		reported := false
		for _, h := range f.Received() {
			reported = reported || h.From == n.keys.Peer() && h.Message.GetType() == proto.TypeQueues
		}
		if !reported {
			t.Error("it did not learn of the queue")
		}
		if m, err := f.Ask(n.keys.Peer(), proto.StreamSync, f.Frame(proto.TypeSync, new(proto.SyncRequest))); err != nil || m.GetType() != proto.TypeSynced {
			t.Errorf("a sync is answered with %v, %v", m, err)
		}
		if err := f.Publish([]byte("no rumor")); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if !f.Connected(n.keys.Peer()) {
			t.Error("one bad rumor closed the connection")
		}
	})
}
