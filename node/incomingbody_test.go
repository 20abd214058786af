package node

import (
	"bytes"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A partly received body survives a restart of the receiving node: it is swept only
// when nobody can send the rest any more (S12).
func TestPartialBodySurvivesRestart(t *testing.T) {
	t.Parallel()
	a, _ := pair(t, nil)
	from, err := bodies.Open(t.TempDir(), bodies.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	tests := []struct {
		name     string
		notAfter int64
		task     proto.TaskID
		kept     int
		object   bodies.Manifest
	}{
		{"awaited", time.Now().Add(time.Hour).UnixMilli(), proto.TaskID{}, 1, bodies.Manifest{}},
		{"late", time.Now().Add(-2 * proto.Skew).UnixMilli(), proto.TaskID{}, 0, bodies.Manifest{}},
		{"of a task that is not here", time.Now().Add(time.Hour).UnixMilli(), proto.TaskID{1}, 0, bodies.Manifest{}},
	}
	for i := range tests {
		tt := &tests[i]
		var ref bodies.Ref
		if ref, tt.object, err = from.Seal(t.Context(), bytes.NewReader(random(t, 400_000)), bodies.SealOptions{Suite: bodies.AES}); err != nil {
			t.Fatal(err)
		}
		src, err := from.Source(ref.Name.String())
		if err != nil {
			t.Fatal(err)
		}
		defer src.Close()
		in, err := a.storage.Blobs.Receive(tt.object, bodies.Terms{NotAfter: tt.notAfter, Task: tt.task})
		if err != nil {
			t.Fatal(err)
		}
		chunk, path, err := src.Chunk(1, make([]byte, proto.MaxChunk), nil)
		if err == nil {
			err = errors.Join(in.Put(1, chunk, path), in.Sync(), in.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	a.halt()
	a = start(t, a.cfg)
	for _, tt := range tests {
		in, err := a.storage.Blobs.Receive(tt.object, bodies.Terms{NotAfter: tt.notAfter})
		if err != nil {
			t.Fatal(err)
		}
		if in.Durable() != tt.kept {
			t.Errorf("%s: %d chunks were kept, want %d", tt.name, in.Durable(), tt.kept)
		}
		if err := in.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func random(t *testing.T, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// The result of a task is accepted where there is no space for a body of new work
// (I13).
func TestResultsAreAcceptedBeyondMaxBlobs(t *testing.T) {
	t.Parallel()
	a, b := pair(t, func(name string, c *Config) {
		if name == "a" {
			c.Store.MaxBlobs = 1 << 20
		}
	})
	if err := b.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "big", Exec: []string{"sh", "-c", "head -c 3000000 /dev/zero"}, Allow: []string{"role:send"}}); err != nil {
		t.Fatal(err)
	}
	id := a.submit(t, wire.Request{Target: "b", Kind: "big"})
	if got := a.waitEnd(t, id, "SUCCESS"); got.ResultSize != 3_000_000 {
		t.Errorf("the result has %d bytes", got.ResultSize)
	}
}
