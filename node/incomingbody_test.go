package node

import (
	"bytes"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A partly received body survives a restart of the receiving node: it is swept only
// when nobody can send the rest any more (S12).
func TestPartialBodySurvivesRestart(t *testing.T) {
	a, _ := pair(t, nil)
	tests := []struct {
		name     string
		notAfter int64
		kept     bool
	}{
		{"in-awaited", time.Now().Add(time.Hour).UnixMilli(), true},
		{"in-late", time.Now().Add(-2 * proto.Skew).UnixMilli(), false},
	}
	for _, tt := range tests {
		w, err := a.resumeBody(t.Context(), a.storage.Blobs, tt.name, 100, progress{notAfter: tt.notAfter, leaf: [32]byte{1}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("half")); err != nil {
			t.Fatal(err)
		}
		if at, err := w.Sync(); err != nil || at != 4 {
			t.Fatalf("synced %d, %v", at, err)
		}
		if err := w.End(false); err != nil {
			t.Fatal(err)
		}
	}
	a.halt()
	a = start(t, a.cfg)
	for _, tt := range tests {
		w, err := a.resumeBody(t.Context(), a.storage.Blobs, tt.name, 100, progress{notAfter: tt.notAfter, leaf: [32]byte{1}})
		if err != nil {
			t.Fatal(err)
		}
		if kept := w.w.Offset() == 4; kept != tt.kept {
			t.Errorf("%s: kept %v, want %v", tt.name, kept, tt.kept)
		}
		if err := w.End(false); err != nil {
			t.Fatal(err)
		}
	}
	other, err := a.resumeBody(t.Context(), a.storage.Blobs, "in-awaited", 100, progress{leaf: [32]byte{2}})
	if err != nil || other.w.Offset() != 0 {
		t.Errorf("the part of another body was taken: %d, %v", other.w.Offset(), err)
	}
	if err := other.End(false); err != nil {
		t.Fatal(err)
	}
}

func FuzzDecodeProgress(f *testing.F) {
	f.Add(progress{1, 2, [32]byte{3}, proto.PeerID{4}}.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := decodeProgress(b); ok && !bytes.Equal(p.encode(), b) {
			t.Errorf("%x is read as %+v", b, p)
		}
	})
}

// The result of a task is accepted where there is no space for a body of new work
// (I13).
func TestResultsAreAcceptedBeyondMaxBlobs(t *testing.T) {
	a, b := pair(t, func(name string, c *Config) {
		if name == "a" {
			c.Store.MaxBlobs = 1 << 20
		}
	})
	if err := b.AddHandler(t.Context(), wire.HandlerSpec{Kind: "big", Exec: []string{"sh", "-c", "head -c 3000000 /dev/zero"}, Allow: []string{"role:send"}}); err != nil {
		t.Fatal(err)
	}
	id := a.submit(t, wire.Request{Target: "b", Kind: "big"})
	if got := a.waitEnd(t, id, "SUCCESS"); got.ResultSize != 3_000_000 {
		t.Errorf("the result has %d bytes", got.ResultSize)
	}
}
