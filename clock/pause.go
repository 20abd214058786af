package clock

import (
	"context"
	"time"
)

// Pause waits for d, or until ctx is done. It reports whether ctx is still active.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
