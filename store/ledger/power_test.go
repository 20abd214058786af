package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
)

// I21: after 10 000 cuts of the power (short form: 300), each at any moment and with
// any of the unsynced sectors kept, a ledger opens by itself and has everything
// that was answered as durable, nothing that was not queued, and no gap; and what
// it had when it was opened once it has always. Its snapshots stay as they were and
// have everything that was answered before them. BALEFIRE_LONG=1 runs all.
func TestPowerCuts(t *testing.T) {
	cuts := 300
	if long {
		cuts = 10000
	}
	t.Logf("counted: %d cuts", cuts)
	for seed := uint64(0); cuts > 0; seed++ {
		h := newHistory(t, seed)
		for range 10 {
			h.live()
			cuts--
		}
		if t.Failed() {
			return
		}
	}
}

// A history is the lives of one ledger, each of which ends with a cut of the power.
type history struct {
	t    *testing.T
	seed uint64
	rng  *rand.Rand
	fs   *faultFS

	lives int

	mu     sync.Mutex
	queued [][]byte // what the log may have, in order
	sure   int      // how many of it are on disk
	places []Place
	newest uint64         // index of the batch of the newest answer
	upTo   map[uint64]int // entries up to a batch
	base   int            // entries up to the last batch of which the checkpoint knows

	copies []snapshot
}

func newHistory(t *testing.T, seed uint64) *history {
	return &history{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), fs: newFaultFS()}
}

func (h *history) fatalf(format string, args ...any) {
	h.t.Helper()
	h.t.Fatalf("seed %d: %s", h.seed, fmt.Sprintf(format, args...))
}

// live opens the ledger, checks it, and writes until the power is cut.
func (h *history) live() {
	h.t.Helper()
	h.fs.left = h.rng.IntN(120)
	cfg := small(h.fs)
	cfg.Segment = page * (1 + int64(h.seed%3))
	l, err := Open(dir, cfg)
	h.checkCopies()
	if err == nil {
		h.check(l)
		for !h.fs.isCut() {
			h.step(l)
		}
		_ = l.Close()
	}
	if err != nil && !errors.Is(err, errPower) {
		h.fatalf("open: %v", err)
	}
	if l != nil && l.Err() != nil && !errors.Is(l.Err(), errPower) {
		h.fatalf("failed: %v", l.Err())
	}
	if h.lives++; h.rng.IntN(4) == 0 {
		h.fs = h.fs.afterKill()
	} else {
		h.fs = h.fs.afterCut(h.rng, []float64{0, 0.5, 0.9, 1}[h.rng.IntN(4)])
	}
}

// check compares what the ledger has with what it must and may have.
func (h *history) check(l *Ledger) {
	h.t.Helper()
	if newest, upTo, places, base, ok := h.compare(l, h.queued, h.sure); ok {
		n := len(places)
		h.queued, h.sure, h.places, h.newest, h.upTo, h.base = h.queued[:n], n, places, newest, upTo, base
	}
}

// compare compares what a ledger has with what was queued, of which at least sure entries
// must be there. ok is false if the power was cut meanwhile.
func (h *history) compare(l *Ledger, queued [][]byte, sure int) (newest uint64, upTo map[uint64]int, places []Place, base int, ok bool) {
	h.t.Helper()
	n := 0
	index, err := l.LoadCheckpoint(func(r io.Reader) error {
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		n = int(binary.BigEndian.Uint64(b))
		if len(b) != 12 || n > len(queued) || binary.BigEndian.Uint32(b[8:]) != sumOf(queued[:n]) {
			h.fatalf("the checkpoint has %x", b)
		}
		return nil
	})
	if err != nil && !errors.Is(err, errPower) {
		h.fatalf("load: %v", err)
	}
	newest, upTo, places = index, map[uint64]int{index: n}, make([]Place, n, len(queued))
	if err == nil {
		err = l.Replay(index+1, func(b Batch) error {
			for p, data := range b.Entries() {
				if n >= len(queued) || !bytes.Equal(data, queued[n]) {
					h.fatalf("batch %d: entry %d is not what was queued", b.Index, n)
				}
				places = append(places, p)
				n++
			}
			upTo[b.Index], newest = n, b.Index
			return nil
		})
	}
	if err != nil {
		if !errors.Is(err, errPower) {
			h.fatalf("replay: %v", err)
		}
		return 0, nil, nil, 0, false
	}
	if n < sure {
		h.fatalf("there are %d entries, %d were on disk", n, sure)
	}
	return newest, upTo, places, upTo[index], true
}

// sumOf returns a checksum of entries.
func sumOf(entries [][]byte) uint32 {
	sum := crc32.NewIEEE()
	for _, b := range entries {
		sum.Write(b)
	}
	return sum.Sum32()
}

// step does one thing with the ledger.
func (h *history) step(l *Ledger) {
	switch h.rng.IntN(13) {
	case 0:
		h.checkpoint(l)
	case 1:
		l.Release(func(uint64, int64) bool { return h.rng.IntN(4) == 0 })
	case 2:
		h.read(l)
	case 3:
		h.snapshot(l)
	default:
		h.write(l)
	}
}

// What an ended process had written without a sync is on disk once the next one has
// opened the ledger.
func TestOpenSyncs(t *testing.T) {
	fs := newFaultFS()
	l := mustOpen(t, dir, still(fs))
	if err := l.Queue([]Entry{{Data: []byte("x"), Relaxed: true}}).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	if l := mustOpen(t, dir, still(fs.afterCut(rng, 0))); l.Stats().Last != 0 {
		t.Error("it was synced already: the test shows nothing")
	}
	next := fs.afterKill()
	if l := mustOpen(t, dir, still(next)); l.Stats().Last != 1 {
		t.Error("it is not there after a kill")
	}
	if l := mustOpen(t, dir, still(next.afterCut(rng, 0))); l.Stats().Last != 1 {
		t.Error("it was there, and a power cut lost it")
	}
}

func (h *history) write(l *Ledger) {
	relaxed := h.rng.IntN(2) == 0
	es := make([]Entry, 1+h.rng.IntN(4))
	h.mu.Lock()
	for i := range es {
		n := len(h.queued)
		b := data(n*1000+h.lives, 300)
		h.queued = append(h.queued, b)
		es[i] = Entry{Data: b, Relaxed: relaxed, NewWork: true, After: func(index uint64, p Place, err error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if err != nil {
				return
			}
			if len(h.places) != n {
				h.t.Errorf("seed %d: entry %d is answered after %d others", h.seed, n, len(h.places))
			}
			h.places = append(h.places, p)
			h.newest, h.upTo[index] = index, n+1
			if !relaxed {
				h.sure = n + 1
			}
		}}
	}
	h.mu.Unlock()
	p := l.Queue(es)
	if h.rng.IntN(3) > 0 {
		_ = p.Wait(h.t.Context()) // an error ends the life
	}
}

func (h *history) checkpoint(l *Ledger) {
	h.mu.Lock()
	index := h.newest
	if len(h.places) < len(h.queued) {
		index-- // the newest batch may have entries that are not answered yet
	}
	n, known := h.upTo[index]
	sum := sumOf(h.queued[:n])
	h.mu.Unlock()
	if !known || index <= l.Stats().Checkpoint {
		return
	}
	err := l.Checkpoint(index, func(w io.Writer) error {
		_, err := w.Write(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, uint64(n)), sum))
		return err
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		h.sure = max(h.sure, n)
	} else if !errors.Is(err, errPower) {
		h.fatalf("checkpoint: %v", err)
	}
}

func (h *history) read(l *Ledger) {
	h.mu.Lock()
	n := len(h.places)
	if n == 0 || n == h.base {
		h.mu.Unlock()
		return
	}
	i := h.base + h.rng.IntN(n-h.base)
	p, want := h.places[i], h.queued[i]
	h.mu.Unlock()
	got, err := l.Read(p, nil)
	if err == nil && !bytes.Equal(got, want) {
		h.fatalf("read of entry %d at %v: %x", i, p, got)
	}
}
