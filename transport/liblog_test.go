package transport

import (
	"bytes"
	"log/slog"
	"testing"
)

// TestLibp2pLogLevels checks that libp2p's log lines are lowered by one level.
func TestLibp2pLogLevels(t *testing.T) {
	var b bytes.Buffer
	drop := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	log := slog.New(lowerLevel{slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: drop})}).With("logger", "net/identify")
	log.Info("said daily")
	log.Warn("it went away")
	log.Warn("listening failed") // reported by the node itself
	log.WithGroup("g").Error("it broke", "n", 1)
	if got, want := b.String(), "level=INFO msg=\"it went away\" logger=net/identify\nlevel=WARN msg=\"it broke\" logger=net/identify g.n=1\n"; got != want {
		t.Errorf("received\n%swant\n%s", got, want)
	}
}
