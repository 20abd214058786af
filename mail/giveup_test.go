package mail

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/balefire/balefire/mail/box"
)

// A caller that gives up is told so only if nothing was done for it, nor will be; otherwise it
// has what it asked for.
func TestACallerThatGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{})
		for range 1000 {
			ctx, cancel := context.WithCancel(t.Context())
			go cancel()
			done := false
			if err := f.View(ctx, func(*box.State) { done = true }); done != (err == nil) {
				t.Fatalf("done: %v, %v", done, err)
			}
		}
	})
}
