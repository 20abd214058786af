package node

import (
	"testing"
	"time"

	"github.com/balefire/balefire/transport"
)

// A peer that disconnected was last seen when its connection ended, not at its hello.
func TestLastSeenIsEndOfConnection(t *testing.T) {
	a, b := pair(t, nil)
	p, ok := a.book.Get(b.keys.Peer())
	if !ok {
		t.Fatal("the peer is not in the book")
	}
	hello := time.Unix(1_800_000_000, 0)
	p.LastSeen = hello
	for _, tt := range []struct {
		name  string
		ended time.Time
		want  time.Time
	}{
		{"no connection of this start ended", time.Time{}, hello},
		{"one ended after the hello", hello.Add(time.Minute), hello.Add(time.Minute)},
		{"one ended before it", hello.Add(-time.Minute), hello},
	} {
		got := a.Views.PeerView(p, transport.PeerStatus{Peer: p.Peer, LastSeen: tt.ended}).LastSeen
		if got == nil || !got.Equal(tt.want) {
			t.Errorf("%s: seen at %v, want %v", tt.name, got, tt.want)
		}
	}
}
