package idempotency

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
)

// Limits say how long keys are kept, and how many. The zero value of each field
// means its default.
type Limits struct {
	For time.Duration // of running; default 7 days
	Max int           // keys; default 1 000 000
}

// Config tunes what is remembered. The zero value of each field but the prefixes
// means its default.
type Config struct {
	// Prefix is the first byte of the keys in the Dedup bucket. It belongs to
	// this package alone.
	Prefix byte
	// LegacyPrefix is where earlier versions kept them, without an age; they are moved
	// when the store is opened. Default: nowhere.
	LegacyPrefix byte
	Limits
	// Owner names who a key is of, so that one owner cannot take up the places of
	// all: see [Keys.WithinShare]. It depends on the key alone. Default: all are of one.
	Owner func(key []byte) string
	// Needed says of a value that its key must be kept though its time is over.
	// It must not call the store. Default: none.
	Needed func(val []byte) bool

	Clock  clock.Clock  // default clock.System()
	Logger *slog.Logger // default: none
}

func (c Config) withDefaults() Config {
	c.For = cmp.Or(c.For, 7*24*time.Hour)
	c.Max = cmp.Or(c.Max, 1_000_000)
	if c.Owner == nil {
		c.Owner = func([]byte) string { return "" }
	}
	if c.Needed == nil {
		c.Needed = func([]byte) bool { return false }
	}
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Keys are the keys of one room. All its methods are safe for concurrent use.
type Keys struct {
	store *store.Store
	cfg   Config
	base  time.Duration // the age at Open
	open  time.Duration // boot time of it

	mu       sync.Mutex
	kept     int // records, by the last count and what came since
	reserved int // places of keys that may yet be made
	owners   map[string]share
	owned    bool  // a sweep has counted them by owner
	oldest   int64 // no record is older, milliseconds of age
	saved    state // as on disk

	swept   time.Duration // age of the last sweep, of Run alone
	counted bool          // a sweep has come to its end, of Run alone
}

// A share is what one owner has of the places.
type share struct {
	kept     int // as Keys.kept; not known before the first sweep has ended
	reserved int
}

// A state is what is on disk besides the keys.
type state struct {
	age  int64 // milliseconds
	kept int   // an estimate to begin with
}

const (
	stampLen    = 8 // before each value: the age at which its key was made, milliseconds
	migrateStep = 256
)

// Open returns the keys kept in s under the prefix. It reads no key, unless there
// are some of an earlier version. It starts nothing: see [Keys.Run].
func Open(s *store.Store, cfg Config) (*Keys, error) {
	cfg = cfg.withDefaults()
	k := &Keys{store: s, cfg: cfg, open: cfg.Clock.Boot(), owners: map[string]share{}}
	var err error
	if k.saved, err = readState(s, stateKey(cfg.Prefix)); err != nil {
		return nil, fmt.Errorf("open keys: %w", err)
	}
	k.base, k.kept = time.Duration(k.saved.age)*time.Millisecond, k.saved.kept
	if cfg.LegacyPrefix != 0 {
		if err := k.migrate(); err != nil {
			return nil, fmt.Errorf("open keys: move those of an earlier version: %w", err)
		}
	}
	return k, nil
}

// Age is how long nodes on this store have run, as far as is known.
func (k *Keys) Age() time.Duration { return k.base + max(k.cfg.Clock.Boot()-k.open, 0) }

// Get returns what is remembered of a key, or [store.ErrNotFound].
func (k *Keys) Get(key []byte) (val []byte, err error) {
	raw, err := k.store.Get(store.Dedup, k.diskKey(key))
	switch {
	case err != nil:
		return nil, err
	case len(raw) < stampLen:
		return nil, fmt.Errorf("%w: the idempotency key at %x has %d bytes", store.ErrCorrupt, key, len(raw))
	}
	return raw[stampLen:], nil
}

// RequireAbsent lets b through only if the key is not remembered.
func (k *Keys) RequireAbsent(b *store.Batch, key []byte) {
	b.RequireAbsent(store.Dedup, k.diskKey(key))
}

// Put adds to b that the key is remembered from now on. Whether it takes up a
// place is for the caller to say: see [Keys.Reserve].
func (k *Keys) Put(b *store.Batch, key, val []byte) {
	k.mu.Lock()
	now := k.state()
	k.oldest = min(k.oldest, now.age)
	late := now.age-k.saved.age >= saveEvery.Milliseconds()
	k.mu.Unlock()
	b.Put(store.Dedup, k.diskKey(key), appendStamped(nil, now.age, val))
	k.store.RaiseSchema(b)
	if late { // a key must not be much younger than the age that a kill leaves
		k.saveIn(b, now)
	}
}

// TryReserve takes the place of a key of owner that is to be made, unless there is
// none left. It must be followed by [Keys.Commit] or [Keys.Release].
func (k *Keys) TryReserve(owner string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept+k.reserved >= k.cfg.Max {
		return false
	}
	k.add(owner, 0, 1)
	return true
}

// Reserve is TryHold for a key that cannot be refused any more.
func (k *Keys) Reserve(owner string) { k.mu.Lock(); defer k.mu.Unlock(); k.add(owner, 0, 1) }

// Commit says that the key of a place is on disk.
func (k *Keys) Commit(owner string) { k.mu.Lock(); defer k.mu.Unlock(); k.add(owner, 1, -1) }

// Release gives a place back.
func (k *Keys) Release(owner string) { k.mu.Lock(); defer k.mu.Unlock(); k.add(owner, 0, -1) }

// add counts keys and places of an owner. The caller holds mu.
func (k *Keys) add(owner string, kept, reserved int) {
	s := k.owners[owner]
	s.kept, s.reserved = s.kept+kept, s.reserved+reserved
	if s == (share{}) {
		delete(k.owners, owner)
	} else {
		k.owners[owner] = s
	}
	k.kept, k.reserved = k.kept+kept, k.reserved+reserved
}

// Full reports whether there is no place left.
func (k *Keys) Full() bool { k.mu.Lock(); defer k.mu.Unlock(); return k.kept+k.reserved >= k.cfg.Max }

// freeMultiple is how many times what is free one owner may have: see
// docs/promises.md, what one member may take up.
const freeMultiple = 9

// WithinShare reports whether owner has a share left for one more key: it has less than
// nine times the places that are free. Where none is free it is not the share that
// refuses.
func (k *Keys) WithinShare(owner string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	free, s := k.cfg.Max-k.kept-k.reserved, k.owners[owner]
	return free <= 0 || s.kept+s.reserved < freeMultiple*free
}

// Count returns how many keys are kept, those included that are being made. Until
// the first sweep of a start has ended it is an estimate, and after it too many
// by those that were made while it counted, until the next.
func (k *Keys) Count() int { k.mu.Lock(); defer k.mu.Unlock(); return k.kept + k.reserved }

// Max returns how many may be kept.
func (k *Keys) Max() int { return k.cfg.Max }

func (k *Keys) diskKey(key []byte) []byte {
	return append(append(make([]byte, 0, 1+len(key)), k.cfg.Prefix), key...)
}

func appendStamped(dst []byte, age int64, val []byte) []byte {
	return append(binary.BigEndian.AppendUint64(dst, uint64(age)), val...)
}

// stateKey names, in Meta, the age and the number of keys: 8 bytes each, big
// endian.
func stateKey(prefix byte) []byte { return append([]byte("keys/"), prefix) }

func readState(s *store.Store, key []byte) (st state, err error) {
	b, err := s.Get(store.Meta, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return st, nil
	case err != nil:
		return st, fmt.Errorf("read their age: %w", err)
	}
	return parseState(b)
}

// maxAge bounds what is believed of an age on disk: 146 years, which do not
// overflow a duration.
const maxAge = math.MaxInt64 / int64(time.Millisecond) / 2

func parseState(b []byte) (state, error) {
	if len(b) != 16 {
		return state{}, fmt.Errorf("read their age: %w: %d bytes", store.ErrCorrupt, len(b))
	}
	age, kept := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	if age > uint64(maxAge) || kept > math.MaxInt32 {
		return state{}, fmt.Errorf("read their age: %w: %d ms, %d keys", store.ErrCorrupt, age, kept)
	}
	return state{age: int64(age), kept: int(kept)}, nil
}

func (st state) encode() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(st.age)), uint64(max(st.kept, 0)))
}

// state returns what should be on disk now. The caller holds mu.
func (k *Keys) state() state { return state{age: k.Age().Milliseconds(), kept: k.kept} }

// saveIn adds to b that now is on disk.
func (k *Keys) saveIn(b *store.Batch, now state) {
	b.Put(store.Meta, stateKey(k.cfg.Prefix), now.encode())
	b.After(func() { k.mu.Lock(); defer k.mu.Unlock(); k.saved = now })
}

// migrate takes over what an earlier version kept until a wall time, with the age
// of this moment. It may be cut off anywhere and goes on at the next Open.
func (k *Keys) migrate() error {
	from, to := []byte{k.cfg.LegacyPrefix}, []byte{k.cfg.LegacyPrefix + 1}
	for {
		pairs, _, err := k.store.Scan(store.Dedup, from, to, migrateStep)
		if err != nil || len(pairs) == 0 {
			return err
		}
		batches := make([]*store.Batch, len(pairs))
		for i, p := range pairs {
			b := new(store.Batch)
			k.store.RaiseSchema(b)
			b.Delete(store.Dedup, p.Key)
			b.Put(store.Dedup, k.diskKey(p.Key[1:]), appendStamped(nil, k.base.Milliseconds(), p.Val))
			batches[i] = b
		}
		for _, err := range k.store.ApplyMany(context.Background(), batches) {
			if err != nil {
				return err
			}
		}
		k.kept += len(pairs)
		from = append(pairs[len(pairs)-1].Key, 0)
	}
}
