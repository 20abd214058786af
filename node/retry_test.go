package node

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/submit"
	"github.com/balefire/balefire/wire"
)

// A result that its home cannot store at the moment is offered again (I13): only one
// that is not what was signed is refused permanently.
func TestUnstorableResultIsOfferedAgain(t *testing.T) {
	t.Parallel()
	var a, b *testNode
	blocked := make(chan error, 1)
	a, b = pair(t, func(name string, c *Config) {
		if name == "b" {
			c.Fail = func(p string) error {
				if p == submit.PointResult {
					blocked <- blockBodies(a, b)
				}
				return nil
			}
		}
	})
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	id := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "head -c 400000 /dev/zero"}})
	if err := <-blocked; err != nil {
		t.Fatal(err)
	}
	a.waitEnd(t, id, "SUCCESS")
}

// blockBodies makes a unable, for a second and a half, to receive the objects of b.
func blockBodies(a, b *testNode) error {
	list, err := os.ReadDir(filepath.Join(b.cfg.Dir, datadir.Blob))
	for _, e := range list {
		m, merr := b.storage.Blobs.Manifest(e.Name())
		if merr != nil {
			return merr
		}
		in, rerr := a.storage.Blobs.Receive(m, bodies.Terms{NotAfter: time.Now().Add(time.Hour).UnixMilli()})
		if rerr != nil {
			return rerr
		}
		time.AfterFunc(1500*time.Millisecond, func() { in.Close() })
	}
	if err == nil && len(list) != 1 {
		err = fmt.Errorf("%d objects, want the result's", len(list))
	}
	return err
}

// If a task is redriven several times at once, one redrive succeeds.
func TestRedriveHappensOnce(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	id := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "exit 65"}})
	a.waitEnd(t, id, "FAILED")
	won := make(chan bool, 8)
	for range 8 {
		go func() {
			_, err := a.Redriver.Retry(t.Context(), id)
			won <- err == nil
		}()
	}
	n := 0
	for range 8 {
		if <-won {
			n++
		}
	}
	if n != 1 {
		t.Errorf("it was redriven %d times", n)
	}
}
