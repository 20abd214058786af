package transport

import (
	"testing"
	"time"
)

// A piece is as large as a path carries in about half a second, whatever its round trip, and
// follows the path.
func TestPace(t *testing.T) {
	ms := time.Millisecond
	type path struct {
		rtt  time.Duration
		rate int // bytes a second
	}
	for _, tt := range []struct {
		name        string
		paths       []path // each for 20 pieces
		least, most int    // of the pieces in the end; most 0: no limit
	}{
		{"a LAN", []path{{ms, 100 << 20}}, mostPiece + 1, 0},
		{"a satellite", []path{{900 * ms, 10 << 20}}, mostPiece + 1, 0},
		{"64 kbit/s", []path{{60 * ms, 8_000}}, leastPiece, leastPiece},
		{"64 kbit/s far away", []path{{600 * ms, 8_000}}, leastPiece, leastPiece},
		{"256 kbit/s", []path{{60 * ms, 32_000}}, 8 << 10, 16 << 10},
		{"one that becomes narrow", []path{{20 * ms, 10 << 20}, {20 * ms, 8_000}}, leastPiece, leastPiece},
		{"one that becomes wide", []path{{60 * ms, 8_000}, {60 * ms, 10 << 20}}, mostPiece + 1, 0},
		{"one that becomes long", []path{{60 * ms, 10 << 20}, {2 * time.Second, 10 << 20}}, mostPiece + 1, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p pace
			now, last := time.Hour, time.Duration(0)
			for _, path := range tt.paths {
				for range 20 {
					n := min(p.size(last), 256<<10)
					last = path.rtt + time.Duration(n)*time.Second/time.Duration(path.rate)
					now += last
					if n == 256<<10 {
						continue // written without a PING; the connection measures all the same
					}
					if p.stale(now) {
						p.setBase(path.rtt, now)
					}
					p.arrived(last)
				}
			}
			if n := p.size(0); n < tt.least || tt.most > 0 && n > tt.most {
				t.Errorf("pieces of %d bytes, want %d to %d", n, tt.least, tt.most)
			}
		})
	}
}
