package view

import (
	"fmt"
	"slices"

	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// Path explains how a peer is reached: every possible path, and why the current one is
// used.
func (v *Views) Path(ref string) (wire.PathReport, error) {
	p, err := v.Book.FindOther(ref)
	if err != nil {
		return wire.PathReport{}, err
	}
	r := v.Net.Paths(p.Peer)
	out := wire.PathReport{Peer: p.Label(), ID: p.Peer.String(), Cause: r.Cause, Candidates: []wire.PathCandidate{}, Punches: []wire.Punch{}}
	for _, c := range r.Paths {
		out.Connected = out.Connected || c.Connected
		out.Candidates = append(out.Candidates, v.candidate(c))
	}
	for _, h := range slices.Backward(r.Punches) {
		out.Punches = append(out.Punches, wire.Punch{Time: h.Time.UTC(), OK: h.OK, Detail: h.Detail, Took: seconds(h.Took)})
	}
	if p.Blocked {
		out.Cause = wire.Note{Code: wire.NotePeerBlocked, NoteArgs: wire.NoteArgs{Peer: p.Label()}}
	}
	return out, nil
}

func (v *Views) candidate(c transport.Path) wire.PathCandidate {
	out := wire.PathCandidate{
		Addr: c.Addr, Network: c.Network, Relay: v.Book.NameOf(c.Relay), Connected: c.Connected, InUse: c.InUse,
		Loss: max(c.Measured.Loss, 0), Rate: int64(c.Measured.Rate), Score: c.Score.Total,
	}
	if c.Measured.RTT > 0 {
		out.RTT = seconds(c.Measured.RTT)
	}
	if c.Score.Total != 0 {
		out.Terms = []string{
			fmt.Sprintf("bandwidth %.2f", c.Score.Bandwidth), fmt.Sprintf("latency %.2f", c.Score.Latency), fmt.Sprintf("loss -%.2f", c.Score.Loss),
		}
	}
	if c.Connected {
		out.Since = new(v.Clock.Now().Add(-c.Age).UTC())
	}
	return out
}
