package storetest

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/balefire/balefire/store"
)

// Many is a store with many keys, each like an origin and a digest, for tests of S49.
type Many struct {
	Keys int  // 20 000, or BALEFIRE_KEYS
	Long bool // BALEFIRE_KEYS is set: opening may take at most a minute
}

// Sizes in bytes of the records of FillMany.
const (
	ManyKey   = 65
	ManyValue = 48
)

// FillMany puts the keys into an engine that open opens, and closes it.
func FillMany(t *testing.T, open func() (store.Engine, error)) (m Many) {
	t.Helper()
	m.Keys = 20_000
	if k, err := strconv.Atoi(os.Getenv("BALEFIRE_KEYS")); err == nil && k > 0 {
		m.Keys, m.Long = k, true
	}
	e, err := open()
	if err != nil {
		t.Fatal(err)
	}
	const group = 1000
	for i := 0; i < m.Keys; i += group {
		ops := make([]store.Op, min(group, m.Keys-i))
		for j := range ops {
			ops[j] = store.Op{Bucket: store.Dedup, Key: fmt.Appendf(nil, "S%064d", i+j), Val: make([]byte, ManyValue)}
		}
		if err := e.Commit(ops); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return m
}

// Opened fails the test if opening took too long.
func (m Many) Opened(t *testing.T, took time.Duration) {
	t.Helper()
	if m.Long && took > time.Minute {
		t.Errorf("S49: it took %v to open", took)
	}
}

// HeapInUse returns the bytes in use in the heap.
func HeapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
