package transporttest

import (
	"net"
	"time"
)

// A side is one direction of one node's link.
type side struct {
	node int
	in   bool
}

// enqueue puts a packet into the queues of its sender's and its receiver's links, and
// returns how long it waits there; false: one of them is full.
func (n *Network) enqueue(from int, addr net.Addr, size int) (wait time.Duration, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	to, now := n.nodeAt(addr), time.Now()
	out, ok := n.wait(side{from, false}, n.nodeLinks[from].Out, now, size)
	if !ok {
		n.stats.Dropped++
		return 0, false
	}
	there := now.Add(out + n.link.Latency + n.extraLatency[pair(from, to)])
	in, ok := n.wait(side{to, true}, n.nodeLinks[to].In, there, size)
	if !ok {
		n.stats.Dropped++
	}
	return out + in, ok
}

// wait returns how long a packet waits that is put into a queue at this time; false: the
// queue is full. The caller holds mu.
func (n *Network) wait(s side, d Direction, at time.Time, size int) (time.Duration, bool) {
	if d.Queue == 0 || d.Mbps == 0 {
		return 0, true
	}
	sending := func(bytes int) time.Duration {
		return time.Duration(float64(bytes) * 8 / d.Mbps * float64(time.Microsecond))
	}
	until := n.busy[s]
	if until.Before(at) {
		until = at
	} else if until.Sub(at) > sending(d.Queue) {
		return 0, false
	}
	until = until.Add(sending(size))
	n.busy[s] = until
	return until.Sub(at), true
}
