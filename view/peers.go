package view

import (
	"context"
	"fmt"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// Peers lists the known peers by name.
func (v *Views) Peers() []wire.Peer {
	status := v.Statuses()
	out := []wire.Peer{}
	for _, p := range v.Book.List() {
		out = append(out, v.PeerView(p, status[p.Peer]))
	}
	return out
}

// Peer returns one peer by name or id.
func (v *Views) Peer(ref string) (wire.Peer, error) {
	p, err := v.Book.Find(ref)
	if err != nil {
		return wire.Peer{}, err
	}
	return v.PeerView(p, v.Statuses()[p.Peer]), nil
}

// PeerView returns the view of a peer with the state of its connection.
func (v *Views) PeerView(p addressbook.Peer, s transport.PeerStatus) wire.Peer {
	out := wire.Peer{
		Name: p.Label(), ID: p.Peer.String(), State: "OFFLINE", Roles: p.Member.Roles, Addrs: p.Addrs,
		Queued: v.Outbox.Waiting(p.Peer), LastSeen: timeOrNil(p.LastSeen), CertUntil: timeOrNil(p.Member.NotAfter), Alias: p.Alias,
	}
	if s.LastSeen.After(p.LastSeen) { // the book records hellos only
		out.LastSeen = timeOrNil(s.LastSeen)
	}
	if m, ok := v.Gossip.Member(p.Peer); ok {
		out.Liveness, out.Loss = m.Status.String(), m.Loss
	}
	if s.Clock.Abs() >= proto.ClockNoise {
		out.Clock = s.Clock.Round(time.Second).Seconds()
	}
	switch {
	case v.Book.Revoked(p.Peer):
		out.State = "REVOKED"
	case p.Blocked:
		out.State = "BLOCKED"
	case s.Connected:
		out.State, out.Path = "CONNECTED", s.Network+" "+s.Path
		out.Direct = s.Direct
		out.Relay = v.Book.NameOf(s.Relay)
		if s.RTT > 0 {
			out.RTT = seconds(s.RTT)
		}
	case !p.Member.NotAfter.IsZero() && v.Clock.Now().After(p.Member.NotAfter):
		out.State = "EXPIRED"
	}
	return out
}

// seconds converts a measured duration for the API, rounded to ten microseconds.
func seconds(d time.Duration) float64 { return d.Round(10 * time.Microsecond).Seconds() }

// Ping measures the round-trip time to a peer over the path in use. If the peer is not
// connected, Ping starts a dial but does not wait for it.
func (v *Views) Ping(ctx context.Context, ref string) (wire.Pong, error) {
	p, err := v.Book.FindOther(ref)
	if err != nil {
		return wire.Pong{}, err
	}
	rtt, err := v.Net.Ping(ctx, p.Peer)
	if err != nil {
		v.Net.Want(p.Peer)
		return wire.Pong{}, fmt.Errorf("%w: %s: %w", wire.ErrRefused, p.Label(), err)
	}
	pong := wire.Pong{Peer: p.Label(), RTT: seconds(rtt)}
	if s := v.Statuses()[p.Peer]; s.Connected {
		pong.Path, pong.Direct, pong.Relay = s.Network+" "+s.Path, s.Direct, v.Book.NameOf(s.Relay)
	}
	return pong, nil
}

// timeOrNil returns t in UTC, or nil for the zero time.
func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(t.UTC())
}
