package inbox

import (
	"context"
	"errors"
	"testing"
	"time"
)

// An end that cannot be written does not hold up the stop of the node (S32).
func TestStuckEndDoesNotHoldUpTheStop(t *testing.T) {
	_, spec := does(func(context.Context, *Run) *Result { return &Result{Outcome: Success} })
	bubble(t, Config{}, []Spec{spec}, func(r *rig) {
		r.results.fail(errors.New("the key of the home is not known"))
		r.accept(0, r.task())
		r.run()
		wait(2 * time.Minute)
		begin := time.Now()
		if err := r.stop(); err != nil {
			r.t.Fatal(err)
		}
		if d := time.Since(begin); d > time.Second {
			r.t.Errorf("it took %v", d)
		}
	})
}
