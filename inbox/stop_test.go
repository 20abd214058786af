package inbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/balefire/balefire/handler"
)

// An end that cannot be written does not delay the stop of the node (S32).
func TestAStuckEndDoesNotDelayTheStop(t *testing.T) {
	_, spec := scripted(func(context.Context, *handler.Run) *handler.Result { return &handler.Result{Outcome: handler.Success} })
	inBubble(t, Config{}, []Spec{spec}, func(f *fixture) {
		f.results.fail(errors.New("the key of the home is not known"))
		f.accept(0, f.task())
		f.run()
		wait(2 * time.Minute)
		begin := time.Now()
		if err := f.stop(); err != nil {
			f.t.Fatal(err)
		}
		if d := time.Since(begin); d > time.Second {
			f.t.Errorf("it took %v", d)
		}
	})
}
