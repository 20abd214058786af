package mail

import (
	"bytes"
	"io"
	"math/rand/v2"

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

	image   []byte // a checkpoint
	imageOf int    // records that it has
}

var _ Ledger = (*simLog)(nil)

func (l *simLog) Queue(es []ledger.Entry) *ledger.Pending {
	l.queue = append(l.queue, es)
	return nil
}

func (l *simLog) Read(p ledger.Place, dst []byte) ([]byte, error) {
	if p.Offset == 0 || int(p.Offset) > len(l.recs) || len(l.recs[p.Offset-1]) != int(p.Length) {
		return dst, store.ErrNotFound
	}
	return append(dst, l.recs[p.Offset-1]...), nil
}

func (*simLog) Replay(uint64, func(ledger.Batch) error) error        { return nil }
func (*simLog) LoadCheckpoint(func(io.Reader) error) (uint64, error) { return 0, nil }
func (*simLog) Checkpoint(uint64, func(io.Writer) error) error       { return nil }
func (*simLog) Release(func(uint64) bool)                            {}
func (*simLog) Failed() <-chan struct{}                              { return nil }
func (*simLog) Err() error                                           { return nil }
func placeOf(n int, rec []byte) ledger.Place {
	return ledger.Place{Segment: 1, Offset: uint32(n), Length: uint32(len(rec))}
}

// write writes at most n calls of Queue. Those whose answers nobody hears are of a process
// that dies.
func (l *simLog) write(n int, heard bool) {
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
	if l.imageOf > len(l.recs) {
		l.image, l.imageOf = nil, 0
	}
}

// clone returns a copy of the disk.
func (l *simLog) clone() *simLog {
	c := *l
	c.queue, c.recs = nil, l.recs[:l.synced:l.synced]
	if c.imageOf > c.synced {
		c.image, c.imageOf = nil, 0
	}
	return &c
}
