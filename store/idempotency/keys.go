package idempotency

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/store"
)

// Limits set how long keys are kept, and how many. The zero value of each field
// means its default.
type Limits struct {
	For time.Duration // of node uptime; default 7 days
	Max int           // number of keys; default 1 000 000
}

// Config configures a set of keys. The zero value of each field but the prefixes
// means its default.
type Config struct {
	// Prefix is the first byte of the keys in the Dedup bucket. It belongs to
	// this package alone.
	Prefix byte
	Limits
	// Owner names the owner of a key, so that one owner cannot use up the space of
	// all: see [Keys.WithinShare]. It depends on the key alone. Default: one owner
	// for all.
	Owner func(key []byte) string
	// Needed reports, by its value, whether a key must be kept beyond its period. It
	// must not call the store. Default: none.
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

// Keys is a set of idempotency keys. All its methods are safe for concurrent use.
type Keys struct {
	store *store.Store
	cfg   Config
	base  time.Duration // the age at Open
	open  time.Duration // boot time at Open

	mu       sync.Mutex
	kept     int // records, by the last count and what was added since
	reserved int // for keys that may yet be made
	owners   map[string]share
	owned    bool  // a sweep has counted the keys by owner
	oldest   int64 // lower bound of the age at which any record was made, milliseconds
	saved    state // as on disk

	swept   time.Duration // age of the last sweep; used by Run alone
	counted bool          // a sweep has completed; used by Run alone
}

// A share is the space that one owner uses.
type share struct {
	kept     int // like Keys.kept; unknown before the first sweep has completed
	reserved int
}

// A state is what is stored besides the keys.
type state struct {
	age  int64 // milliseconds
	kept int   // an estimate at first
}

const (
	stampLen = 8 // prefix of each value: the age at which its key was made, milliseconds
)

// Open returns the keys kept in s under the prefix. It reads no keys and
// starts nothing: see [Keys.Run].
func Open(s *store.Store, cfg Config) (*Keys, error) {
	cfg = cfg.withDefaults()
	k := &Keys{store: s, cfg: cfg, open: cfg.Clock.Boot(), owners: map[string]share{}}
	var err error
	if k.saved, err = readState(s, stateKey(cfg.Prefix)); err != nil {
		return nil, fmt.Errorf("open keys: %w", err)
	}
	k.base, k.kept = time.Duration(k.saved.age)*time.Millisecond, k.saved.kept
	return k, nil
}

// Age returns how long nodes on this store have run, as far as is known.
func (k *Keys) Age() time.Duration { return k.base + max(k.cfg.Clock.Boot()-k.open, 0) }

// Get returns the value of a key, or [store.ErrNotFound].
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

// RequireAbsent applies b only if the key is not present.
func (k *Keys) RequireAbsent(b *store.Batch, key []byte) {
	b.RequireAbsent(store.Dedup, k.diskKey(key))
}

// Put adds to b that the key is kept from now on. The caller accounts for its
// space: see [Keys.Reserve].
func (k *Keys) Put(b *store.Batch, key, val []byte) {
	k.mu.Lock()
	now := k.state()
	k.oldest = min(k.oldest, now.age)
	late := now.age-k.saved.age >= saveEvery.Milliseconds()
	k.mu.Unlock()
	b.Put(store.Dedup, k.diskKey(key), appendStamped(nil, now.age, val))
	if late { // the age stored before a kill must not be much older than a key
		k.saveIn(b, now)
	}
}

// TryReserve reserves space for a new key of owner and reports whether there was
// any. It must be followed by [Keys.Commit] or [Keys.Release].
func (k *Keys) TryReserve(owner string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept+k.reserved >= k.cfg.Max {
		return false
	}
	k.add(owner, 0, 1)
	return true
}

// Reserve is TryReserve for a key that cannot be refused any more.
func (k *Keys) Reserve(owner string) { k.mu.Lock(); defer k.mu.Unlock(); k.add(owner, 0, 1) }

// Commit turns a reservation into a key that is on disk.
func (k *Keys) Commit(owner string) { k.mu.Lock(); defer k.mu.Unlock(); k.add(owner, 1, -1) }

// Release releases a reservation.
func (k *Keys) Release(owner string) { k.mu.Lock(); defer k.mu.Unlock(); k.add(owner, 0, -1) }

// add updates the counts of an owner. The caller holds mu.
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

// Full reports whether there is no space left.
func (k *Keys) Full() bool { k.mu.Lock(); defer k.mu.Unlock(); return k.kept+k.reserved >= k.cfg.Max }

// WithinShare reports whether owner may add one more key: see [fair.Within], and
// docs/promises.md, what one member may take up.
func (k *Keys) WithinShare(owner string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.owners[owner]
	return fair.Within(s.kept+s.reserved, k.kept+k.reserved, k.cfg.Max)
}

// Count returns how many keys are kept, including reservations. It is an estimate
// until the first sweep after a start has completed. After that it is too high,
// until the next sweep, by the number of keys made during the sweep.
func (k *Keys) Count() int { k.mu.Lock(); defer k.mu.Unlock(); return k.kept + k.reserved }

// Max returns the largest number of keys.
func (k *Keys) Max() int { return k.cfg.Max }

func (k *Keys) diskKey(key []byte) []byte {
	return append(append(make([]byte, 0, 1+len(key)), k.cfg.Prefix), key...)
}

func appendStamped(dst []byte, age int64, val []byte) []byte {
	return append(binary.BigEndian.AppendUint64(dst, uint64(age)), val...)
}

// stateKey returns the key, in Meta, of the age and the number of keys: 8 bytes
// each, big endian.
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

// maxAge is the largest valid age on disk: 146 years, which do not overflow a
// duration.
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

// state returns the state to be stored now. The caller holds mu.
func (k *Keys) state() state { return state{age: k.Age().Milliseconds(), kept: k.kept} }

// saveIn adds storing now to b.
func (k *Keys) saveIn(b *store.Batch, now state) {
	b.Put(store.Meta, stateKey(k.cfg.Prefix), now.encode())
	b.After(func() { k.mu.Lock(); defer k.mu.Unlock(); k.saved = now })
}
