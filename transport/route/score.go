// Package route measures how good a path is and when to change to another one.
//
//	RTT, loss, rate ─▶ Meter ─▶ Path ─▶ Weights.Score ─▶ Picker: the best k,
//	as measured                         α·B + β/L − γ·P    kept until another is
//	                                                       clearly better for long
//
// Everything is a function of its inputs: no clock, no goroutine, no network.
package route

import (
	"cmp"
	"time"
)

// A Path holds the measurements of a path. The zero value of each field means unknown.
type Path struct {
	RTT  time.Duration // round trip
	Loss float64       // share of packets lost, 0 to 1; negative: unknown
	Rate float64       // measured bytes per second
}

// Weights holds α, β and γ of the score. A weight is the value of the best possible term:
// of an unlimited bandwidth, of an unlimited latency⁻¹, and of a path that loses
// everything. A weight of zero omits the term; none is negative.
type Weights struct {
	Bandwidth float64 // α
	Latency   float64 // β
	Loss      float64 // γ
}

// The values at which a term has half of its weight. An unknown bandwidth or latency
// counts as this value, an unknown loss as none.
const (
	HalfRate = 1.25e6                // bytes per second: 10 Mbit/s
	HalfRTT  = 50 * time.Millisecond // the other half lies between 50 ms and zero
	HalfLoss = 0.02                  // where QUIC has lost most of its throughput
)

// A Score is the quality of a path, higher is better, with its three terms.
type Score struct {
	Total     float64 // Bandwidth + Latency - Loss
	Bandwidth float64 // 0 to α
	Latency   float64 // 0 to β; more for less latency
	Loss      float64 // 0 to γ
}

// Score returns α·bandwidth + β·latency⁻¹ − γ·loss. Each term is first normalized to a
// number from 0 to 1, as x/(x + half), so that bytes, seconds and shares can be added and
// no term dominates: doubling an ample bandwidth adds little.
func (w Weights) Score(p Path) Score {
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

// Join returns the path that leads over a and then b. An unknown round trip counts as
// HalfRTT, so that a node gains nothing by not publishing its half.
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
