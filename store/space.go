package store

import "sync/atomic"

// minReserve is the smallest default reserve, in bytes.
const minReserve = 256 << 20

// A space tracks the free space of the disk. Between two refreshes it subtracts
// what was written.
type space struct {
	ask     func() (free, total int64, err error) // nil: never full
	reserve int64                                 // as configured: 0 default, negative none

	free  atomic.Int64 // at the last refresh, minus what was written since
	limit atomic.Int64 // below it the disk counts as full
}

// refresh asks the disk. If that fails the last value is kept.
func (p *space) refresh() {
	if p.ask == nil {
		return
	}
	free, total, err := p.ask()
	if err != nil {
		return
	}
	p.limit.Store(reserveOf(p.reserve, total))
	p.free.Store(free)
}

// wrote subtracts n bytes from the free space until the next refresh.
func (p *space) wrote(n int) { p.free.Add(-int64(n)) }

func (p *space) full() bool { return p.ask != nil && p.free.Load() < p.limit.Load() }

// reserveOf returns the reserve in bytes on a disk of total bytes.
func reserveOf(configured, total int64) int64 {
	switch {
	case configured < 0:
		return 0
	case configured > 0:
		return configured
	}
	return max(minReserve, total/20)
}

// Space returns the free bytes of the disk, as far as known, and the reserve
// below which new work is refused; both are 0 without Config.Space.
func (s *Store) Space() (free, reserve int64) {
	return s.space.free.Load(), s.space.limit.Load()
}
