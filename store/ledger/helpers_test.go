package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"testing"
)

var long = os.Getenv("BALEFIRE_LONG") != ""

// dir is the folder of ledgers in memory.
const dir = "node/ledger"

// small returns the config of a ledger with small segments.
func small(fs fileSystem) Config {
	return Config{Segment: 4096, MaxBatch: 1024, Ring: 1, Logger: quiet(), fs: fs}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func mustOpen(t testing.TB, dir string, cfg Config) *Ledger {
	t.Helper()
	l, err := Open(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func mustClose(t testing.TB, l *Ledger) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// data returns the data of the nth entry: its number and a length and bytes that
// follow from it.
func data(n, most int) []byte {
	rng := rand.New(rand.NewPCG(uint64(n), 7))
	b := make([]byte, 8+rng.IntN(most-7))
	binary.BigEndian.PutUint64(b, uint64(n))
	for i := 8; i < len(b); i++ {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// add writes one entry and returns its place.
func add(t testing.TB, l *Ledger, b []byte) (p Place) {
	t.Helper()
	es := []Entry{{Data: b, After: func(_ uint64, at Place, err error) { p = at }}}
	if err := l.Queue(es).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p
}

// replayed returns the data of all entries since a batch.
func replayed(t testing.TB, l *Ledger, from uint64) (all [][]byte) {
	t.Helper()
	err := l.Replay(from, func(b Batch) error {
		for _, data := range b.Entries() {
			all = append(all, bytes.Clone(data))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// isDamage reports whether err is a DamageError.
func isDamage(err error) bool {
	_, ok := errors.AsType[*DamageError](err)
	return ok
}

func sameEntries(t testing.TB, got, want [][]byte) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d entries, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("entry %d is %x, want %x", i, got[i], want[i])
		}
	}
}
