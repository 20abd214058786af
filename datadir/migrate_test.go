package datadir

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// TestStoreMigratesBothWays: a converted store contains the same records byte for byte,
// the old one is kept, and the folder belongs to the new engine. A store that does not
// fit in memory can be migrated to pebble but not back.
func TestStoreMigratesBothWays(t *testing.T) {
	clk := clock.NewManual(time.Unix(1e9, 0))
	cfg := Config{Dir: t.TempDir(), Clock: clk.Clock()}.withDefaults()
	if _, err := Migrate(Config{Dir: filepath.Join(cfg.Dir, "missing")}, "foo"); !errors.Is(err, wire.ErrInvalid) || !strings.Contains(err.Error(), "must be nutsdb or pebble") {
		t.Errorf("to an unknown engine: %v", err) // before the folder is looked at
	}
	e, err := openEngine(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		var ops []store.Op
		for j := range 100 {
			b := store.Buckets()[(i+j)%len(store.Buckets())]
			ops = append(ops, store.Op{Bucket: b, Key: fmt.Appendf(nil, "%d", i*50+j), Val: bytes.Repeat([]byte{byte(i)}, j)})
		}
		ops = append(ops, store.Op{Bucket: store.Inbox, Key: fmt.Append(nil, i), Delete: true})
		if err := e.Commit(ops); err != nil {
			t.Fatal(err)
		}
	}
	want := dumpEngine(t, e)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	move := func(to string) error {
		t.Helper()
		clk.Advance(time.Second)
		r, err := Migrate(cfg, to)
		if err != nil {
			return err
		}
		if r.Records != len(want) || r.To != to {
			t.Errorf("report %+v, want %d records", r, len(want))
		}
		if from, err := filepath.Glob(filepath.Join(r.Aside, r.From)); err != nil || len(from) != 1 {
			t.Errorf("the old store is not in %s: %v", r.Aside, err)
		}
		cfg.Engine = to
		e, err := openEngine(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := dumpEngine(t, e); !maps.Equal(got, want) {
			t.Errorf("on %s there are %d records, before %d, and they differ", to, len(got), len(want))
		}
		return e.Close()
	}
	limit := debug.SetMemoryLimit(math.MaxInt64)
	t.Cleanup(func() { debug.SetMemoryLimit(limit) })
	t.Setenv("GOMEMLIMIT", "")
	cfg.Memory = 64 << 10
	if _, err := openEngine(cfg); !errors.Is(err, store.ErrNeedsMemory) {
		t.Errorf("with %d bytes of memory it opens: %v", cfg.Memory, err)
	}
	t.Setenv("GOMEMLIMIT", "off") // the test itself needs more than 64 KiB, so without a runtime limit
	if err := move(EnginePebble); err != nil {
		t.Fatal(err)
	}
	if err := move(EngineNuts); err != nil {
		t.Fatal(err)
	}
	if err := move(EngineNuts); !errors.Is(err, wire.ErrInvalid) {
		t.Errorf("migration to its own engine: %v", err)
	}
	if err := move("sqlite"); !errors.Is(err, wire.ErrInvalid) {
		t.Errorf("migration to an unknown engine: %v", err)
	}
}

func dumpEngine(t *testing.T, e store.Engine) map[string]string {
	t.Helper()
	all := map[string]string{}
	if err := eachPage(e, store.Buckets(), func(b store.Bucket, page []store.Pair) error {
		for _, p := range page {
			all[fmt.Sprintf("%v/%s", b, p.Key)] = string(p.Val)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}
