package api

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/balefire/balefire/wire"
)

func oneKiB(b *testing.B) []byte {
	b.Helper()
	doc, err := json.Marshal(wire.Request{Target: "here", Kind: "discard", Body: bytes.Repeat([]byte{0xa5}, 1024)})
	if err != nil {
		b.Fatal(err)
	}
	return doc
}

// BenchmarkSubmit measures a single task through the API server, on a node with its store in
// memory.
func BenchmarkSubmit(b *testing.B) {
	doc, h := oneKiB(b), New(newNode(b, nil), Config{}).Handler()
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(discard{http.Header{}}, request(b, "/v1/tasks", jsonType, doc))
	}
}

// BenchmarkBatch measures a task in a batch of 1000: an operation is one task.
func BenchmarkBatch(b *testing.B) {
	doc := bytes.Repeat(append(oneKiB(b), '\n'), wire.MaxBatch)
	h := New(newNode(b, nil), Config{}).Handler()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%wire.MaxBatch == 0 {
			h.ServeHTTP(discard{http.Header{}}, request(b, "/v1/tasks/batch", "application/x-ndjson", doc))
		}
	}
}

func request(b *testing.B, path, contentType string, doc []byte) *http.Request {
	b.Helper()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, path, io.NopCloser(bytes.NewReader(doc)))
	if err != nil {
		b.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	r.ContentLength = int64(len(doc))
	return r
}
