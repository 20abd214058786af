package store

import (
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/balefire/balefire/clock"
)

// expiryLen is the length of what stands before each value: the expiry, Unix
// milliseconds in big endian, 0 for none.
const expiryLen = 8

// Bounds on a wall clock that goes back.
const (
	backLimit = 5 * time.Minute // more than this, and the clock is in doubt
	maxDoubt  = 24 * time.Hour  // a clock that ran on this long is believed again
)

// nothingExpired is the horizon of a clock in doubt: no expiry is before it.
const nothingExpired = math.MinInt64

// unwrap splits what an engine returned into the expiry and the value.
func unwrap(raw []byte) (expiry int64, val []byte, err error) {
	if len(raw) < expiryLen {
		return 0, nil, fmt.Errorf("%w: a record of %d bytes is too short for its expiry", ErrCorrupt, len(raw))
	}
	return int64(binary.BigEndian.Uint64(raw)), raw[expiryLen:], nil
}

// due reports whether a record with this expiry counts as deleted.
func due(expiry, horizon int64) bool { return expiry != 0 && expiry <= horizon }

// A expiryHorizon says up to which moment records have expired. It keeps the highest
// wall time seen. A clock a little behind that changes nothing; a clock far
// behind is in doubt, and then nothing expires: keeping a record too long is
// mended by the next sweep, dropping one is not.
type expiryHorizon struct {
	highest int64 // Unix milliseconds
	doubted bool
	since   time.Duration // monotonic time at which the doubt began
}

// observe takes one reading of the clocks and returns the moment, in Unix
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

// An expiryClock is a horizon that reads a clock and may be asked by many.
type expiryClock struct {
	clock clock.Clock
	mu    sync.Mutex
	h     expiryHorizon
}

func (e *expiryClock) now() int64 {
	wall, mono := e.clock.Now().UnixMilli(), e.clock.Mono()
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.h.observe(wall, mono)
}
