package transporttest

import (
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestDrops(t *testing.T) {
	n := Mesh(t, Link{Loss: 0.2, Seed: 3})
	to := func(i int) net.Addr { return n.addrOf(i) }
	const packets = 10_000
	lost := 0
	for range packets {
		if n.drops(0, to(1), 0) {
			lost++
		}
	}
	if lost < packets*18/100 || lost > packets*22/100 {
		t.Errorf("%d of %d packets are lost, want 20 %%", lost, packets)
	}
	if s := n.Stats(); s.Sent != packets || s.Dropped != lost {
		t.Errorf("stats %+v", s)
	}
	n.SetLoss(0)
	tests := []struct {
		name         string
		change       func()
		there, back  bool // dropped from 0 to 1, from 1 to 0
		thirdIsAlone bool // dropped from 0 to 300
	}{
		{"clean", func() {}, false, false, false},
		{"one way", func() { n.Cut(0, 1) }, true, false, false},
		{"partition", func() { n.Partition([]int{0, 1}, []int{300}) }, true, false, true},
		{"healed", n.Heal, false, false, false},
		{"unplugged", func() { n.Unplug(1) }, true, true, false},
		{"plugged", func() { n.Plug(1) }, false, false, false},
	}
	for _, tt := range tests {
		tt.change()
		if n.drops(0, to(1), 0) != tt.there || n.drops(1, to(0), 0) != tt.back || n.drops(0, to(300), 0) != tt.thirdIsAlone {
			t.Errorf("%s: not as expected", tt.name)
		}
	}
}

// TestHold checks that held packets arrive eventually, and that the loss of one node
// affects no other.
func TestHold(t *testing.T) {
	n := Mesh(t, Link{})
	n.Hold(1)
	var got []int
	for i := range maxHeld + 10 {
		if !n.hold(0, n.addrOf(1), func() { got = append(got, i) }) {
			t.Fatal("a packet passes a held node")
		}
	}
	if n.hold(0, n.addrOf(2), nil) || !n.hold(1, n.addrOf(2), func() {}) {
		t.Error("the wrong ones are kept")
	}
	n.Release(1)
	if len(got) != maxHeld || got[0] != 0 || got[maxHeld-1] != maxHeld-1 || n.hold(0, n.addrOf(1), nil) {
		t.Errorf("%d arrive", len(got))
	}
	n.SetNodeLoss(1, 1)
	if !n.drops(0, n.addrOf(1), 0) || !n.drops(1, n.addrOf(0), 0) || n.drops(0, n.addrOf(2), 0) {
		t.Error("the wrong ones lose packets")
	}
}

// TestNodeLinks checks that the directions of a node's link are independent.
func TestNodeLinks(t *testing.T) {
	n := Mesh(t, Link{})
	n.SetNodeLink(1, NodeLink{In: Direction{Loss: 1}})
	n.SetNodeLink(2, NodeLink{Out: Direction{Loss: 1}})
	for _, tt := range []struct {
		from, to int
		lost     bool
	}{{0, 1, true}, {1, 0, false}, {0, 2, false}, {2, 0, true}, {0, 3, false}} {
		if got := n.drops(tt.from, n.addrOf(tt.to), 0); got != tt.lost {
			t.Errorf("from %d to %d: dropped %v", tt.from, tt.to, got)
		}
	}
}

// TestNodeMTU checks that the MTUs of the directions of a node's link are independent and
// change under way.
func TestNodeMTU(t *testing.T) {
	n := Mesh(t, Link{MTU: 1472})
	n.SetNodeLink(1, NodeLink{In: Direction{MTU: 1372}})
	n.SetNodeLink(2, NodeLink{Out: Direction{MTU: 1300}})
	check := func(from, to, size int, lost bool) {
		t.Helper()
		if got := n.drops(from, n.addrOf(to), size); got != lost {
			t.Errorf("%d bytes from %d to %d: dropped %v", size, from, to, got)
		}
	}
	check(0, 1, 1372, false)
	check(0, 1, 1373, true)
	check(1, 0, 1472, false)
	check(1, 0, 1473, true)
	check(2, 0, 1301, true)
	check(0, 2, 1472, false)
	n.SetNodeLink(1, NodeLink{})
	check(0, 1, 1472, false)
}

// TestQueue checks that a queue delays each packet by those before it, in both of its
// links, drops what has no room, and takes another rate at once.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := Mesh(t, Link{Latency: 10 * time.Millisecond})
		defer n.Close()
		a, b := n.newSocket(0, n.addrOf(0), SendAll), n.newSocket(1, n.addrOf(1), SendAll)
		defer a.Close()
		defer b.Close()
		n.SetNodeLink(0, NodeLink{Out: Direction{Mbps: 0.08, Queue: 3000}}) // 1000 bytes take 100 ms
		arrivals := func(count int) (all []time.Duration) {
			t.Helper()
			began, p := time.Now(), make([]byte, 1000)
			for range count {
				if _, err := a.WriteTo(p, n.addrOf(1)); err != nil {
					t.Fatal(err)
				}
			}
			for {
				b.SetReadDeadline(time.Now().Add(time.Second))
				if _, _, err := b.ReadFrom(p); err != nil {
					return all
				}
				all = append(all, time.Since(began).Round(time.Millisecond))
			}
		}
		const ms = time.Millisecond
		if got := arrivals(6); !slices.Equal(got, []time.Duration{110 * ms, 210 * ms, 310 * ms, 410 * ms}) {
			t.Errorf("arrivals %v", got)
		}
		if s := n.Stats(); s.Dropped != 2 {
			t.Errorf("%d packets were dropped", s.Dropped)
		}
		n.SetNodeLink(0, NodeLink{Out: Direction{Mbps: 0.8, Queue: 3000}})
		n.SetNodeLink(1, NodeLink{In: Direction{Mbps: 0.4, Queue: 3000}})
		if got := arrivals(3); !slices.Equal(got, []time.Duration{40 * ms, 60 * ms, 80 * ms}) {
			t.Errorf("arrivals at another rate %v", got)
		}
	})
}

func TestNodeAddresses(t *testing.T) {
	for _, one := range []bool{false, true} {
		n := Mesh(t, Link{OneIP: one})
		for _, i := range []int{0, 1, 254, 255, 256, 1000} {
			if got := n.nodeAt(n.addrOf(i)); got != i {
				t.Errorf("node %d is found as %d", i, got)
			}
		}
		if n.nodeAt(&net.TCPAddr{}) != -1 {
			t.Error("a node has no address")
		}
	}
}
