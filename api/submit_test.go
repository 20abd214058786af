package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/node"
	points "github.com/balefire/balefire/submit"
	"github.com/balefire/balefire/wire"
)

func TestDecodeSubmit(t *testing.T) {
	const base = `"target":"laptop","kind":"shell"`
	least := wire.Request{Target: "laptop", Kind: "shell"}
	with := func(f func(*wire.Request)) wire.Request {
		r := least
		f(&r)
		return r
	}
	tests := []struct {
		name, in string
		want     wire.Request
		err      string // a part of the detail
		status   int
	}{
		{"the least", `{` + base + `}`, least, "", 0},
		{"white space", " \n\t{ \"target\" : \"laptop\" ,\r\n\"kind\":\"shell\" } ", least, "", 0},
		{"durations", `{` + base + `,"ttl":"36h","delay":"1m30s"}`, with(func(r *wire.Request) { r.TTL, r.Delay = wire.Duration(36*time.Hour), wire.Duration(90*time.Second) }), "", 0},
		{"days", `{` + base + `,"ttl":"7d","delay":"1d12h"}`, with(func(r *wire.Request) { r.TTL, r.Delay = wire.Duration(7*24*time.Hour), wire.Duration(36*time.Hour) }), "", 0},
		{"a time", `{` + base + `,"at":"2026-11-20T12:00:00Z"}`, with(func(r *wire.Request) { r.At = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }), "", 0},
		{"a body", `{` + base + `,"body":"AAH/"}`, with(func(r *wire.Request) { r.Body = []byte{0, 1, 0xff} }), "", 0},
		{"a text has a type", `{` + base + `,"text":"灯"}`, with(func(r *wire.Request) { r.Body, r.Type = []byte("灯"), "text/plain; charset=utf-8" }), "", 0},
		{"a text of another type", `{` + base + `,"text":"{}","type":"application/json"}`, with(func(r *wire.Request) { r.Body, r.Type = []byte("{}"), "application/json" }), "", 0},
		{"an escaped name", `{"\u0074arget":"laptop","kind":"shell"}`, least, "", 0},

		{"nothing", ``, least, "object is expected", 400},
		{"null", `null`, least, "object is expected", 400},
		{"an array", `[{` + base + `}]`, least, "object is expected", 400},
		{"a number", `7`, least, "object is expected", 400},
		{"cut off", `{` + base, least, "", 400},
		{"two objects", `{` + base + `}{` + base + `}`, least, "something follows", 400},
		{"a zero byte after it", "{" + base + "}\x00", least, "something follows", 400},
		{"a zero byte in it", "{" + base + ",\x00}", least, "", 400},
		{"a field twice", `{` + base + `,"kind":"other"}`, least, `"kind" is given twice`, 400},
		{"a field twice, once escaped", `{` + base + `,"\u006bind":"other"}`, least, `"kind" is given twice`, 400},
		{"a label twice", `{` + base + `,"labels":{"a":"1","a":"2"}}`, least, `"a" is given twice`, 400},
		{"an unknown field", `{` + base + `,"prio":"high"}`, least, `unknown field "prio"`, 400},
		{"a field in capitals", `{` + base + `,"Class":"high"}`, least, `unknown field "Class"`, 400},
		{"a node's own field", `{` + base + `,"redrive_of":"x"}`, least, `unknown field "redrive_of"`, 400},
		{"deep", `{` + base + `,"args":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`, least, "deeper than 32", 400},
		{"very deep", `{` + base + `,"args":` + strings.Repeat("[", 1<<20), least, "deeper than 32", 400},
		{"a wrong type", `{` + base + `,"ttl":7}`, least, `field "ttl" cannot be a number`, 400},
		{"a wrong type in a list", `{` + base + `,"args":["a",true]}`, least, `"args" cannot be a bool`, 400},
		{"no base64", `{` + base + `,"body":"???"}`, least, "base64", 400},
		{"a comma at the end", `{` + base + `,}`, least, "expected", 400},
		{"a comma at the start", `{,` + base + `}`, least, "expected", 400},
		{"no colon", `{"target" "laptop"}`, least, "a colon is expected", 400},
		{"a bad literal", `{` + base + `,"retries":01}`, least, "", 400},
		{"a negative count", `{` + base + `,"retries":-1}`, least, "retries", 400},
		{"a huge count", `{` + base + `,"retries":4294967296}`, least, "retries", 400},

		{"two bodies", `{` + base + `,"body":"AA==","text":"x"}`, least, "one body", 422},
		{"a bare number", `{` + base + `,"ttl":"7"}`, least, "90s, 15m, 1h30m or 7d", 422},
		{"no time at all", `{` + base + `,"ttl":"0s"}`, least, "positive", 422},
		{"a time that went by", `{` + base + `,"delay":"-1s"}`, least, "positive", 422},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decodeSubmit([]byte(tt.in))
			if tt.status == 0 {
				if err != nil || !reflect.DeepEqual(got, tt.want) {
					t.Fatalf("%+v, %v", got, err)
				}
				return
			}
			p, ok := errors.AsType[*wire.Problem](err)
			if !ok || p.Status != tt.status || p.Code != wire.CodeInvalid || !strings.Contains(p.Detail, tt.err) || strings.Contains(p.Detail, "Go struct") {
				t.Errorf("%d %v, want %d with %q", p.GetStatus(), err, tt.status, tt.err)
			}
		})
	}
}

// TestBadSubmits checks that an invalid request is rejected before it reaches the
// node.
func TestBadSubmits(t *testing.T) {
	const stream = "application/octet-stream"
	n := newNode(t, nil)
	handlers := len(n.Handlers.List())
	tests := []struct {
		name, target, contentType, body string
		headers                         []string
		status                          int
		detail                          string
	}{
		{"JSON sent as a form", "/v1/tasks", "application/x-www-form-urlencoded", jsonTask, nil, 422, "Content-Type: application/json"},
		{"JSON without a type", "/v1/tasks", "", jsonTask, nil, 422, "Content-Type: application/json"},
		{"fields in document and query", "/v1/tasks?ttl=1h", jsonType, jsonTask, nil, 422, "move the query"},
		{"no kind in the query", "/v1/tasks?target=laptop", stream, "x", nil, 422, `kind ""`},
		{"an unknown parameter", "/v1/tasks?target=l&kind=k&prio=1", stream, "x", nil, 422, "prio: unknown"},
		{"a parameter twice", "/v1/tasks?target=l&target=m&kind=k", stream, "x", nil, 422, "target: given twice"},
		{"a broken query", "/v1/tasks?target=l&kind=%zz", stream, "x", nil, 400, "read the query"},
		{"a semicolon", "/v1/tasks?target=l;kind=k", stream, "x", nil, 400, "read the query"},
		{"a bad label", "/v1/tasks?target=l&kind=k&label=a", stream, "x", nil, 422, "name=value"},
		{"a label twice", "/v1/tasks?target=l&kind=k&label=a=1&label=a=2", stream, "x", nil, 422, "each name once"},
		{"a bad time", "/v1/tasks?target=l&kind=k&at=tomorrow", stream, "x", nil, 422, "at: "},
		{"a bad count", "/v1/tasks?target=l&kind=k&retries=-1", stream, "x", nil, 422, `retries: "-1": it must be a whole number from 0 to 4294967295`},
		{"a size that is a word", "/v1/tasks?target=l&kind=k&max_result=x", stream, "x", nil, 422, `max_result: "x": it must be a whole number from 0 to 9223372036854775807`},
		{"a negative count in JSON", "/v1/tasks", jsonType, `{"target":"l","kind":"k","retries":-4}`, nil, 400, `"retries" cannot be a number -4: it must be a whole number from 0 to 4294967295`},
		{"a size with a fraction in JSON", "/v1/tasks", jsonType, `{"target":"l","kind":"k","max_result":1.5}`, nil, 400, "from 0 to 9223372036854775807"},
		{"too many attempts of a schedule", "/v1/schedules", jsonType, `{"queue":"q","name":"s","cron":"@daily","kind":"k","retries":4294967296}`, nil, 422, "body.retries: expected number <= 4294967295"},
		{"too many attempts of a handler", "/v1/handlers", jsonType, `{"kind":"k","type":"echo","allow":["peer:a"],"max_attempts":2147483648}`, nil, 422, "body.max_attempts: expected number <= 2147483647"},
		{"a bad ttl", "/v1/tasks?target=l&kind=k&ttl=1", stream, "x", nil, 422, "ttl"},
		{"two keys", "/v1/tasks", jsonType, jsonTask, []string{"Idempotency-Key", "a", "Idempotency-Key", "b"}, 422, "more than one"},
		{"keys that differ", "/v1/tasks?target=l&kind=k&key=a", stream, "x", []string{"Idempotency-Key", "b"}, 422, "differ"},
		{"11 MB inline", "/v1/tasks", jsonType, `{"target":"l","kind":"k","body":"` + base64.StdEncoding.EncodeToString(make([]byte, 11_000_000)) + `"}`, nil, 413, "limit is 10485760"},
		{"20 MB inline", "/v1/tasks", jsonType, `{"target":"l","kind":"k","body":"` + base64.StdEncoding.EncodeToString(make([]byte, 20<<20)) + `"}`, nil, 413, "larger than"},
		{"a batch with one key", "/v1/tasks/batch", jsonType, "[" + jsonTask + "]", []string{"Idempotency-Key", "a"}, 422, "own key"},
		{"a batch of another type", "/v1/tasks/batch", "text/csv", "laptop,shell", nil, 415, "x-ndjson"},
		{"a batch that is no array", "/v1/tasks/batch", jsonType, jsonTask, nil, 400, "array is expected"},
		{"a batch that is cut off", "/v1/tasks/batch", jsonType, "[" + jsonTask + ",", nil, 400, "read the batch"},
		{"a batch with something behind it", "/v1/tasks/batch", jsonType, "[" + jsonTask + "]]", nil, 400, "something follows"},
		{"an empty array", "/v1/tasks/batch", jsonType, "[]", nil, 422, "empty"},
		{"no lines", "/v1/tasks/batch", "application/x-ndjson", "\n \n", nil, 422, "empty"},
		{"1001 tasks", "/v1/tasks/batch", jsonType, "[" + strings.Repeat(jsonTask+",", 1000) + jsonTask + "]", nil, 413, "more than 1000"},
		{"1001 lines", "/v1/tasks/batch", "application/x-ndjson", strings.Repeat(jsonTask+"\n", 1001), nil, 413, "more than 1000"},
		{"11 MB of tasks", "/v1/tasks/batch", jsonType, "[" + strings.Repeat(" ", 11<<20) + jsonTask + "]", nil, 413, "larger than"},
		{"a document of another type", "/v1/tasks/01a1f84f-fb79-727b-b679-7a95fb475002/cancel", "text/xml", "<hard/>", nil, 415, "text/xml"},
		{"a document without a type", "/v1/tasks/purge", "", "{}", nil, 415, "content type"},
		{"a document with a field twice", "/v1/tasks/purge", jsonType, `{"dry_run":true,"dry_run":false}`, nil, 400, "twice"},
		{"a document with an unknown field", "/v1/tasks/purge", jsonType, `{"dryrun":true}`, nil, 422, "dryrun"},
		{"a field in capitals", "/v1/tasks/purge", jsonType, `{"Dry_Run":true}`, nil, 422, "Dry_Run"},
		{"a document of 2 MB", "/v1/tasks/purge", jsonType, `{"kind":"` + strings.Repeat("k", 2<<20) + `"}`, nil, 413, "larger than"},
		{"a deep document", "/v1/handlers", jsonType, `{"kind":` + strings.Repeat(`{"a":`, 1<<17), nil, 400, "deeper"},
		{"a broken document", "/v1/handlers", jsonType, `{"kind":}`, nil, 400, "a value is expected"},
		{"no document where one is needed", "/v1/handlers", jsonType, ``, nil, 400, "body is required"},
		{"a purge of an unknown state", "/v1/tasks/purge", jsonType, `{"states":["GONE"]}`, nil, 422, `"GONE"`},
		{"a handler that nobody may use", "/v1/handlers", jsonType, `{"kind":"k","exec":["/bin/true"],"allow":[]}`, nil, 422, "allow"},
		{"a handler of an unknown type", "/v1/handlers", jsonType, `{"kind":"k","type":"shell","allow":["peer:a"]}`, nil, 422, "type"},
		{"a handler in no folder", "/v1/handlers", jsonType, `{"kind":"k","exec":["/bin/true"],"allow":["peer:a"],"dir":"/no/such/folder"}`, nil, 422, "does not exist on this node"},
		{"a ticket for too long", "/v1/invitations", jsonType, `{"ttl":"400d"}`, nil, 422, "ttl 400d: a ticket is valid for at most 30d"},
		{"a ticket for no time", "/v1/invitations", jsonType, `{"ttl":"0s"}`, nil, 422, "positive"},
		{"a snapshot into a relative folder", "/v1/store/snapshot", jsonType, `{"dir":"../x"}`, nil, 422, "absolute"},
		{"dead letters by id and kind", "/v1/dead-letters/retry", jsonType, `{"ids":["01a1f84f"],"kind":"echo"}`, nil, 422, "does not narrow ids"},
		{"dead letters by id, and all", "/v1/dead-letters/retry", jsonType, `{"ids":["01a1f84f"],"all":true}`, nil, 422, "does not narrow ids"},
		{"dead letters of no kind", "/v1/dead-letters/retry", jsonType, `{}`, nil, 422, "all: true"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res, body := ask(t, n, "POST", tt.target, tt.contentType, tt.body, tt.headers...)
			p := problemOfBody(t, res, body)
			if p.Status != tt.status || !strings.Contains(p.Detail, tt.detail) || len(p.Detail) > 2000 {
				t.Errorf("%d %.300s, want %d with %q", p.Status, p.Detail, tt.status, tt.detail)
			}
		})
	}
	if all := tasks(t, n, wire.Query{}); len(all) > 0 || len(n.Handlers.List()) != handlers {
		t.Errorf("a refused request created %+v", all)
	}
}

// TestBadQueries does the same for read requests.
func TestBadQueries(t *testing.T) {
	n := newNode(t, nil)
	for target, detail := range map[string]string{
		"/v1/tasks?state=GONE":                  `unknown task state "GONE"`,
		"/v1/tasks?limit=0":                     "query.limit",
		"/v1/tasks?limit=1001":                  "query.limit",
		"/v1/tasks?limit=many":                  "query.limit",
		"/v1/tasks?role=king":                   "query.role",
		"/v1/tasks?before=yesterday":            "query.before",
		"/v1/tasks?label=a":                     "name=value",
		"/v1/tasks?foo=1":                       "query.foo",
		"/v1/tasks/not%20an%20id":               "path.id",
		"/v1/tasks/..%2f..%2fetc":               "path.id",
		"/v1/tasks/" + strings.Repeat("a", 37):  "path.id",
		"/v1/tasks/zzzzzz/result":               "path.id",
		"/v1/tasks/01a1f84f/wait?timeout=long":  "timeout",
		"/v1/tasks/01a1f84f/wait?timeout=-1s":   "positive",
		"/v1/peers/" + strings.Repeat("a", 129): "path.name",
	} {
		res, body := ask(t, n, "GET", target, "", "")
		p := problemOfBody(t, res, body)
		if p.Status != 422 || !strings.Contains(p.Detail, detail) || strings.Contains(p.Detail, ": invalid request") {
			t.Errorf("%s: %d %s", target, p.Status, p.Detail)
		}
	}
}

// TestHeadersOfASubmit checks the parameters that may be set in headers.
func TestHeadersOfASubmit(t *testing.T) {
	const given, other = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b7-01"
	tests := []struct{ name, more, key, trace, wantKey, wantTrace string }{
		{"neither", "", "", "", "", ""},
		{"both", "", "k1", given, "k1", given},
		{"a key in quotes, as the draft of the standard has it", "", `"k 1"`, "", "k 1", ""},
		{"the same key twice", `,"key":"a"`, "a", "", "a", ""},
		{"the document's trace wins", `,"traceparent":"` + given + `"`, "", other, "", given},
	}
	n := newNode(t, nil)
	for _, tt := range tests {
		var h []string
		if tt.key != "" {
			h = append(h, "Idempotency-Key", tt.key)
		}
		if tt.trace != "" {
			h = append(h, "Traceparent", tt.trace)
		}
		res, body := ask(t, n, "POST", "/v1/tasks", jsonType, `{"target":"here","kind":"later"`+tt.more+`}`, h...)
		task, err := n.Views.Task(t.Context(), decoded[wire.Submitted](t, res, body, 202).ID)
		if err != nil || task.Key != tt.wantKey || tt.wantTrace != "" && task.Trace != tt.wantTrace {
			t.Errorf("%s: key %q, trace %q, %v", tt.name, task.Key, task.Trace, err)
		}
	}
}

// TestAnyOtherTypeIsTheBody checks that a stream keeps its own content type, for which the
// handler of the task gets it.
func TestAnyOtherTypeIsTheBody(t *testing.T) {
	n := newNode(t, func(cfg *node.Config) {
		cfg.Handle("typed", handler.Func(func(_ context.Context, r *handler.Run) *handler.Result {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return &handler.Result{Outcome: handler.Fail, Reason: err.Error()}
			}
			return &handler.Result{Outcome: handler.Success, Output: fmt.Appendf(nil, "%s|%s", r.Content.GetContentType(), body)}
		}), "peer:here")
	})
	result := func(query, contentType, body string) string {
		t.Helper()
		res, text := ask(t, n, "POST", "/v1/tasks?target=here&kind=typed"+query, contentType, body)
		s := decoded[wire.Submitted](t, res, text, 202)
		if task, err := n.Views.Wait(t.Context(), s.ID); err != nil || task.State != "SUCCESS" {
			t.Fatalf("%+v, %v", task, err)
		}
		_, text = ask(t, n, "GET", "/v1/tasks/"+s.ID+"/result", "", "")
		return text
	}
	for contentType, want := range map[string]string{
		"image/png": "image/png", "": "", "text/plain; charset=latin1": "text/plain; charset=latin1", "nonsense": "nonsense",
	} {
		if got := result("", contentType, "abc"); got != want+"|abc" {
			t.Errorf("%q: the handler got %q", contentType, got)
		}
	}
	if got := result("&type=application/json", "application/octet-stream", "{}"); got != jsonType+"|{}" {
		t.Errorf("JSON as a stream: the handler got %q", got)
	}
}

// TestBatch checks that each task of a batch has its own result, in order, and that the
// tasks are stored together.
func TestBatch(t *testing.T) {
	good := func(key string) string { return fmt.Sprintf(`{"target":"here","kind":"k","key":%q}`, key) }
	items := []string{good("a"), `{"target":"here"}`, `{"target":"nobody","kind":"k"}`, `{"target":"here","kind":"k","nope":1}`, `"x"`, `{"target":"here","kind":"k","kind":"k"}`, good("b")}
	want := []int{202, 422, 404, 400, 400, 400, 202}
	for contentType, doc := range map[string]string{
		jsonType:               " [ " + strings.Join(items, "\n,\t") + " ] \n",
		"application/x-ndjson": strings.Join(items, "\n"),
		"application/jsonl":    strings.Join(items, "\r\n\r\n") + "\n",
	} {
		groups := 0
		n := newNode(t, func(cfg *node.Config) {
			cfg.Fail = func(point string) error {
				if point == points.PointStored {
					groups++
				}
				return nil
			}
		})
		res, body := ask(t, n, "POST", "/v1/tasks/batch", contentType, doc)
		b := decoded[wire.Batch](t, res, body, 200)
		if b.Accepted != 2 || b.Failed != 5 || len(b.Items) != 7 {
			t.Fatalf("%s: %+v", contentType, b)
		}
		for i, item := range b.Items {
			if item.Status != want[i] || (item.Task != nil) != (want[i] == 202) || (item.Problem != nil) != (want[i] != 202) {
				t.Errorf("%s: item %d: %+v", contentType, i, item)
			}
		}
		for i, key := range map[int]string{0: "a", 6: "b"} {
			if task, err := n.Views.Task(t.Context(), b.Items[i].Task.ID); err != nil || task.Key != key {
				t.Errorf("%s: item %d is the task %+v, %v", contentType, i, task, err)
			}
		}
		if all := tasks(t, n, wire.Query{Role: wire.RoleHome}); len(all) != 2 || groups != 1 {
			t.Errorf("%s: %d tasks in %d groups, want 2 in one", contentType, len(all), groups)
		}
	}
	n, failure := failing(t)
	*failure = wire.ErrDraining
	if res, body := ask(t, n, "POST", "/v1/tasks/batch", jsonType, "["+selfTask+"]"); res.StatusCode != 200 || !strings.Contains(body, `"status":503`) {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

// TestRequestsRoundTrip checks that the forms of a task lose nothing, except that a query
// has no body: see also the fuzz targets.
func TestRequestsRoundTrip(t *testing.T) {
	r := wire.Request{
		Target: "l", Kind: "k", Class: "low", Mode: "at_most_once", TTL: wire.Duration(time.Hour + time.Nanosecond), Delay: wire.Duration(time.Second), At: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), Key: "a", Order: "b",
		OnDead: "skip", Args: []string{"", "x y"}, Body: []byte("b"), Type: "t", Labels: map[string]string{"l": ""}, Trace: "c", Retries: 4294967295, MaxResult: 9,
		Require: []string{"gpu=yes"}, Prefer: []string{"fast", "x y"},
	}
	for f := range reflect.TypeFor[wire.Request]().Fields() {
		if v := reflect.ValueOf(r).FieldByIndex(f.Index); v.IsZero() && f.Name != "Stream" {
			t.Errorf("field %s is not covered", f.Name)
		}
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeSubmit(b); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v", got, err)
	}
	q, err := r.Query()
	if err != nil {
		t.Fatal(err)
	}
	r.Body = nil
	if got, err := wire.RequestOfQuery(q); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestSplitBody checks that the body of a task is decoded without encoding/json where
// the result is the same.
func TestSplitBody(t *testing.T) {
	for _, c := range []struct {
		value string
		body  []byte // nil: it is left to encoding/json
	}{
		{`"AAH/"`, []byte{0, 1, 0xff}},
		{`"AA=="`, []byte{0}},
		{`"AB=="`, []byte{0}}, // with ignored trailing bits
		{`""`, []byte{}},
		{`"AAH\/"`, nil},
		{`"AA\n=="`, nil},
		{"\"AA\n==\"", nil},
		{`"AA"`, nil},
		{`"A"`, nil},
		{`null`, nil},
		{`1`, nil},
	} {
		const head, tail = `{"target":"l","body": `, ` ,"kind":"k"}`
		doc := head + c.value + tail
		want := doc
		if c.body != nil {
			want = head + `""` + tail
		}
		rest, body := splitBody([]byte(doc), len(head), len(head)+len(c.value))
		if string(rest) != want || !reflect.DeepEqual(body, c.body) {
			t.Errorf("%s: %s, %v", c.value, rest, body)
		}
	}
	doc := []byte(`{"target":"l"}`)
	if rest, body := splitBody(doc, 0, 0); string(rest) != string(doc) || body != nil {
		t.Errorf("without a body: %s, %v", rest, body)
	}
}

func FuzzDecodeSubmit(f *testing.F) {
	f.Add([]byte(jsonTask))
	f.Add([]byte(`{"target":"l","kind":"k","ttl":"1h","at":"2026-11-20T12:00:00Z","body":"AA==","labels":{"a":"b"},"retries":3}`))
	f.Add([]byte(`{"target":"l","kind":"k","text":"\ud83d\ude00\u0000","args":["\\\"",""]}`))
	f.Add([]byte(`{"a":{"b":[1,-2.5e3,true,null,{}]},"c":"\\"}`))
	f.Add([]byte("{\"\xff\":1,\"\xfe\":2}"))
	f.Add([]byte("{\"target\":\"l\",\"kind\":\"k\",\"body\":\"AA\\u003d=\"}"))
	f.Add([]byte("{\"target\":\"l\",\"kind\":\"k\",\"body\" : null , \"labels\":{\"body\":\"AA==\"}}"))
	f.Add([]byte("{\"target\":\"l\",\"kind\":\"k\",\"b\\u006fdy\":\"AA\n==\"}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := checkObject(b, nil); err == nil != sound(b) {
			if err == nil && !json.Valid(b) {
				return // the walk is not the full grammar
			}
			t.Fatalf("checkObject: %v, but sound is %v", err, sound(b))
		}
		r, err := decodeSubmit(b)
		if want, wantErr := decodeWhole(b); (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() || !reflect.DeepEqual(r, want) {
			t.Fatalf("%q: %+v, %v; decoded whole %+v, %v", b, r, err, want, wantErr)
		}
		if err != nil {
			if p, ok := errors.AsType[*wire.Problem](err); !ok || p.Status != 400 && p.Status != 422 {
				t.Fatalf("%v", err)
			}
			return
		}
		if !json.Valid(b) || r.TTL < 0 || r.Delay < 0 {
			t.Fatalf("accepted %q as %+v", b, r)
		}
		again, err := json.Marshal(r)
		if err != nil {
			return // a year that JSON cannot encode
		}
		if back, err := decodeSubmit(again); err != nil || !reflect.DeepEqual(normal(back), normal(r)) {
			t.Fatalf("%+v came back as %+v: %v", r, back, err)
		}
	})
}

// decodeWhole is decodeSubmit without taking the body apart.
func decodeWhole(b []byte) (wire.Request, error) {
	if err := checkObject(b, func(name string) bool { return submitFields[name] }); err != nil {
		return wire.Request{}, malformed("read the task: %v", err)
	}
	var s submit
	if err := s.form().unmarshal(b, nil); err != nil {
		return wire.Request{}, err
	}
	return s.Request, nil
}

// sound returns the same result as checkObject, but is slower.
func sound(b []byte) bool {
	if !json.Valid(b) || bytes.TrimLeft(b, " \t\r\n")[0] != '{' {
		return false
	}
	d := json.NewDecoder(bytes.NewReader(b))
	_, err := d.Token()
	return err == nil && once(d, '{', 1)
}

func once(d *json.Decoder, kind json.Delim, depth int) bool {
	if depth > maxDepth {
		return false
	}
	names, isName := map[string]bool{}, kind == '{'
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return false
		}
		if name, ok := tok.(string); ok && isName {
			if names[name] {
				return false
			}
			names[name] = true
		}
		if open, ok := tok.(json.Delim); ok && !once(d, open, depth+1) {
			return false
		}
		isName = kind == '{' && !isName
	}
	_, err := d.Token()
	return err == nil
}

// normal makes empty and absent values equal, and equivalent time zones.
func normal(r wire.Request) wire.Request {
	if len(r.Args) == 0 {
		r.Args = nil
	}
	if len(r.Labels) == 0 {
		r.Labels = nil
	}
	if len(r.Body) == 0 {
		r.Body = nil
	}
	r.At = r.At.UTC()
	return r
}

func FuzzBatch(f *testing.F) {
	f.Add([]byte("["+jsonTask+", "+jsonTask+"]"), true)
	f.Add([]byte(jsonTask+"\n"+jsonTask), false)
	f.Add([]byte(`[1,"a,b]",[[]],{}]`), true)
	f.Fuzz(func(t *testing.T, b []byte, array bool) {
		split := splitLines
		if array {
			split = elements
		}
		parts, err := split(b, 10)
		if err != nil {
			return
		}
		if len(parts) > 10 {
			t.Fatalf("%d parts", len(parts))
		}
		var whole []json.RawMessage
		if array && json.Unmarshal(b, &whole) == nil {
			if len(whole) != len(parts) {
				t.Fatalf("%d elements, found %d", len(whole), len(parts))
			}
			for i := range whole {
				if !bytes.Equal(whole[i], parts[i]) {
					t.Fatalf("element %d is %q, found %q", i, whole[i], parts[i])
				}
			}
		}
	})
}
