package node

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/balefire/balefire/wire"
)

// A body for which there is no space waits and uses up no attempt of its task.
func TestBodyWaitsForSpace(t *testing.T) {
	a, b := pair(t, func(name string, c *Config) {
		if name == "b" {
			c.Store.MaxBlobs = 1 << 20
		}
	})
	if err := b.Handlers.Add(t.Context(), allow("sum", wire.TypeSHA256)); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, 3<<20)
	rand.Read(body)
	id := a.submit(t, wire.Request{Target: "b", Kind: "sum", Body: body})
	var why wire.Blocker
	eventually(t, func() bool {
		why, _ = a.Explainer.Why(t.Context(), id)
		return strings.Contains(fmt.Sprintf("%+v", why), "FULL")
	}, func() string { return fmt.Sprintf("why: %+v", why.Cause) })
	if task, err := a.Views.Task(t.Context(), id); err != nil || task.Attempts != 0 {
		t.Errorf("%d attempts were used up, %v", task.Attempts, err)
	}
}
