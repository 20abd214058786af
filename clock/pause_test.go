package clock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if !Pause(t.Context(), time.Minute) || time.Since(start) != time.Minute {
			t.Errorf("a minute: %v, want 1m and true", time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if Pause(ctx, time.Minute) || time.Since(start) != time.Second {
			t.Errorf("the context ends after a second: %v, want 1s and false", time.Since(start))
		}
		if Pause(ctx, 0) {
			t.Error("no time under a context that is done: true, want false")
		}
	})
}
