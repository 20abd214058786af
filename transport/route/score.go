// Package route says how good a path is and when another one is worth changing to.
//
//	RTT, loss, rate ─▶ Meter ─▶ Path ─▶ Weights.Score ─▶ Picker: the best k,
//	  as they are                        α·B + β/L − γ·P   kept until one is
//	  measured                                             clearly better for long
//
// All of it is a function of what it is given: no clock, no goroutine, no network.
package route

import (
	"cmp"
	"time"
)

// A Path is what was measured of one. The zero value of each field means unknown.
type Path struct {
	RTT  time.Duration // there and back
	Loss float64       // share of packets that vanish, 0 to 1; negative: unknown
	Rate float64       // bytes a second that it was seen to carry
}

// Weights are α, β and γ of the score. A weight is what the best value of its
// term is worth: 1 for a bandwidth, or for a latency⁻¹, without bound, and for a
// path that loses everything. The zero value of each field means its default; a
// negative one leaves the term out.
type Weights struct {
	Bandwidth float64 // α; default 1
	Latency   float64 // β; default 1
	Loss      float64 // γ; default 2
}

// The values at which a term is worth half of its weight. An unknown bandwidth
// or latency counts as that value, an unknown loss as none.
const (
	HalfRate = 1.25e6                // bytes a second: 10 Mbit/s
	HalfRTT  = 50 * time.Millisecond // the other half lies between 50 ms and none
	HalfLoss = 0.02                  // at which QUIC has lost most of its throughput
)

func (w Weights) withDefaults() Weights {
	return Weights{
		Bandwidth: max(0, cmp.Or(w.Bandwidth, 1)),
		Latency:   max(0, cmp.Or(w.Latency, 1)),
		Loss:      max(0, cmp.Or(w.Loss, 2)),
	}
}

// A Score is how good a path is, higher is better, with its three terms.
type Score struct {
	Total     float64 // Bandwidth + Latency - Loss
	Bandwidth float64 // 0 to α
	Latency   float64 // 0 to β; more for less latency
	Loss      float64 // 0 to γ
}

// Score returns α·bandwidth + β·latency⁻¹ − γ·loss. Each of the three is brought
// to a number from 0 to 1 first, as x/(x + half), so that bytes, seconds and
// shares can be added and no term drowns the others: twice a bandwidth that is
// plenty already is worth little.
func (w Weights) Score(p Path) Score {
	w = w.withDefaults()
	rate, rtt := p.Rate, p.RTT
	if rate <= 0 {
		rate = HalfRate
	}
	if rtt <= 0 {
		rtt = HalfRTT
	}
	loss := min(max(p.Loss, 0), 1)
	s := Score{
		Bandwidth: w.Bandwidth * rate / (rate + HalfRate),
		Latency:   w.Latency * float64(HalfRTT) / float64(rtt+HalfRTT), // (1/rtt) / (1/rtt + 1/half)
		Loss:      w.Loss * loss / (loss + HalfLoss),
	}
	s.Total = s.Bandwidth + s.Latency - s.Loss
	return s
}

// Join returns the path that leads over a and then over b. A round trip that is
// unknown counts as HalfRTT: who says nothing of its half gains nothing by that.
func Join(a, b Path) Path {
	p := Path{
		Loss: 1 - (1-max(a.Loss, 0))*(1-max(b.Loss, 0)),
		RTT:  cmp.Or(max(a.RTT, 0), HalfRTT) + cmp.Or(max(b.RTT, 0), HalfRTT),
	}
	switch {
	case a.Rate <= 0:
		p.Rate = b.Rate
	case b.Rate <= 0:
		p.Rate = a.Rate
	default:
		p.Rate = min(a.Rate, b.Rate)
	}
	return p
}
