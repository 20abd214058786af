package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/transport/transporttest"
)

// TestIdleMeshIsQuiet verifies that members send little while nothing happens, on links
// with different and varying latency, as on real machines: a change that is only noise
// is announced at most once a minute.
func TestIdleMeshIsQuiet(t *testing.T) {
	const size, minutes = 8, 2
	synctest.Test(t, func(t *testing.T) {
		w := newSimMeshWith(t, size, 1, transporttest.Link{Latency: time.Millisecond, Jitter: 60 * time.Millisecond, Seed: 1}, nil)
		defer w.close()
		for i := range size {
			for j := range i {
				w.SetDistance(i, j, time.Duration(w.rng.IntN(40))*time.Millisecond)
			}
		}
		w.await(time.Minute, "the first view", w.allAlive)
		time.Sleep(time.Minute)
		announced := func() (n float64) {
			for _, s := range w.nodes {
				n += s.metrics()["balefire_gossip_rumors_published_total{}"]
			}
			return n
		}
		from, before := w.Stats(), announced()
		time.Sleep(minutes * time.Minute)
		to, after := w.Stats(), announced()
		if before == 0 {
			t.Fatal("nothing was ever announced")
		}
		if n := after - before; n > 2*size*minutes { // some paths improve
			t.Errorf("%d idle nodes announced %.0f changes in %d minutes", size, n, minutes)
		}
		a := (minutes * time.Minute).Seconds() * size
		t.Logf("%d idle nodes: %.0f announcements; each node sends %.0f bytes and %.1f packets per second", size, after-before,
			float64(to.Bytes-from.Bytes)/a, float64(to.Sent-from.Sent)/a)
	})
}
