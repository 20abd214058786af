package store

import "sync/atomic"

// minReserve is the least default reserve, in bytes.
const minReserve = 256 << 20

// A space watches the free space of the disk between two looks by what was
// written since.
type space struct {
	ask     func() (free, total int64, err error) // nil: never full
	reserve int64                                 // as configured: 0 default, negative none

	free  atomic.Int64 // at the last look, less what was written since
	limit atomic.Int64 // below it the disk counts as full
}

// refresh asks the disk. A disk that does not answer keeps its last answer.
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

// wrote takes n bytes off the free space until the next look.
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

// Space returns the free bytes of the disk, as far as is known now, and the
// reserve below which new work is refused; both are 0 without Config.Space.
func (s *Store) Space() (free, reserve int64) {
	return s.space.free.Load(), s.space.limit.Load()
}
