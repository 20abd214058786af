package gossip

import (
	"time"

	"github.com/balefire/balefire/proto"
)

// A member is what the core knows about one other node.
type member struct {
	id          proto.PeerID
	status      Status
	connected   bool
	busy        bool // this node has work for it
	recovering  bool // is in Core.recovering
	incarnation uint64
	record      *Update       // newest
	since       time.Duration // time of the last status change
	eligibleAt  time.Duration // it gets no new work before
	flaps       int           // before eligibleAt
	synced      time.Duration // time of the last exchange; 0: never
	suspicion   *suspicion    // set for a suspect; for a dead member it holds the proof of the verdict
	path        path
}

func (m *member) revision() uint64 {
	if m.record == nil || m.record.Record == nil {
		return 0
	}
	return m.record.Record.GetRevision()
}

func (m *member) state() proto.NodeState {
	if m.record == nil {
		return proto.NodeUnspecified
	}
	return m.record.Record.GetState()
}

// gone reports whether m is DEAD or has left.
func (m *member) gone() bool { return m.status == Dead || m.status == Left }

// eligible reports whether m may receive new work.
func (m *member) eligible(now time.Duration) bool {
	return m.status == Alive && now >= m.eligibleAt && m.state() == proto.NodeRunning
}

// A path holds what probes have measured to a member.
type path struct {
	rtt, rttvar time.Duration // smoothed as in TCP; 0: not measured
	loss        float64       // of direct probes, smoothed
	heard       time.Duration // time of its last message to this node; 0: never
	replied     time.Duration // time of its answer to the last direct probe; 0: none
}

// answered records a round trip.
func (p *path) answered(rtt time.Duration) {
	p.loss *= 15.0 / 16
	if p.rtt == 0 {
		p.rtt, p.rttvar = max(rtt, 1), rtt/2
		return
	}
	p.rttvar += ((p.rtt - rtt).Abs() - p.rttvar) / 4
	p.rtt = max(p.rtt+(rtt-p.rtt)/8, 1)
}

// missed records an unanswered direct probe.
func (p *path) missed() { p.loss, p.replied = p.loss+(1-p.loss)/16, 0 }

// timeout returns how long to wait for an answer over p.
func (p *path) timeout(least time.Duration) time.Duration {
	return min(max(least, p.rtt+4*p.rttvar), maxTimeout)
}

// maxTimeout bounds a timeout derived from measurements.
const maxTimeout = 5 * time.Second
