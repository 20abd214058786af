package schedule

import (
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// MarkRestored adds to b the changes to the schedules in s, a store that was restored from an
// older copy: what was due until lost had its task, which the copy does not know. Idempotency
// keys of that time are forgotten, so a task for it would run a second time.
func MarkRestored(s *store.Store, b *store.Batch, lost time.Time) error {
	for p, err := range s.All(store.Meta, []byte(keyPrefix), []byte(keyPrefix+"\xff")) {
		if err != nil {
			return fmt.Errorf("read the schedules: %w", err)
		}
		m := new(proto.Schedule)
		if err := proto.Decode(p.Val, m); err != nil {
			return fmt.Errorf("the schedule at %q: %w", p.Key, err)
		}
		if m.Gone || m.MarkMs == 0 || m.MarkMs >= lost.UnixMilli() {
			continue
		}
		m.MarkMs = lost.UnixMilli()
		if m.FiringMs <= m.MarkMs {
			m.FiringMs = 0
		}
		val, err := proto.Encode(nil, m)
		if err != nil {
			return fmt.Errorf("the schedule at %q: %w", p.Key, err)
		}
		b.Put(store.Meta, p.Key, val)
	}
	return nil
}
