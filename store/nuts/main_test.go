package nuts

import (
	"testing"
	"time"

	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/storetest"
	"github.com/balefire/balefire/store/storetest/crash"
)

func TestMain(m *testing.M) {
	crash.Main(m, map[string]crash.Opener{
		"nuts": func(dir string) (store.Engine, error) { return Open(dir, quiet()) },
	})
}

// The contract that every engine keeps.
func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB, dir string) store.Engine {
		d, err := Open(dir, quiet())
		if err != nil {
			t.Fatal(err)
		}
		return d
	})
}

// I1, S01: after kill -9 at any moment the store opens by itself and holds
// every acknowledged transaction, whole, and at most the one under way besides.
func TestKill(t *testing.T) {
	tests := []struct {
		name string
		cfg  crash.Config
	}{
		{"small transactions", crash.Config{Rounds: 10}},
		{"compacting all the time", crash.Config{Rounds: 10, CompactEvery: 12}},
		{"1 MiB transactions", crash.Config{Rounds: 6, Ops: 500, Value: 4000, Window: 4, CompactEvery: 15}},
		{"4 MiB transactions", crash.Config{Rounds: 8, Ops: 4000, Value: 4000, Window: 2, CompactEvery: 8, Life: 300 * time.Millisecond}},
		{"32 writers through the front", crash.Config{Rounds: 10, Writers: 32, CompactEvery: 20}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Engine = "nuts"
			crash.Run(t, tt.cfg)
		})
	}
}
