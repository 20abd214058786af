package node

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// The status of a node warns of results that their homes refuse: here of a node that lost
// the role work while it ran a task.
func TestStatusWarnsOfRefusedResults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, smallMesh)
		defer w.close()
		home, target := w.nodes[0], w.nodes[1]
		id := home.mustSubmit(sleepTask(15*time.Minute, "n1"))
		time.Sleep(10 * time.Minute)
		w.renewCertificate(t, target, identity.RoleSend)
		time.Sleep(10 * time.Minute)
		all := target.node.Views.Status(t.Context()).Warnings
		at := slices.IndexFunc(all, func(n wire.Note) bool { return n.Code == wire.NoteResultsRefused })
		if at < 0 {
			t.Fatalf("the warnings are %+v", all)
		}
		if n := all[at]; n.Count != 1 || n.Peer != "n0" || n.Refusal != "DENIED" || n.Task != id || n.Detail == "" {
			t.Errorf("the warning is %+v", n)
		}
	})
}
