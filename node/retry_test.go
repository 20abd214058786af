package node

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/submit"
	"github.com/balefire/balefire/wire"
)

// A result that its home cannot store at the moment is offered again (I13): only one
// that is not what was signed is refused permanently.
func TestUnstorableResultIsOfferedAgain(t *testing.T) {
	t.Parallel()
	var a, b *testNode
	var in *bodies.Incoming
	blocked := make(chan error, 1)
	a, b = pair(t, func(name string, c *Config) {
		if name == "b" {
			c.Fail = func(p string) error {
				if p == submit.PointResult {
					var err error
					in, err = blockBodies(a, b)
					blocked <- err
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
	defer in.Close()
	task, err := proto.ParseTaskID(id)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		why, err := b.outbox.WhyResult(task)
		return err == nil && why.Code == proto.CodeBusy
	}, func() string { return "the result is not refused" })
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	a.waitEnd(t, id, "SUCCESS")
}

// blockBodies makes a unable to receive the one object of b until in is closed.
func blockBodies(a, b *testNode) (in *bodies.Incoming, err error) {
	list, err := os.ReadDir(filepath.Join(b.cfg.Dir, datadir.Blob))
	if err != nil {
		return nil, err
	}
	if len(list) != 1 {
		return nil, fmt.Errorf("%d objects, want the result's", len(list))
	}
	m, err := b.storage.Blobs.Manifest(list[0].Name())
	if err != nil {
		return nil, err
	}
	return a.storage.Blobs.Receive(m, bodies.Terms{NotAfter: time.Now().Add(time.Hour).UnixMilli()})
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
