package transport

import (
	"context"
	"log/slog"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/route"
)

// A relayed connection moves to another relay if the whole path through it is better: a
// new circuit is established next to the old one, new streams and the open link move to
// it, and the old one is closed when nothing uses it anymore.

// A relayChooser moves relayed connections to better relays.
type relayChooser struct {
	self    proto.PeerID
	cfg     Config
	log     *slog.Logger
	group   *taskGroup
	peers   *peerTable
	relays  *relays
	greeter *greeter
	dialer  *dialer
	update  func(*peerState) // looks for the best path again; called with the mu of peers held
}

// Timing and bounds of a switch.
const (
	switchMargin  = 0.1              // score margin by which another relay must be better
	switchHold    = time.Minute      // for this long without interruption
	switchStagger = 15 * time.Second // added on one of the two sides, so that not both switch
	switchDial    = longDial
	maxPeerConns  = 4 // connections to a peer; no switch while there are this many
)

// picker returns the picker of the relay to one peer.
func (rc *relayChooser) picker(p proto.PeerID) *route.Picker {
	hold := switchHold
	if comparePeers(rc.self, p) > 0 {
		hold += switchStagger
	}
	return &route.Picker{Want: 1, Margin: switchMargin, Hold: hold}
}

// watch seeks a better relay to n until ctx is done: by comparisons while work waits,
// and otherwise by what is known of the relays.
func (rc *relayChooser) watch(ctx context.Context, n *peerState) {
	pick, watch, theirs := rc.picker(n.peer), new(relayWatch), new(theirChoice)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	looked, acked := time.Duration(0), uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		rc.peers.mu.Lock()
		c := n.best()
		if l := n.link; c != nil && l != nil && !shouldMove(c, l.conn) && !l.conn.direct() {
			c = l.conn // the same relay, and this one carries the tasks
		}
		rc.peers.mu.Unlock()
		if c == nil || c.direct() {
			continue // upgrade ends soon
		}
		now := rc.cfg.Clock.Mono()
		watch.sample(c, now)
		if busy, late := c.pendingAcks.busy(now); watch.due(now, busy, late) {
			rc.compareRelays(ctx, n, c, watch)
		} else if now-looked >= measureEvery {
			bytes, compared := rc.peers.incoming(n)
			works, holds := c.work.acked.Load() != acked, theirs.holds(now, bytes, compared)
			looked, acked = now, c.work.acked.Load()
			if works && now >= watch.next && rc.expectedGain(n, c) >= expectGain {
				rc.compareRelays(ctx, n, c, watch)
			} else {
				rc.switchRelay(ctx, n, c, pick, holds && !works)
			}
		}
	}
}

// expectedGain returns by how much the score of the best other relay to n is better than
// that of c, as far as known.
func (rc *relayChooser) expectedGain(n *peerState, c *conn) (gain float64) {
	current, _ := relayOf(c.raw.RemoteMultiaddr())
	for _, r := range rc.relays.others(n.peer, current) {
		gain = max(gain, rc.relays.scoreVia(r, n.peer)-rc.relays.scoreVia(current, n.peer))
	}
	return gain
}

// switchRelay makes a circuit to n through a relay that has been better than that of c,
// which is in use, for long. theirs: it is left to the other side,
// unless round trips through the other relay take less than half as long.
func (rc *relayChooser) switchRelay(ctx context.Context, n *peerState, c *conn, pick *route.Picker, theirs bool) {
	current, ok := relayOf(c.raw.RemoteMultiaddr())
	if !ok {
		return
	}
	there := []route.Candidate{{Peer: current, Score: rc.relays.scoreVia(current, n.peer)}}
	path, _ := rc.relays.viaPath(current, n.peer)
	for _, r := range rc.relays.others(n.peer, current) {
		if other, _ := rc.relays.viaPath(r, n.peer); theirs && 2*other.RTT > path.RTT {
			continue
		}
		there = append(there, route.Candidate{Peer: r, Score: rc.relays.scoreVia(r, n.peer)})
	}
	picked := pick.Pick([]proto.PeerID{current}, there, rc.cfg.Clock.Mono())[0]
	rc.peers.mu.Lock()
	full := len(n.conns) >= maxPeerConns
	rc.peers.mu.Unlock()
	if picked == current || full {
		return
	}
	if err := rc.dialer.dialVia(ctx, n.peer, picked, false); err != nil {
		rc.log.Info("keeping the path: the better relay does not reach the peer", "peer", n.peer, "relay", picked, "why", err)
	}
}
