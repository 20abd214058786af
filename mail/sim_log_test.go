package mail

import (
	"bytes"
	"io"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
)

// A simLog is a ledger in memory that writes when it is told to, and can lose what was not
// synced.
type simLog struct {
	rng    *rand.Rand
	full   bool // new work is refused
	queue  [][]ledger.Entry
	recs   [][]byte // the record at offset n is recs[n-1]
	synced int      // records that survive a power cut

	mu       sync.Mutex // a broker writes checkpoints in the background
	images   []simImage // the newest two checkpoints, in order
	released map[uint64]bool
}

// A simImage is a checkpoint.
type simImage struct {
	index int // of the last record that it has
	state []byte
}

// simSegment is how many records a segment has.
const simSegment = 10

var _ Ledger = (*simLog)(nil)

func (l *simLog) Queue(es []ledger.Entry) *ledger.Pending {
	l.queue = append(l.queue, es)
	return nil
}

func (l *simLog) Read(p ledger.Place, dst []byte) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.Offset == 0 || int(p.Offset) > len(l.recs) || len(l.recs[p.Offset-1]) != int(p.Length) || l.released[p.Segment] {
		return dst, store.ErrNotFound
	}
	return append(dst, l.recs[p.Offset-1]...), nil
}

func (l *simLog) Checkpoint(index uint64, write func(io.Writer) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var state bytes.Buffer
	if err := write(&state); err != nil {
		return err
	}
	l.synced = max(l.synced, int(index))
	l.images = append(l.images, simImage{int(index), state.Bytes()})
	l.images = l.images[max(len(l.images)-2, 0):]
	return nil
}

func (l *simLog) Release(live func(uint64, int64) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.images) < 2 {
		return
	}
	for first, size := range l.segments() {
		if int(first)+simSegment-1 <= l.images[0].index && !live(first, size) {
			if l.released == nil {
				l.released = map[uint64]bool{}
			}
			l.released[first] = true
		}
	}
}

// segments returns the segments that there are, and their bytes.
func (l *simLog) segments() iter.Seq2[uint64, int64] {
	return func(yield func(uint64, int64) bool) {
		for i := 0; i < len(l.recs); i += simSegment {
			first, size := uint64(i)+1, int64(0)
			for _, rec := range l.recs[i:min(i+simSegment, len(l.recs))] {
				size += int64(len(rec))
			}
			if !l.released[first] && !yield(first, size) {
				return
			}
		}
	}
}

func (*simLog) Replay(uint64, func(ledger.Batch) error) error        { return nil }
func (*simLog) LoadCheckpoint(func(io.Reader) error) (uint64, error) { return 0, nil }
func (*simLog) Failed() <-chan struct{}                              { return nil }
func (*simLog) Err() error                                           { return nil }

func placeOf(n int, rec []byte) ledger.Place {
	return ledger.Place{Segment: uint64((n-1)/simSegment*simSegment + 1), Offset: uint32(n), Length: uint32(len(rec))}
}

// write writes at most n calls of Queue. Those whose answers nobody hears are of a process
// that dies.
func (l *simLog) write(n int, heard bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = min(n, len(l.queue))
	sync := false
	for _, es := range l.queue[:n] {
		for _, e := range es {
			if e.NewWork && l.full {
				if heard {
					e.After(0, ledger.Place{}, store.ErrFull)
				}
				continue
			}
			l.recs = append(l.recs, bytes.Clone(e.Data)) // a sender uses its buffer again
			if sync = sync || !e.Relaxed; heard {
				e.After(uint64(len(l.recs)), placeOf(len(l.recs), e.Data), nil)
			}
		}
	}
	l.queue = l.queue[n:]
	if sync {
		l.synced = len(l.recs)
	}
}

// kill ends the process that has the log: a part of what is queued is written. A power cut
// takes what was not synced.
func (l *simLog) kill(cut bool) {
	l.write(l.rng.IntN(len(l.queue)+1), false)
	l.queue = nil
	if cut {
		l.recs = l.recs[:l.synced+l.rng.IntN(len(l.recs)-l.synced+1)]
	}
	l.synced = len(l.recs)
	if len(l.images) == 2 && l.rng.IntN(4) == 0 {
		l.images = l.images[:1] // the newest one cannot be read
	}
}

// clone returns a copy of the disk.
func (l *simLog) clone() *simLog {
	return &simLog{
		rng: l.rng, recs: l.recs[:l.synced:l.synced], synced: l.synced, released: maps.Clone(l.released),
		images: slices.DeleteFunc(slices.Clone(l.images), func(x simImage) bool { return x.index > l.synced }),
	}
}
