package main

import (
	"testing"

	"github.com/balefire/balefire/wire"
)

// TestABarSaysHowFarABodyIs checks the progress line of a body in transfer: the amount that
// has arrived, the rate and the remaining time, in a line that fits the terminal.
func TestABarSaysHowFarABodyIs(t *testing.T) {
	for _, tt := range []struct {
		name    string
		x       wire.Transfer
		columns int
		want    string
	}{
		{"half of it", wire.Transfer{What: "body", Direction: "out", Peer: "laptop", Bytes: 100 << 20, Size: 200 << 20, Rate: 10 << 20, Left: 10}, 100,
			"body to laptop  50 % [============            ] 100 MiB/200 MiB  10.0 MiB/s  10s left"},
		{"no rate yet", wire.Transfer{What: "result", Direction: "in", Peer: "laptop", Size: 1 << 20}, 100,
			"result from laptop   0 % [                        ] 0 B/1.0 MiB"},
		{"a narrow terminal", wire.Transfer{What: "body", Direction: "out", Peer: "laptop", Bytes: 1 << 20, Size: 1 << 20}, 50, "body to laptop 100 %  1.0 MiB/1.0 MiB"},
		{"a name with terminal control sequences", wire.Transfer{What: "body", Direction: "out", Peer: "a\x1b[2J", Bytes: 2, Size: 0}, 40, "body to a\uFFFD[2J   0 %  2 B/0 B"},
	} {
		if got := progressBar(tt.x, tt.columns); got != tt.want {
			t.Errorf("%s:\n%q, want\n%q", tt.name, got, tt.want)
		}
	}
}
