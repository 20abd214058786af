package node

import (
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A result that its home cannot store at the moment is offered again (I13): only one
// that is not what was signed is refused permanently.
func TestUnstorableResultIsOfferedAgain(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.AddHandler(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	id := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "sleep 0.3; head -c 400000 /dev/zero"}})
	tid, err := proto.ParseTaskID(id)
	if err != nil {
		t.Fatal(err)
	}
	w, err := a.storage.Blobs.Create(resultBlob(tid)) // whatever blocks it
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(1500*time.Millisecond, func() { w.Abort() })
	a.waitEnd(t, id, "SUCCESS")
}

// If a task is redriven several times at once, one redrive succeeds.
func TestRedriveHappensOnce(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.AddHandler(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	id := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "exit 65"}})
	a.waitEnd(t, id, "FAILED")
	won := make(chan bool, 8)
	for range 8 {
		go func() {
			_, err := a.Retry(t.Context(), id)
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
