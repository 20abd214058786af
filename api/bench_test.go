package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"

	"github.com/balefire/balefire/api/apitest"
	"github.com/balefire/balefire/wire"
)

// A sink accepts tasks at no cost, so that only the API server is measured.
type sink struct{ *apitest.Node }

func (sink) Submit(context.Context, wire.Request) (wire.Submitted, error) {
	return wire.Submitted{ID: apitest.ID, State: "PENDING", Target: "laptop", NotAfter: apitest.Start}, nil
}

func (s sink) SubmitMany(ctx context.Context, rs []wire.Request) ([]wire.Submitted, []error) {
	out := make([]wire.Submitted, len(rs))
	for i, r := range rs {
		out[i], _ = s.Submit(ctx, r)
	}
	return out, make([]error, len(rs))
}

func oneKiB(b *testing.B) []byte {
	b.Helper()
	doc, err := json.Marshal(wire.Request{Target: "laptop", Kind: "discard", Body: bytes.Repeat([]byte{0xa5}, 1024)})
	if err != nil {
		b.Fatal(err)
	}
	return doc
}

// BenchmarkSubmit measures the overhead of the API server for a single task.
func BenchmarkSubmit(b *testing.B) {
	doc, h := oneKiB(b), New(sink{apitest.New()}, Config{}).Handler()
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(discard{http.Header{}}, request(b, "/v1/tasks", jsonType, doc))
	}
}

// BenchmarkBatch measures the overhead per task in a batch of 1000: an operation is
// one task.
func BenchmarkBatch(b *testing.B) {
	doc := bytes.Repeat(append(oneKiB(b), '\n'), wire.MaxBatch)
	h := New(sink{apitest.New()}, Config{}).Handler()
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
