package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/settings"
	"github.com/balefire/balefire/transport/transporttest"
)

// A node whose disk is full is granted no tasks by others (I13), and takes some again when there is
// space. What it has accepted as a home it still runs itself, which frees space.
func TestFullNodeIsGrantedNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reserve := [2]settings.Bytes{1, 1 << 60}
		c := newClusterOf(t, newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
			smallMesh(s, cfg)
			cfg.Simulated.Engine, cfg.Store.Engine, cfg.Store.Reserve = nil, datadir.EnginePebble, reserve[s.place] // on the disk
		}), time.Second)
		defer c.close()
		again := func(place int, bytes settings.Bytes) {
			c.nodes[place].halt()
			reserve[place] = bytes
			c.nodes[place].start()
			c.serve(c.nodes[place], time.Second)
			time.Sleep(30 * time.Second)
		}
		if by := c.waitAll(0, c.submitMany(0, 40), 10*time.Minute); by[0] != 40 {
			t.Errorf("run by %v, want none by the full node", by)
		}
		again(1, 1)
		if by := c.waitAll(0, c.submitMany(0, 40), 10*time.Minute); by[1] == 0 {
			t.Errorf("run by %v, none by the node that has space again", by)
		}
		c.nodes[1].halt()
		ids := c.submitMany(0, 40)
		time.Sleep(time.Second / 2) // the home has accepted all
		again(0, 1<<60)
		if by := c.waitAll(0, ids, 10*time.Minute); by[0] != 40 {
			t.Errorf("run by %v, want all by their home", by)
		}
	})
}
