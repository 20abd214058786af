package route

import "time"

// smooth is the weight of the newest sample: about the last ten count.
const smooth = 0.2

// Smaller samples are ignored.
const (
	minPackets = 20
	minBusy    = 50 * time.Millisecond
	minBytes   = 64 << 10
)

// A Meter derives a Path from samples of real traffic. It is not safe for concurrent use.
type Meter struct {
	path       Path
	sent, lost uint64        // packets not sampled yet
	bytes      uint64        // acknowledged bytes, likewise
	busy       time.Duration // time in which they were acknowledged
}

// Path returns the measurements so far.
func (m *Meter) Path() Path { return m.path }

// RTT adds one round trip.
func (m *Meter) RTT(d time.Duration) {
	switch {
	case d <= 0:
	case m.path.RTT == 0:
		m.path.RTT = d
	default:
		m.path.RTT += time.Duration(smooth * float64(d-m.path.RTT))
	}
}

// Packets adds the packets sent, and of these lost, since the last call.
func (m *Meter) Packets(sent, lost uint64) {
	m.sent, m.lost = m.sent+sent, m.lost+min(lost, sent)
	if m.sent < minPackets {
		return
	}
	share := float64(m.lost) / float64(m.sent)
	m.path.Loss += smooth * (share - m.path.Loss)
	m.sent, m.lost = 0, 0
}

// Bytes adds the bytes acknowledged since the last call, and the time in which
// acknowledgments were pending. The rate of a short burst is not that of the path.
func (m *Meter) Bytes(acked uint64, busy time.Duration) {
	m.bytes, m.busy = m.bytes+acked, m.busy+busy
	if m.busy < minBusy || m.bytes < minBytes {
		return
	}
	rate := float64(m.bytes) / m.busy.Seconds()
	if m.path.Rate == 0 {
		m.path.Rate = rate
	} else {
		m.path.Rate += smooth * (rate - m.path.Rate)
	}
	m.bytes, m.busy = 0, 0
}
