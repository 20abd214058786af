package client_test

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/node/nodetest"
	"github.com/balefire/balefire/wire"
)

// real runs a node that is the only member of its mesh and serves its API, and returns a
// client of it and its folder.
func real(t *testing.T) (c *client.Client, dir string) {
	t.Helper()
	n, dir := realNode(t)
	c, _ = serve(t, n)
	return c, dir
}

// realNode runs a node that is the only member of its mesh.
func realNode(t *testing.T) (n *node.Node, dir string) {
	t.Helper()
	n = nodetest.Open(t, func(cfg *node.Config) {
		dir, cfg.Store.MaxBlob = cfg.Dir, 8<<20
		cfg.Handlers = []wire.HandlerSpec{
			{Kind: "sum", Type: wire.TypeSHA256, Allow: []string{"peer:here"}},
			{Kind: "shell", Exec: []string{"/bin/sh", "-c", "cat; exit 65"}, Allow: []string{"peer:here"}},
		}
	})
	nodetest.Run(t, n)
	return n, dir
}

// TestARealNode runs a task on a real node through its API server: it is submitted twice
// but created once, waited for, and its result and receipts are read.
func TestARealNode(t *testing.T) {
	c, _ := real(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	body := make([]byte, 2<<20)
	_, _ = rand.Read(body)
	send := func() (wire.Submitted, error) {
		return c.Submit(ctx, wire.Request{Target: "here", Kind: "sum", Key: "k", Stream: strings.NewReader(string(body))})
	}
	first, err := send()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := send(); err != nil || again.ID != first.ID || !again.Known {
		t.Errorf("the same key: %+v, %v", again, err)
	}
	_, err = c.Submit(ctx, wire.Request{Target: "here", Kind: "sum", Key: "k", Body: []byte("other")})
	if !errors.Is(err, wire.ErrKeyConflict) {
		t.Errorf("the same key with another body: %v", err)
	}
	if task, err := c.Wait(ctx, first.ID); err != nil || task.State != "SUCCESS" {
		t.Fatalf("%+v, %v", task, err)
	}
	sum := sha256.Sum256(body)
	if got := result(ctx, t, c, first.ID); got != hex.EncodeToString(sum[:]) {
		t.Errorf("result %q", got)
	}
	receipts, err := c.Receipts(ctx, first.ID)
	if err != nil || len(receipts) != 4 || !receipts[3].Verified {
		t.Errorf("receipts %+v, %v", receipts, err)
	}
	if page, err := c.Tasks(ctx, wire.Query{Kind: "sum", Role: "home"}); err != nil || len(page.Items) != 1 || page.Items[0].ID != first.ID {
		t.Errorf("tasks %+v, %v", page, err)
	}
}

// TestARealFailure checks that a task that failed permanently shows the reason, and that
// errors of a real node arrive as such.
func TestARealFailure(t *testing.T) {
	c, _ := real(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, errs := c.SubmitMany(ctx, []wire.Request{
		{Target: "here", Kind: "shell", Body: []byte("why not")}, {Target: "nobody", Kind: "shell"}, {Target: "here", Kind: "Not A Kind"},
	})
	if errs[0] != nil || !errors.Is(errs[1], wire.ErrNotFound) || !errors.Is(errs[2], wire.ErrInvalid) {
		t.Fatalf("%v", errs)
	}
	task, err := c.Wait(ctx, out[0].ID)
	if err != nil || task.State != "FAILED" || task.ExitCode == nil || *task.ExitCode != 65 {
		t.Fatalf("%+v, %v", task, err)
	}
	for name, ask := range map[string]func() error{
		"unknown task":    func() error { _, err := c.Task(ctx, "01a1f84f-fb79-727b-b679-7a95fb475002"); return err },
		"unknown peer":    func() error { _, err := c.Peer(ctx, "nobody"); return err },
		"unknown handler": func() error { return c.RemoveHandler(ctx, "nothing") },
	} {
		if err := ask(); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := errors.Join(c.Healthy(ctx), c.Ready(ctx)); err != nil {
		t.Errorf("health: %v", err)
	}
	if st, err := c.Status(ctx); err != nil || st.Name != "here" || len(st.Addrs) == 0 {
		t.Errorf("status %+v, %v", st, err)
	}
	_, err = c.Submit(ctx, wire.Request{Target: "here", Kind: "sum", Stream: io.LimitReader(rand.Reader, 9<<20)})
	if err == nil || !strings.Contains(fmt.Sprint(err), "too large") {
		t.Errorf("a stream beyond the limit: %v", err)
	}
}

func result(ctx context.Context, t *testing.T, c *client.Client, id string) string {
	t.Helper()
	r, _, err := c.Result(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return string(b)
}
