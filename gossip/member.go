package gossip

import (
	"time"

	"github.com/balefire/balefire/proto"
)

// A member is a row of the core: what is known of one other node.
type member struct {
	id          proto.PeerID
	status      Status
	connected   bool
	busy        bool // there is work for it
	recovering  bool // is in Core.recovering
	incarnation uint64
	record      *Update       // newest
	since       time.Duration // of status
	eligibleAt  time.Duration // new work is kept away until then
	flaps       int           // within that time
	synced      time.Duration // when the last exchange with it was; 0: never
	suspicion   *suspicion    // of a suspect and, as the proof of the verdict, of the dead
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

// gone reports whether m is no part of the mesh at the moment.
func (m *member) gone() bool { return m.status == Dead || m.status == Left }

// eligible reports whether m may have new work.
func (m *member) eligible(now time.Duration) bool {
	return m.status == Alive && now >= m.eligibleAt && m.state() == proto.NodeRunning
}

// A path is what probes measured of the way to a member.
type path struct {
	rtt, rttvar time.Duration // smoothed, as TCP does it; 0: not measured
	loss        float64       // of direct probes, smoothed
	heard       time.Duration // when it last spoke to this node; 0: never
	replied     time.Duration // when it answered the last direct probe; 0: it did not
}

// answered takes a round trip into account.
func (p *path) answered(rtt time.Duration) {
	p.loss *= 15.0 / 16
	if p.rtt == 0 {
		p.rtt, p.rttvar = max(rtt, 1), rtt/2
		return
	}
	p.rttvar += ((p.rtt - rtt).Abs() - p.rttvar) / 4
	p.rtt = max(p.rtt+(rtt-p.rtt)/8, 1)
}

// missed takes a direct probe into account that had no answer.
func (p *path) missed() { p.loss, p.replied = p.loss+(1-p.loss)/16, 0 }

// timeout returns how long to wait for an answer over p.
func (p *path) timeout(least time.Duration) time.Duration {
	return min(max(least, p.rtt+4*p.rttvar), maxTimeout)
}

// maxTimeout bounds what a measured path can make of a timeout.
const maxTimeout = 5 * time.Second
