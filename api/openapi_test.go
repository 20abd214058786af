package api

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"github.com/balefire/balefire/node/nodetest"
	"github.com/balefire/balefire/wire"
)

// TestOpenAPI compares the description of the routes with the golden file, and with what a
// client is given, compressed or not: a change affects every client. Run with -update to
// accept a change.
func TestOpenAPI(t *testing.T) {
	s := New(nodetest.Open(t, nil), Config{})
	s.describeProblems()
	got, err := json.MarshalIndent(s.api.OpenAPI(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	golden := filepath.Join("testdata", "openapi.json")
	if *update {
		for file, data := range map[string][]byte{golden: got, "openapi.json.gz": compressed(t, got)} {
			if err := os.WriteFile(file, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		t.Log("run the test again without -update: the description is part of the program")
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the description changed: run go test ./api -run TestOpenAPI -update and review the difference\n%s", got)
	}
	for _, encoding := range []string{"", "gzip"} {
		r, w := httptest.NewRequest("GET", "/openapi.json", nil), httptest.NewRecorder()
		r.Header.Set("Accept-Encoding", encoding)
		s.Handler().ServeHTTP(w, r)
		body := io.Reader(w.Body)
		if w.Header().Get("Content-Encoding") == "gzip" {
			if body, err = gzip.NewReader(body); err != nil {
				t.Fatal(err)
			}
		}
		served, err := io.ReadAll(body)
		if err != nil || w.Header().Get("Content-Encoding") != encoding || !bytes.Equal(served, want) {
			t.Errorf("with Accept-Encoding %q it is another description, in the encoding %q, %v", encoding, w.Header().Get("Content-Encoding"), err)
		}
	}
}

func compressed(t *testing.T, data []byte) []byte {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// describeProblems adds the possible error responses of each route, by status, with their
// codes.
func (s *Server) describeProblems() {
	doc := s.api.OpenAPI()
	doc.Components.Responses = map[string]*huma.Response{}
	problems := schema[wire.Problem](s)
	for _, path := range doc.Paths {
		for _, o := range []*huma.Operation{path.Get, path.Put, path.Post, path.Delete} {
			if o == nil {
				continue
			}
			for _, status := range statuses(o) {
				name := "Problem" + strconv.Itoa(status)
				o.Responses[strconv.Itoa(status)] = &huma.Response{Ref: "#/components/responses/" + name}
				doc.Components.Responses[name] = problemResponse(status, problems)
			}
		}
	}
}

// statuses returns the error statuses of an operation.
func statuses(o *huma.Operation) []int {
	if strings.HasPrefix(o.Path, "/healthz") || o.Path == "/metrics" {
		return []int{503}
	}
	out := []int{403, 409, 500, 503, 504} // if the node denies, refuses, fails, stops, or takes too long
	if strings.Contains(o.Path, "{") || len(o.Parameters) > 0 || o.RequestBody != nil {
		out = append(out, 404, 422)
	}
	if o.RequestBody != nil {
		out = append(out, 400, 413, 415)
	}
	if o.Method != http.MethodGet {
		out = append(out, 507)
	}
	if o.OperationID == "requestMail" || o.OperationID == "getReply" {
		out = append(out, 502)
	}
	return out
}

// problemResponse describes the problems with a status.
func problemResponse(status int, schema *huma.Schema) *huma.Response {
	r := &huma.Response{Content: map[string]*huma.MediaType{wire.ProblemType: {Schema: schema, Examples: map[string]*huma.Example{}}}}
	if status == http.StatusBadRequest {
		r.Description, r.Content[wire.ProblemType].Examples[string(wire.CodeInvalid)] = "INVALID: The request cannot be read", &huma.Example{Value: malformed("the body ended early, so nothing was accepted")}
		return r
	}
	var words []string
	for _, c := range slices.Sorted(maps.Keys(codes)) {
		if codes[c].status == status {
			words = append(words, string(c)+": "+codes[c].title)
			r.Content[wire.ProblemType].Examples[string(c)] = &huma.Example{Value: problem(c, "what failed, and why")}
		}
	}
	r.Description = strings.Join(words, "; ")
	return r
}
