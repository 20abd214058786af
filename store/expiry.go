package store

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/balefire/balefire/clock"
)

// expiryLen is the length of the prefix of each value: the expiry, Unix
// milliseconds in big endian, 0 for none.
const expiryLen = 8

// Bounds for a wall clock that was set back.
const (
	backLimit = 5 * time.Minute // beyond this the clock is in doubt
	maxDoubt  = 24 * time.Hour  // after running this long the clock is believed again
)

// nothingExpired is the horizon of a clock in doubt: no expiry is before it.
const nothingExpired = math.MinInt64

// unwrap splits a value from an engine into the expiry and the value.
func unwrap(raw []byte) (expiry int64, val []byte, err error) {
	if len(raw) < expiryLen {
		return 0, nil, fmt.Errorf("%w: a record of %d bytes is too short for its expiry", ErrCorrupt, len(raw))
	}
	return int64(binary.BigEndian.Uint64(raw)), raw[expiryLen:], nil
}

// due reports whether a record with this expiry counts as deleted.
func due(expiry, horizon int64) bool { return expiry != 0 && expiry <= horizon }

// An expiryHorizon determines the time up to which records have expired. It keeps
// the highest wall time seen. A clock slightly behind that changes nothing; a
// clock far behind is in doubt, and then nothing expires: the next sweep fixes a
// record kept too long, but nothing brings back one dropped too early.
type expiryHorizon struct {
	highest int64 // Unix milliseconds
	doubted bool
	since   time.Duration // monotonic time when the doubt began
}

// observe takes a reading of the clocks and returns the time, in Unix
// milliseconds, up to which records have expired.
func (h *expiryHorizon) observe(wall int64, mono time.Duration) int64 {
	switch {
	case wall >= h.highest:
		h.highest, h.doubted = wall, false
	case wall >= h.highest-backLimit.Milliseconds():
		h.doubted = false
	case !h.doubted:
		h.doubted, h.since = true, mono
		return nothingExpired
	case mono-h.since < maxDoubt:
		return nothingExpired
	default:
		h.highest, h.doubted = wall, false
	}
	return h.highest
}

// An expiryClock is an expiryHorizon that reads a clock. It is safe for
// concurrent use.
type expiryClock struct {
	clock clock.Clock
	mu    sync.Mutex
	h     expiryHorizon
}

func (e *expiryClock) now() int64 {
	if e.clock.Doubted() {
		return nothingExpired
	}
	wall, mono := e.clock.Now().UnixMilli(), e.clock.Mono()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.h.observe(wall, mono)
}
