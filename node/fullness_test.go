package node

import (
	"bytes"
	"log/slog"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/settings"
	"github.com/balefire/balefire/transport/transporttest"
)

// A store that refuses new work, and one that accepts it again, are one log line and
// one event each, with the cause (I13). The memory is that of the process, so that no other
// test may run at the same time.
func TestFullStoreIsLoggedAndAnEvent(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	ballast := int64(160 << 20)
	debug.SetMemoryLimit((liveHeap() + ballast/2) * 4 / 3) // three quarters of that are in the middle of both
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		reserve := settings.Bytes(1)
		w := newSimMeshWith(t, 1, 1, transporttest.Link{Latency: time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
			quietMesh(s, cfg)
			cfg.Simulated.Engine, cfg.Store.Engine, cfg.Store.Reserve = nil, datadir.EnginePebble, reserve // on the disk
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		})
		n := w.nodes[0]
		reported := func(want ...string) {
			t.Helper()
			time.Sleep(5 * time.Minute)
			var got []string
			for _, e := range n.node.Events.Read(t.Context(), 0, 1000, 0).Items {
				if strings.HasPrefix(e.Kind, "store.") {
					got = append(got, strings.TrimSpace(e.Kind+" "+e.Fields["cause"]))
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("events %q, want %q", got, want)
			}
		}
		reported()
		used := make([]byte, ballast)
		runtime.GC()
		reported("store.full memory")
		runtime.KeepAlive(used)
		reported("store.full memory", "store.recovered")
		n.halt()
		reserve = 1 << 60
		n.start()
		reported("store.full disk")
		w.close()
		for _, want := range []string{"cause=memory", "level=INFO msg=\"new work is accepted again", "cause=disk"} {
			if strings.Count(log.String(), want) != 1 {
				t.Errorf("the log has %q not exactly once:\n%s", want, log.String())
			}
		}
	})
}

// liveHeap returns the bytes that cannot be collected.
func liveHeap() int64 {
	for range 3 { // what a pool holds goes with the second, what has a finalizer too
		runtime.GC()
	}
	s := [1]metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s[:])
	return int64(s[0].Value.Uint64())
}
