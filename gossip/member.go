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
	least       time.Duration // the shortest round trip
	loss        float64       // of direct probes, smoothed
	replied     time.Duration // time of its answer to the last direct probe; 0: none
	late        uint64        // number of the last failed probe; 0: its answer came, or none failed
	lateSent    time.Duration // when that was sent
	unanswered  time.Duration // when the first failed probe after the last answer was sent; 0: none
	slow        bool          // the member was not silent while its last answer was late, or that is the second one
	raised      bool          // late answers have raised rtt
}

// answered records the answer to a probe.
func (p *path) answered(now, sent time.Duration) {
	rtt := now - sent
	p.replied, p.late, p.unanswered = now, 0, 0
	p.loss *= 15.0 / 16
	if p.least == 0 || rtt < p.least {
		p.least = max(rtt, 1)
	}
	if p.rtt == 0 || p.raised && rtt < p.rtt/2 { // the queue is empty again, or there was a pause
		p.rtt, p.rttvar, p.raised = max(rtt, 1), rtt/2, false
		return
	}
	p.rttvar += ((p.rtt - rtt).Abs() - p.rttvar) / 4
	p.rtt = max(p.rtt+(rtt-p.rtt)/8, 1)
}

// answeredLate records the answer to a probe that has failed. The next ones get as much
// time, unless it may have been late because the member paused.
func (p *path) answeredLate(now time.Duration) {
	if p.slow {
		p.answered(now, p.lateSent)
		p.raised = true
	}
	p.slow, p.late, p.unanswered, p.replied = true, 0, 0, now
}

// missed records an unanswered direct probe.
func (p *path) missed(o *probe) {
	p.loss, p.replied = p.loss+(1-p.loss)/16, 0
	p.late, p.lateSent = o.number, o.sent
	if p.unanswered == 0 {
		p.unanswered = o.sent
	}
}

// timeout returns how long to wait for an answer over p.
func (p *path) timeout(least time.Duration) time.Duration {
	return min(max(least, p.rtt+4*p.rttvar), maxTimeout)
}

// maxTimeout bounds a timeout derived from measurements.
const maxTimeout = 5 * time.Second
