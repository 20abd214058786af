package node

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/transport/transporttest"
)

// headers is what UDP and IPv4 add to a packet.
const headers = 28

// TestIdleMeshIsQuiet verifies that members send little while nothing happens, on links
// with different and varying latency, as on real machines: a change that is only noise
// is announced at most once a minute. BALEFIRE_LONG has larger meshes, which rest for ten
// minutes before they are measured.
func TestIdleMeshIsQuiet(t *testing.T) {
	for _, tt := range []struct {
		size  int
		bytes float64 // at most, a node and second, with headers
		most  float64 // packets likewise: on a real machine each wakes the node
	}{{8, 4000, 15}, {15, 4000, 16}, {30, 6000, 22}} {
		if tt.size > 8 && !longRun {
			continue
		}
		t.Run(fmt.Sprint(tt.size, " nodes"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { restQuietly(t, tt.size, tt.bytes, tt.most) })
		})
	}
}

func restQuietly(t *testing.T, size int, most, mostPackets float64) {
	const minutes = 2
	w := newSimMeshWith(t, size, 1, transporttest.Link{Latency: time.Millisecond, Jitter: 60 * time.Millisecond, Seed: 1}, nil)
	defer w.close()
	for i := range size {
		for j := range i {
			w.SetDistance(i, j, time.Duration(w.rng.IntN(40))*time.Millisecond)
		}
	}
	w.await(time.Minute, "the first view", w.allAlive)
	rest := time.Minute
	if longRun {
		rest = 10 * time.Minute
	}
	time.Sleep(rest)
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
	if n := after - before; n > float64(2*size*minutes) { // some paths improve
		t.Errorf("%d idle nodes announced %.0f changes in %d minutes", size, n, minutes)
	}
	a := (minutes * time.Minute).Seconds() * float64(size)
	packets := float64(to.Sent-from.Sent) / a
	bytes := float64(to.Bytes-from.Bytes)/a + headers*packets
	t.Logf("%d idle nodes: %.0f announcements; each node sends %.0f bytes, with headers, and %.1f packets per second", size, after-before, bytes, packets)
	if bytes > most {
		t.Errorf("each of %d idle nodes sends %.0f bytes per second, want at most %.0f", size, bytes, most)
	}
	if packets > mostPackets {
		t.Errorf("each of %d idle nodes sends %.1f packets per second, want at most %.0f", size, packets, mostPackets)
	}
}

// TestLoneNodeIsSilent verifies that a node that knows no other sends nothing.
func TestLoneNodeIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimMesh(t, 1, 1, lanLink)
		defer w.close()
		time.Sleep(10 * time.Minute)
		if n := w.Stats().Sent; n > 0 {
			t.Errorf("a node that is alone sent %d packets in ten minutes", n)
		}
	})
}
