package node

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/receive"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/submit"
	"github.com/balefire/balefire/wire"
)

// A submit whose caller is gone may be committed anyway, and then it needs its body
// (I1).
func TestSubmitOfUnknownOutcomeKeepsItsBody(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	a, b := pair(t, func(name string, c *Config) {
		if name == "a" {
			c.Fail = func(p string) error {
				if p == submit.PointSealed {
					cancel()
				}
				return nil
			}
		}
	})
	if err := b.Handlers.Add(t.Context(), allow("sum", wire.TypeSHA256)); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, 100_000)
	rand.Read(body)
	_, err := a.Submit(ctx, wire.Request{Target: "b", Kind: "sum", Body: body})
	if !errors.Is(err, store.ErrUnknown) {
		t.Fatalf("Submit: %v, want unknown", err)
	}
	eventually(t, func() bool {
		p, _ := a.Views.Tasks(wire.Query{})
		return len(p.Items) == 1 && p.Items[0].State == "SUCCESS"
	}, func() string {
		p, _ := a.Views.Tasks(wire.Query{})
		w, _ := a.Explainer.Why(t.Context(), p.Items[0].ID)
		return fmt.Sprintf("%s %+v", p.Items[0].State, w)
	})
}

// A task that the target refuses permanently ends even if its body is streamed.
func TestDeniedStreamedTaskEnds(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	s := allow("sum", wire.TypeSHA256)
	s.Allow = []string{"peer:nobody"}
	if err := b.Handlers.Add(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	a.waitEnd(t, a.submit(t, wire.Request{Target: "b", Kind: "sum", Body: make([]byte, 300_000)}), "DEAD_LETTER")
	if err := a.Handlers.Add(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	a.waitEnd(t, a.submit(t, wire.Request{Target: "a", Kind: "sum", Body: make([]byte, 300_000)}), "DEAD_LETTER")
}

// A large result that comes too late is answered, and then no longer offered.
func TestLateStreamedResultIsDropped(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	gate := filepath.Join(t.TempDir(), "gate")
	id := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "until test -e " + gate + "; do sleep 0.05; done; head -c 400000 /dev/zero"}})
	eventually(t, func() bool { return b.inbox.Status().Used == 1 }, func() string { return "not running" })
	tid, _ := proto.ParseTaskID(id)
	rec, err := a.outbox.Get(tid)
	if err != nil {
		t.Fatal(err)
	}
	v := a.outbox.Commit(t.Context(), b.keys.Peer(), []outbox.ResultIn{{ID: tid, Seq: rec.Seq(), Outcome: &proto.Outcome{State: proto.Failed}}})
	if v[0].Code != 0 {
		t.Fatal(v)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		rec, err := b.inbox.Get(tid)
		return (err != nil || rec.GetState().Terminal()) && b.outbox.Results() == 0
	}, func() string { return "the result is still offered" })
}

// A large result whose acknowledgment was lost is sent again, and counts as the one that its
// home has.
func TestLargeResultIsAcknowledgedTwice(t *testing.T) {
	t.Parallel()
	var ended, lost atomic.Bool
	a, b := pair(t, func(name string, c *Config) {
		if name != "a" {
			return
		}
		c.Changed = func(_ proto.TaskID, s proto.TaskState) { ended.Store(s == proto.Success) }
		c.Fail = func(point string) error {
			if point == receive.PointAccepted && ended.Load() && lost.CompareAndSwap(false, true) {
				return errors.New("the link breaks before the acknowledgment")
			}
			return nil
		}
	})
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	id := a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "head -c 400000 /dev/zero"}})
	a.waitEnd(t, id, "SUCCESS")
	eventually(t, func() bool { return lost.Load() && len(b.blobs(t)) == 0 }, func() string { return "the result is still kept by the node that ran the task" })
	for _, e := range b.Events.Read(t.Context(), 0, 1000, 0).Items {
		if strings.HasPrefix(e.Kind, "result.") {
			t.Errorf("event %s: %v", e.Kind, e.Fields)
		}
	}
	task, _ := proto.ParseTaskID(id)
	if rec, err := a.outbox.Get(task); err != nil || len(rec.GetOrphans()) > 0 {
		t.Errorf("%d results count as orphans: %v", len(rec.GetOrphans()), err)
	}
}

// A result does not touch the body that another result has committed.
func TestForgedResultChangesNoBody(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), allow("echo", wire.TypeEcho)); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, 20_000)
	rand.Read(body)
	id := a.submit(t, wire.Request{Target: "b", Kind: "echo", Body: body})
	a.waitEnd(t, id, "SUCCESS")
	tid, _ := proto.ParseTaskID(id)
	other := bytes.Repeat([]byte("x"), 20_000)
	sum := sha256sum(other)
	a.receiveForged(t, b, tid, &proto.Outcome{State: proto.Success, Body: other, BodySize: 20_000, BodyDigest: sum})
	r, _, err := a.Views.Result(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, body) {
		t.Errorf("the committed result has been replaced: %v", err)
	}
	blobs := func() int { return a.storage.Blobs.Usage().Blobs }
	eventually(t, func() bool { return blobs() == 1 }, func() string { return fmt.Sprintf("%d blobs, want the result's alone", blobs()) })
	for range 3 {
		a.receiveForged(t, b, proto.NewTaskID(time.Now()), &proto.Outcome{State: proto.Success, Body: other, BodySize: 20_000, BodyDigest: sum})
	}
	if n := blobs(); n != 1 {
		t.Errorf("%d blobs after unexpected results, 1 before", n)
	}
}

// A streamed body and long arguments never share a file.
func TestStreamedTaskWithLongArguments(t *testing.T) {
	t.Parallel()
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), shell(nil)); err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 20<<10)
	rand.Read(noise)
	long := base64.StdEncoding.EncodeToString(noise)
	req := wire.Request{Target: "b", Kind: "run", Args: []string{"sh", "-c", "wc -c; printf %s \"$0\" | wc -c", long}, Body: make([]byte, 300_000)}
	id := a.submit(t, req)
	a.waitEnd(t, id, "SUCCESS")
	r, _, err := a.Views.Result(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || strings.Join(strings.Fields(string(got)), " ") != fmt.Sprintf("300000 %d", len(long)) {
		t.Errorf("the handler saw %q of 300000 and %d bytes: %v", got, len(long), err)
	}
	req.Args[3] = long + long[:len(long)/2]
	if _, err := a.Submit(t.Context(), req); !errors.Is(err, wire.ErrInvalid) {
		t.Errorf("more than fits beside a stream: %v, want invalid", err)
	}
	if u := a.storage.Blobs.Usage(); u.Parts != 0 {
		t.Errorf("%d parts are left of what was refused", u.Parts)
	}
}
