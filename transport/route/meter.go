package route

import (
	"slices"
	"time"
)

// smooth is the weight of the newest sample of loss and rate: about the last ten count.
const smooth = 0.2

// roundTrips is the number of samples whose median is the round trip: that some waited
// behind a burst in the queue of a narrow link says nothing of the path.
const roundTrips = 5

// Smaller samples are ignored. One with only one or two lost packets needs morePackets: of
// twenty, one is lost by chance, and 5 % would make a bad path.
const (
	minPackets  = 20
	morePackets = 100
	minBusy     = 50 * time.Millisecond
	minBytes    = 64 << 10
)

// A Meter derives a Path from samples of real traffic. It is not safe for concurrent use.
type Meter struct {
	path       Path
	rtts       []time.Duration // the last ones
	sent, lost uint64          // packets not sampled yet
	bytes      uint64          // acknowledged bytes, likewise
	busy       time.Duration   // time in which they were acknowledged
}

// Path returns the measurements so far.
func (m *Meter) Path() Path { return m.path }

// RTT adds one round trip.
func (m *Meter) RTT(d time.Duration) {
	if d <= 0 {
		return
	}
	m.rtts = append(m.rtts[max(0, len(m.rtts)-roundTrips+1):], d)
	sorted := slices.Sorted(slices.Values(m.rtts))
	m.path.RTT = sorted[(len(sorted)-1)/2]
}

// Packets adds the packets sent, and of these lost, since the last call.
func (m *Meter) Packets(sent, lost uint64) {
	m.sent, m.lost = m.sent+sent, m.lost+min(lost, sent)
	if m.sent < minPackets || m.sent < morePackets && (m.lost == 1 || m.lost == 2) {
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
