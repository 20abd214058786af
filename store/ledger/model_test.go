package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
)

// A machine is a ledger and what it must have.
type machine struct {
	fs   *faultFS
	l    *Ledger
	free int64

	kept   [][]byte          // the data of all batches, by index from 1 on, one after the other
	states map[uint64][]byte // checkpoints
	live   map[Place][]byte  // entries that are needed
}

// Whatever is queued, checkpointed and released, with restarts between: the newest
// checkpoint and the replay since it are the state, and what is live can be read.
func TestReplayEqualsState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{fs: newFaultFS(), states: map[uint64][]byte{}, live: map[Place][]byte{}, free: 1 << 30}
		m.open(t)
		defer func() { _ = m.l.Close() }()
		t.Repeat(map[string]func(*rapid.T){
			"queue":      m.queue,
			"checkpoint": m.checkpoint,
			"release":    m.release,
			"settle":     m.settle,
			"restart":    m.restart,
			"fill":       func(t *rapid.T) { m.free = rapid.Int64Range(0, 2).Draw(t, "free") },
			"":           m.check,
		})
	})
}

func (m *machine) open(t *rapid.T) {
	cfg := small(m.fs)
	cfg.Segment, cfg.MaxBatch = 1024, 256
	man := clock.NewManual(time0)
	cfg.Clock, cfg.Reserve = man.Clock(), 1
	cfg.Space = func() (int64, int64, error) { man.Advance(askEvery); return m.free, 1 << 30, nil }
	var err error
	if m.l, err = Open(dir, cfg); err != nil {
		t.Fatal(err)
	}
	if torn := m.l.Stats().Torn; torn != "" {
		t.Fatalf("torn: %s", torn)
	}
}

func (m *machine) restart(t *rapid.T) {
	if err := m.l.Close(); err != nil {
		t.Fatal(err)
	}
	m.open(t)
}

func (m *machine) queue(t *rapid.T) {
	var es []Entry
	var first error
	for i := range rapid.IntRange(0, 4).Draw(t, "entries") {
		b := rapid.SliceOfN(rapid.Byte(), 0, 260).Draw(t, fmt.Sprint("data", i))
		e := Entry{Data: b, Relaxed: rapid.Bool().Draw(t, "relaxed"), NewWork: rapid.Bool().Draw(t, "work")}
		var want error
		switch {
		case len(b) > 256-batchHead-entryHead:
			want = store.ErrTooLarge
		case e.NewWork && m.free == 0:
			want = store.ErrFull
		}
		if first == nil {
			first = want
		}
		e.After = func(index uint64, p Place, err error) {
			if !errors.Is(err, want) {
				t.Errorf("entry of %d bytes: %v, want %v", len(b), err, want)
			}
			if err != nil {
				return
			}
			switch n := uint64(len(m.kept)); index {
			case n:
				m.kept[n-1] = append(m.kept[n-1], b...)
			case n + 1:
				m.kept = append(m.kept, bytes.Clone(b))
			default:
				t.Errorf("batch %d after %d", index, n)
			}
			m.live[p] = b
		}
		es = append(es, e)
	}
	if err := m.l.Queue(es).Wait(t.Context()); !errors.Is(err, first) {
		t.Fatalf("Wait: %v, want %v", err, first)
	}
}

// state returns what the caller knows after a batch.
func (m *machine) state(index uint64) []byte {
	return append(binary.BigEndian.AppendUint64(nil, index), slices.Concat(m.kept[:index]...)...)
}

func (m *machine) checkpoint(t *rapid.T) {
	index := uint64(rapid.IntRange(0, len(m.kept)).Draw(t, "index"))
	err := m.l.Checkpoint(index, writing(m.state(index)))
	newest := uint64(0)
	for i := range m.states {
		newest = max(newest, i)
	}
	if (err == nil) != (index > newest) {
		t.Fatalf("checkpoint at %d after %d: %v", index, newest, err)
	}
	if err == nil {
		m.states[index] = m.state(index)
	}
}

// settle makes some entries unnecessary.
func (m *machine) settle(t *rapid.T) {
	places := slices.SortedFunc(maps.Keys(m.live), func(a, b Place) int { return int(a.Segment) - int(b.Segment) })
	for _, p := range places[:rapid.IntRange(0, len(places)).Draw(t, "settled")] {
		delete(m.live, p)
	}
}

func (m *machine) release(*rapid.T) {
	needed := map[uint64]bool{}
	for p := range m.live {
		needed[p.Segment] = true
	}
	m.l.Release(func(segment uint64, _ int64) bool { return needed[segment] })
}

func (m *machine) check(t *rapid.T) {
	var got []byte
	index, err := m.l.LoadCheckpoint(func(r io.Reader) (err error) { got, err = io.ReadAll(r); return err })
	if err != nil || index != 0 && !bytes.Equal(got, m.states[index]) {
		t.Fatalf("checkpoint %d: %x, %v", index, got, err)
	}
	if index == 0 {
		got = make([]byte, 8)
	}
	last := index
	err = m.l.Replay(index+1, func(b Batch) error {
		for _, data := range b.Entries() {
			got = append(got, data...)
		}
		last = b.Index
		return nil
	})
	if err != nil || last != uint64(len(m.kept)) || !bytes.Equal(got[8:], m.state(last)[8:]) {
		t.Fatalf("replay up to %d of %d: %v", last, len(m.kept), err)
	}
	for p, want := range m.live {
		if got, err := m.l.Read(p, nil); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read of %v: %x, %v; want %x", p, got, err, want)
		}
	}
}
