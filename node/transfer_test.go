package node

import (
	"testing"

	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
)

// TestTransferReportsProgress verifies the progress text of a transfer in why, events
// and waits: bytes, share, rate and remaining time, as far as known.
func TestTransferReportsProgress(t *testing.T) {
	n := start(t, func() Config {
		c := testConfig(t, t.TempDir()+"/a")
		if _, err := pairing.Init(pairing.InitOptions{Dir: c.Dir, Name: "a", NewMesh: true}); err != nil {
			t.Fatal(err)
		}
		return c
	}())
	for _, tt := range []struct {
		flow transport.Flow
		want string
	}{
		{transport.Flow{Out: true, Peer: n.keys.Peer(), Size: 200 << 20, Done: 50 << 20, Rate: 10 << 20}, "its body is being transferred to a: 50.0 MiB of 200.0 MiB (25 %), 10.0 MiB/s, 15s left"},
		{transport.Flow{Result: true, Peer: n.keys.Peer(), Size: 3 << 30}, "its result is being transferred from a: 0.0 KiB of 3.0 GiB (0 %)"},
	} {
		if got := n.Views.Transfer(tt.flow).String(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
	if x := n.Views.Transfers(proto.TaskID{1}); x != nil {
		t.Errorf("%v for an unknown task", x)
	}
}
