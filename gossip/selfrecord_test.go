package gossip

import (
	"math"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// A changed description is published at once, after some seconds or after a minute,
// depending on how much it matters to others.
func TestSelfRecordIsRepublishedWhenItMatters(t *testing.T) {
	hops := func(relay byte, rtt uint32) []*proto.Hop {
		return []*proto.Hop{{Relay: []byte{relay}, RttMs: rtt}}
	}
	was := Self{Version: "1", Load: &proto.Load{Slots: 4, Busy: 1, CpuPermille: 100}, Hops: hops(1, 20)}
	for _, tt := range []struct {
		name string
		is   Self
		want time.Duration
	}{
		{"no change", was, math.MaxInt64},
		{"another version", Self{Version: "2", Load: was.Load, Hops: was.Hops}, 0},
		{"no slot is free", Self{Version: "1", Load: &proto.Load{Slots: 4, Busy: 4, CpuPermille: 100}, Hops: was.Hops}, loadEvery},
		{"another relay", Self{Version: "1", Load: was.Load, Hops: hops(2, 20)}, loadEvery},
		{"CPU load rises", Self{Version: "1", Load: &proto.Load{Slots: 4, Busy: 1, CpuPermille: 300}, Hops: was.Hops}, measuredEvery},
		{"CPU load rises a little", Self{Version: "1", Load: &proto.Load{Slots: 4, Busy: 1, CpuPermille: 150}, Hops: was.Hops}, math.MaxInt64},
		{"RTT to the relay rises", Self{Version: "1", Load: was.Load, Hops: hops(1, 60)}, measuredEvery},
		{"RTT rises a little", Self{Version: "1", Load: was.Load, Hops: hops(1, 24)}, math.MaxInt64},
	} {
		if got := was.minAge(tt.is); got != tt.want {
			t.Errorf("%s: published after %v, want %v", tt.name, got, tt.want)
		}
		want := tt.want
		if want == measuredEvery {
			want += 20 * time.Second // not all at once
		}
		if got := (&selfRecord{info: was, spread: 20 * time.Second}).minAge(tt.is); got != want {
			t.Errorf("%s: published after %v, want %v", tt.name, got, want)
		}
	}
}
