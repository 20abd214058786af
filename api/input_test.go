package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// A sample is an input with all kinds of fields.
type sample struct {
	ByID
	Tags  []string  `query:"tag" maxItems:"2"`
	Since time.Time `query:"since"`
	After uint64    `query:"after" maximum:"9"`
	Order string    `query:"order" enum:"newest,oldest" default:"newest"`
	Limit int       `query:"limit" minimum:"1" maximum:"1000" default:"50"`
	Trace string    `header:"Traceparent" maxLength:"4"`
	Body  sampleDocument
}

type sampleDocument struct {
	Class string        `json:"class" enum:"high,low"`
	Wait  wire.Duration `json:"wait,omitempty"`
}

// sampleServer returns a server that returns what it decoded.
func sampleServer() *Server {
	mux := http.NewServeMux()
	s := &Server{mux: mux, api: newAPI(mux)}
	route(s, op("POST", "/sample/{id}", "pingPeer", "test", "Return the input"), func(_ context.Context, in *sample) (sample, error) {
		return *in, nil
	})
	type optional struct{ Body *sampleDocument }
	route(s, op("POST", "/optional", "taskProgress", "test", "Return the document"), func(_ context.Context, in *optional) (*sampleDocument, error) {
		return in.Body, nil
	})
	return s
}

func askSample(t *testing.T, s *Server, target, trace, doc string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	s.mux.ServeHTTP(w, newRequest(t, "POST", target, jsonType, doc, "Traceparent", trace))
	return w
}

func TestInput(t *testing.T) {
	const valid = `{"class":"high"}`
	s := sampleServer()
	tests := []struct {
		name, target, trace, doc string
		status                   int
		want                     string // the response or the detail of the problem
	}{
		{"defaults", "/sample/1", "", valid, 200, `{"ID":"1","Tags":null,"Since":"0001-01-01T00:00:00Z","After":0,"Order":"newest","Limit":50,"Trace":"","Body":{"class":"high"}}`},
		{"every field", "/sample/1?tag=a,b&since=2026-01-02T03:04:05Z&after=7&order=oldest&limit=2", "abcd", `{"class":"low","wait":"90s"}`, 200,
			`{"ID":"1","Tags":["a","b"],"Since":"2026-01-02T03:04:05Z","After":7,"Order":"oldest","Limit":2,"Trace":"abcd","Body":{"class":"low","wait":"1m30s"}}`},
		{"an empty parameter is absent", "/sample/1?limit=&tag=", "", valid, 200, `{"ID":"1","Tags":null,"Since":"0001-01-01T00:00:00Z","After":0,"Order":"newest","Limit":50,"Trace":"","Body":{"class":"high"}}`},
		{"unknown parameters alone", "/sample/xyz?id=1", "", valid, 422, "validation failed; query.id: unknown query parameter"},
		{"a header is no query", "/sample/1?Traceparent=1", "", valid, 422, "validation failed; query.Traceparent: unknown query parameter"},
		{"a parameter given twice", "/sample/1?limit=2&limit=3&x=1", "", valid, 422, "validation failed; query.limit: the query parameter is given twice; query.x: unknown query parameter"},
		{"a list given twice", "/sample/1?tag=a&tag=b", "", valid, 422, "query.tag: the query parameter is given twice"},
		{"a semicolon", "/sample/1?limit=2;order=oldest", "", valid, 400, "invalid semicolon separator in query"},
		{"a broken escape", "/sample/1?limit=%zz", "", valid, 400, "read the query: invalid URL escape"},
		{"all faults", "/sample/xyz?tag=a,b,c&since=now&after=-1&order=any&limit=0", "abcde", `{"class":"mid","x":1}`, 422,
			"validation failed; path.id: expected string to match pattern ^[0-9A-Fa-f-]{1,36}$; query.tag: expected array length <= 2; " +
				"query.since: invalid date/time for format 2006-01-02T15:04:05.999999999Z07:00; query.after: invalid integer; " +
				`query.order: expected value to be one of "newest, oldest"; query.limit: expected number >= 1; header.Traceparent: expected length <= 4; ` +
				`body.class: expected value to be one of "high, low"; body.x: unexpected property`},
		{"a large number", "/sample/1?after=10", "", valid, 422, "validation failed; query.after: expected number <= 9"},
		{"not a number", "/sample/1?limit=1.5", "", valid, 422, "validation failed; query.limit: invalid integer"},
		{"no document", "/sample/1?limit=0", "", "", 400, "request body is required; query.limit: expected number >= 1"},
		{"a broken document", "/sample/1?limit=0", "", `{"class":x}`, 400, "validation failed; query.limit: expected number >= 1; body: invalid character 'x' looking for beginning of value"},
		{"a field is missing", "/sample/1", "", `{}`, 422, "validation failed; body: expected required property class to be present"},
		{"a value that only its type rejects", "/sample/1", "", `{"class":"low","wait":"soon"}`, 422, `not a duration`},
		{"an optional document", "/optional", "", valid, 200, `{"class":"high"}`},
		{"no optional document", "/optional", "", "", 200, "null"},
		{"a bad optional document", "/optional", "", `{"class":1}`, 422, "validation failed; body.class: expected string"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := askSample(t, s, tt.target, tt.trace, tt.doc)
			got := strings.TrimSpace(w.Body.String())
			if w.Code >= 400 {
				got = problemOfBody(t, w.Result(), got).Detail
			}
			if w.Code != tt.status || !strings.Contains(got, tt.want) {
				t.Errorf("%d %s\nwant %d %s", w.Code, got, tt.status, tt.want)
			}
		})
	}
}

// FuzzInput checks that what a route gets has passed validation, and that all else is a
// problem.
func FuzzInput(f *testing.F) {
	s := sampleServer()
	f.Add("1", "2026-01-02T03:04:05Z", "50", "a,b", []byte(`{"class":"high","wait":"7d"}`))
	f.Add("", "", "1001", ",,", []byte(`{"class":"high","class":"low"}`))
	f.Fuzz(func(t *testing.T, id, since, limit, tags string, doc []byte) {
		q := url.Values{"since": {since}, "limit": {limit}, "tag": {tags}}
		r := newRequest(t, "POST", "/sample/1?"+q.Encode(), jsonType, "")
		r.URL.Path, r.Body = "/sample/a"+strings.ReplaceAll(id, "/", ""), readCloser{bytes.NewReader(doc)}
		w := httptest.NewRecorder()
		s.mux.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			problemOfBody(t, w.Result(), w.Body.String())
			return
		}
		var got sample
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if got.Limit < 1 || got.Limit > 1000 || len(got.Tags) > 2 || len(got.ID) > 36 || got.Body.Class != "high" && got.Body.Class != "low" {
			t.Errorf("accepted %+v", got)
		}
	})
}

type readCloser struct{ *bytes.Reader }

func (readCloser) Close() error { return nil }
