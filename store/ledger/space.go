package ledger

import (
	"sync"
	"time"

	"github.com/balefire/balefire/store"
)

// A space knows whether the disk has less than the reserve.
type space struct {
	cfg *Config

	mu    sync.Mutex
	asked time.Duration // monotonic time of the last answer plus one; 0: never
	full  bool
}

// below reports whether the disk has less than the reserve. It asks at most once a
// second; without an answer the last one counts.
func (s *space) below() bool {
	if s.cfg.Space == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.cfg.Clock.Mono() + 1
	if s.asked != 0 && now-s.asked < askEvery {
		return s.full
	}
	s.asked = now
	if free, total, err := s.cfg.Space(); err == nil {
		s.full = free < s.cfg.reserve(total)
	}
	return s.full
}

// Refuses returns why new work is refused at the moment, [store.ErrNoDisk]; nil if it is not.
func (l *Ledger) Refuses() error {
	if l.space.below() {
		return store.ErrNoDisk
	}
	return nil
}
