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
// is announced at most once a minute. They send as much as in the model of
// gossip.TestLargeMeshIsQuiet, which has 200 members. BALEFIRE_LONG has larger meshes.
func TestIdleMeshIsQuiet(t *testing.T) {
	for _, tt := range []struct {
		size    int
		bytes   float64 // of the model, a node and second, with headers
		packets float64 // likewise: on a real machine each wakes the node
	}{{8, 1200, 11}, {15, 1500, 13}, {30, 2000, 15}} {
		if tt.size > 8 && !longRun {
			continue
		}
		t.Run(fmt.Sprint(tt.size, " nodes"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { restQuietly(t, tt.size, tt.bytes, tt.packets) })
		})
	}
}

// asModel is how much the traffic of whole nodes may differ from that of the model.
const asModel = 1.3

func restQuietly(t *testing.T, size int, modelBytes, modelPackets float64) {
	const minutes = 2
	w := newSimMeshWith(t, size, 1, transporttest.Link{Latency: time.Millisecond, Jitter: 60 * time.Millisecond, Seed: 1}, nil)
	defer w.close()
	for i := range size {
		for j := range i {
			w.SetDistance(i, j, time.Duration(w.rng.IntN(40))*time.Millisecond)
		}
	}
	w.await(time.Minute, "the first view", w.allAlive)
	time.Sleep(3 * time.Minute) // the first records have introductions
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
	for what, got := range map[string]float64{"bytes": bytes / modelBytes, "packets": packets / modelPackets} {
		if got < 1/asModel || got > asModel {
			t.Errorf("each of %d idle nodes sends %.2f times as many %s as in the model", size, got, what)
		}
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
