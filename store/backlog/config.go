package backlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// What callers test for with errors.Is.
var (
	// ErrExists means that there is already an entry with this key.
	ErrExists = errors.New("backlog: entry exists")
	// ErrNotFound means that there is no entry with this key.
	ErrNotFound = errors.New("backlog: no such entry")
	// ErrFull refuses new work: see [FullError] for what is full.
	ErrFull = errors.New("backlog: full")
)

// A FullError states which limit refused a new entry.
type FullError struct {
	Count, MaxCount int
	Bytes, MaxBytes int64
}

// Error states what is full and what to do.
func (e *FullError) Error() string {
	return fmt.Sprintf("backlog: full: %d of %d entries, %d of %d MiB are waiting; let them drain, cancel some, or raise the limit",
		e.Count, e.MaxCount, e.Bytes>>20, e.MaxBytes>>20)
}

// Is makes errors.Is(err, ErrFull) true.
func (e *FullError) Is(target error) bool { return target == ErrFull }

// Buckets are the buckets of the entries on disk. A zero Done or Dead means that
// nothing may be moved there.
type Buckets struct {
	Live, Done, Dead store.Bucket
}

// MaxEndedOps is how many operations Config.Ended may add for an entry.
const MaxEndedOps = 4

// Config tunes a backlog. The zero value of each field means its default. The
// first five functions must depend only on their arguments: memory is rebuilt with
// them.
type Config struct {
	// Group names the group of an entry; default: the record's peer. Group and Lane
	// are called once per entry.
	Group func(Key, *proto.Record) string
	// Lane names the lane of the entry, empty for none; default: the record's
	// ordering key for PartTask.
	Lane func(Key, *proto.Record) string
	// Tenant names the tenant of an entry; within a class TakeAny takes from the
	// tenants in turn. It is called once per entry; default: one tenant for all.
	Tenant func(Key, *proto.Record) string
	// Parked reports whether the entry waits for an event and must not be taken;
	// default: never. Terminal records are always parked.
	Parked func(Key, *proto.Record) bool
	// Expires returns when TakeExpired returns the entry, Unix milliseconds, 0
	// never; default: the record's NotAfterMs. Terminal records never expire.
	Expires func(Key, *proto.Record) int64

	MaxEntries int   // live entries above which new work is refused; default 100 000
	MaxBytes   int64 // size of their initial records, likewise; default 256 MiB

	MaxWait time.Duration // longest wait of an entry that was tried before; default 5 min

	DoneFor time.Duration // how long finished records are kept; default 24 h
	MaxDone int           // at most this many of them; default 50 000
	DeadFor time.Duration // how long dead entries are kept; default 30 days
	MaxDead int           // at most this many of them; default 10 000

	// Archive writes dead entries beyond the bounds to a safe place and returns once
	// they are there. Default: none, and then the dead set has no bounds. See
	// [FileArchive].
	Archive func(context.Context, []Archived) error
	// Archived is called with the number of dead entries archived and deleted.
	Archived func(n int)

	// Ended adds the caller's operations to the batch in which an entry ends as
	// [ToDone] or [ToDead]: at most MaxEndedOps small puts and deletes, more panic.
	// It must add no requirements: the batch may hold the ends of other entries,
	// which would be refused too. It is called before the batch is committed, by
	// several goroutines at once, and again if the batch is refused and the end is
	// tried once more; so it must only add to the batch, and change memory in
	// [store.Batch.After]. It must not call the backlog, nor modify or retain the
	// record. Revise and ReviseTo do not call it. Default: none.
	Ended func(Key, *proto.Record, *store.Batch)
	// Found is called for each live entry that Open finds, with its record.
	Found func(Key, *proto.Record)
	// Progress is called while Open reads, with the number of entries read so far.
	Progress func(entries int)
	// Damaged is called for a record that cannot be read. The record is left as it
	// is, unless Repair replaces it.
	Damaged func(key []byte, err error)
	// Repair changes r, the initial record of a task whose newest one cannot be read,
	// into what replaces that: the task may have gone far since. Default: none, and
	// the task is parked forever, because it may have run.
	Repair func(k Key, r *proto.Record)

	Clock clock.Clock // default clock.System()
}

func (c Config) withDefaults() Config {
	if c.Group == nil {
		c.Group = func(_ Key, r *proto.Record) string { return string(r.Peer) }
	}
	if c.Lane == nil {
		c.Lane = func(k Key, r *proto.Record) string {
			if k.Part != PartTask {
				return ""
			}
			return r.OrderingKey
		}
	}
	if c.Tenant == nil {
		c.Tenant = func(Key, *proto.Record) string { return "" }
	}
	if c.Parked == nil {
		c.Parked = func(Key, *proto.Record) bool { return false }
	}
	if c.Expires == nil {
		c.Expires = func(_ Key, r *proto.Record) int64 { return r.NotAfterMs }
	}
	if c.Found == nil {
		c.Found = func(Key, *proto.Record) {}
	}
	if c.Progress == nil {
		c.Progress = func(int) {}
	}
	if c.Damaged == nil {
		c.Damaged = func([]byte, error) {}
	}
	if c.Archived == nil {
		c.Archived = func(int) {}
	}
	c.MaxEntries = cmp.Or(c.MaxEntries, 100_000)
	c.MaxBytes = cmp.Or(c.MaxBytes, 256<<20)
	c.MaxWait = cmp.Or(c.MaxWait, 5*time.Minute)
	c.DoneFor = cmp.Or(c.DoneFor, 24*time.Hour)
	c.MaxDone = cmp.Or(c.MaxDone, 50_000)
	c.DeadFor = cmp.Or(c.DeadFor, 30*24*time.Hour)
	c.MaxDead = cmp.Or(c.MaxDead, 10_000)
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	return c
}
