package api

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/node/nodetest"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// newMailNode returns a node with a mailbox ops, of which a lease lasts longer than any test.
func newMailNode(t *testing.T) *node.Node {
	t.Helper()
	n := newNode(t, nil)
	var s wire.MailboxSettings
	s.Lease, s.Attempts = new(wire.Duration(12*time.Hour)), new(2)
	if _, err := n.Mail.SetMailbox(t.Context(), "ops", s); err != nil {
		t.Fatal(err)
	}
	return n
}

// mailed sends mails to ops.
func mailed(t *testing.T, n *node.Node, mails ...wire.Mail) {
	t.Helper()
	for i := range mails {
		mails[i].To = "agent:ops"
	}
	if _, errs := n.Mail.Send(t.Context(), mails); errors.Join(errs...) != nil {
		t.Fatal(errs)
	}
}

// leasable fails the test unless ops gives another reader count mails that cost no attempt.
func leasable(t *testing.T, n *node.Node, count int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for got := 0; got < count; {
		items, err := n.Mail.Lease(ctx, "ops", "", wire.LeaseMail{Max: count, Wait: wire.Wait(time.Minute), Reader: "other"})
		if err != nil {
			t.Fatalf("after %d of %d mails: %v", got, count, err)
		}
		for _, d := range items {
			if d.Attempt != 1 {
				t.Errorf("mail %d: attempt %d", d.Mail.Seq, d.Attempt)
			}
		}
		got += len(items)
	}
}

// TestALeaseWaits checks that a lease is answered with the mail for which it waited.
func TestALeaseWaits(t *testing.T) {
	n := newMailNode(t)
	c, _ := open(t, n, Config{})
	got := make(chan string, 1)
	go func() {
		res, err := c.Post("http://node/v1/mailboxes/ops/lease", jsonType, strings.NewReader(`{"wait":"10m"}`))
		if err != nil {
			got <- err.Error()
			return
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		got <- string(b)
	}()
	nodetest.AwaitRequests(t, n, 1)
	mailed(t, n, wire.Mail{Body: []byte("hi")})
	if answer := <-got; !strings.Contains(answer, `"body":"aGk="`) {
		t.Errorf("the answer is %s", answer)
	}
}

// TestALeaseEndsWithTheNode checks that a reader that waits does not delay a stop.
func TestALeaseEndsWithTheNode(t *testing.T) {
	n := newMailNode(t)
	c, stop := open(t, n, Config{Grace: time.Hour})
	got := make(chan *http.Response, 1)
	go func() {
		res, err := c.Post("http://node/v1/mailboxes/ops/lease", jsonType, strings.NewReader(`{"wait":"10m"}`))
		if err != nil {
			t.Error(err)
		}
		got <- res
	}()
	nodetest.AwaitRequests(t, n, 1)
	if err := stop(); err != nil {
		t.Error(err)
	}
	res := <-got
	if res == nil {
		return
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	if p := problemOfBody(t, res, string(b)); p.Code != wire.CodeDraining {
		t.Errorf("%+v", p)
	}
}

// TestGoneReader checks S08: mail whose reader went away before it had the answer is given to
// the next reader at once, whenever that was.
func TestGoneReader(t *testing.T) {
	const lease = `{"max":8,"wait":"10m"}`
	t.Run("while it waited", func(t *testing.T) {
		n := newMailNode(t)
		c, _ := open(t, n, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			r, _ := http.NewRequestWithContext(ctx, "POST", "http://node/v1/mailboxes/ops/lease", strings.NewReader(lease))
			r.Header.Set("Content-Type", jsonType)
			res, err := c.Do(r)
			if err == nil {
				err = res.Body.Close()
			}
			ended <- err
		}()
		nodetest.AwaitRequests(t, n, 1)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the reader got %v", err)
		}
		nodetest.AwaitRequests(t, n, 0)
		mailed(t, n, wire.Mail{}, wire.Mail{})
		leasable(t, n, 2)
	})
	t.Run("before the answer", func(t *testing.T) {
		n := newMailNode(t)
		mailed(t, n, wire.Mail{}, wire.Mail{})
		ctx, cancel := context.WithCancel(t.Context())
		out, err := serverOf(n).lease(ctx, "ops", "", &wire.LeaseMail{Max: 8})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		w := httptest.NewRecorder()
		out.Body(humago.NewContext(new(huma.Operation), newRequest(t, "POST", "/", "", ""), w))
		if w.Body.Len() > 0 {
			t.Errorf("it was answered with %s", w.Body)
		}
		leasable(t, n, 2)
	})
	t.Run("when the answer is written", func(t *testing.T) {
		n := newMailNode(t)
		mailed(t, n, wire.Mail{}, wire.Mail{})
		w := failingWriter{httptest.NewRecorder()}
		serverOf(n).Handler().ServeHTTP(w, newRequest(t, "POST", "/v1/mailboxes/ops/lease", jsonType, lease))
		leasable(t, n, 2)
	})
	t.Run("in the middle", func(t *testing.T) {
		n := newMailNode(t)
		c, _ := open(t, n, Config{})
		mails := make([]wire.Mail, 3) // more than the buffers of a socket have
		for i := range mails {
			mails[i].Body = make([]byte, 256<<10)
		}
		mailed(t, n, mails...)
		conn, err := c.Transport.(*http.Transport).DialContext(t.Context(), "unix", "")
		if err != nil {
			t.Fatal(err)
		}
		brokenOff(t, conn, lease)
		leasable(t, n, 3)
	})
}

// brokenOff sends a lease on conn and closes it after the beginning of the answer.
func brokenOff(t *testing.T, conn net.Conn, doc string) {
	t.Helper()
	_, err := fmt.Fprintf(conn, "POST /v1/mailboxes/ops/lease HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(doc), doc)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReaderSize(conn, 16).ReadString('\n'); err != nil || !strings.Contains(line, "200 OK") {
		t.Fatalf("%q, %v", line, err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
}

// A failingWriter is the connection of a client that went away.
type failingWriter struct{ *httptest.ResponseRecorder }

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestMailByHand uses mail as a program does that has nothing but HTTP and JSON: it sends,
// leases, acknowledges and fails mail, and sends a dead letter again.
func TestMailByHand(t *testing.T) {
	n := newNode(t, nil)
	c, _ := open(t, n, Config{})
	var handle string
	call := func(method, path, doc string, status int, want ...string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "http://node"+path, strings.NewReader(doc))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != status {
			t.Fatalf("%s %s: %d, %v\n%s", method, path, res.StatusCode, err, b)
		}
		for _, part := range want {
			if !strings.Contains(string(b), part) {
				t.Fatalf("%s %s: no %s in\n%s", method, path, part, b)
			}
		}
		if found := regexp.MustCompile(`"lease":"([0-9.]+)"`).FindSubmatch(b); found != nil {
			handle = string(found[1])
		}
	}
	call("PUT", "/v1/mailboxes/ceo", `{"attempts":2}`, 200, `"name":"agent:ceo@here"`)
	call("POST", "/v1/mail", `{"to":"agent:ceo","text":"first","dedupe":"a"}`, 202, `"state":"WAITING"`, `"durability":"fsynced"`)
	call("POST", "/v1/mail", `{"to":"agent:ceo","text":"first","dedupe":"a"}`, 202, `"known":true`)
	call("POST", "/v1/mailboxes/ceo/lease", `{"reader":"w"}`, 200, `"attempt":1`, `"body":"Zmlyc3Q="`, `"content_type":"text/plain; charset=utf-8"`)
	call("POST", "/v1/mailboxes/ceo/settle", `{"extend":[{"lease":"`+handle+`","for":"1m"}]}`, 200, `"code":"OK","until":"`)
	call("POST", "/v1/mailboxes/ceo/settle", `{"ack":["`+handle+`"]}`, 200, `"code":"OK"`)
	call("POST", "/v1/mailboxes/ceo/settle", `{"nack":[{"lease":"`+handle+`"}]}`, 200, `"code":"STALE"`)
	call("POST", "/v1/mailboxes/ceo/lease", ``, 200, `{"items":[]}`)

	call("POST", "/v1/mail", `{"to":"agent:ceo","body":"c2Vjb25k"}`, 202)
	call("POST", "/v1/mailboxes/ceo/lease", `{"wait":"1m"}`, 200, `"attempt":1`)
	call("POST", "/v1/mailboxes/ceo/settle", `{"nack":[{"lease":"`+handle+`","delay":"1ms","reason":"busy"}]}`, 200, `"code":"OK"`)
	call("POST", "/v1/mailboxes/ceo/lease", `{"wait":"1m"}`, 200, `"attempt":2`, `"redelivered":true`)
	call("POST", "/v1/mailboxes/ceo/settle", `{"nack":[{"lease":"`+handle+`","reason":"it is broken"}]}`, 200, `"code":"OK"`)
	call("GET", "/v1/mailboxes/ceo/mails", ``, 200, `"items":[]`)
	call("GET", "/v1/mailboxes/ceo/mails?state=DEAD", ``, 200, `"state":"DEAD"`, `"reason":"it is broken"`, `"seq":2`)
	call("POST", "/v1/mailboxes/ceo/redrive", `{"seqs":[2]}`, 200, `"status":202`, `"more":false`)
	call("POST", "/v1/mailboxes/ceo/redrive", ``, 200, `"items":[]`)
	call("POST", "/v1/mailboxes/ceo/lease", `{"wait":"1m"}`, 200, `"attempt":1`, `"redrive_of":"`, `"body":"c2Vjb25k"`)
	call("POST", "/v1/mailboxes/ceo/settle", `{"ack":["`+handle+`"]}`, 200, `"code":"OK"`)
	call("GET", "/v1/mailboxes/ceo", ``, 200, `"waiting":0`, `"done":2`, `"dead":1`)
}

// TestRedriveTellsWhatWasSent sends dead letters again to a mailbox that has room for one of them:
// the answer has this one, and why the second was not sent.
func TestRedriveTellsWhatWasSent(t *testing.T) {
	n := newMailNode(t)
	c, _ := open(t, n, Config{})
	mailed(t, n, wire.Mail{To: "agent:ops"}, wire.Mail{To: "agent:ops"}, wire.Mail{To: "agent:ops"})
	given, err := n.Mail.Lease(t.Context(), "ops", "", wire.LeaseMail{Max: 3})
	if err != nil {
		t.Fatal(err)
	}
	var all wire.SettleMail
	for _, d := range given {
		all.Nack = append(all.Nack, wire.NackMail{Lease: d.Lease, Final: true})
	}
	var s wire.MailboxSettings
	s.Mails = new(1)
	_, err = n.Mail.Settle(t.Context(), "ops", "", all)
	if _, made := n.Mail.SetMailbox(t.Context(), "full", s); err != nil || made != nil {
		t.Fatal(err, made)
	}
	redrive := func(doc string, status int) (out wire.RedrivenMail) {
		t.Helper()
		res, err := c.Post("http://node/v1/mailboxes/ops/redrive", jsonType, strings.NewReader(doc))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if err := json.NewDecoder(res.Body).Decode(&out); err != nil || res.StatusCode != status {
			t.Fatalf("%s: %d, %v", doc, res.StatusCode, err)
		}
		return out
	}
	out := redrive(`{"to":"agent:full"}`, 200)
	if len(out.Items) != 2 || !out.More || out.Items[0].Status != 202 || out.Items[0].Mail == nil || out.Items[1].Mail != nil {
		t.Fatalf("%+v", out)
	}
	if p := out.Items[1].Problem; p == nil || p.Code != wire.CodeFull || out.Items[1].Status != p.Status || p.Fix == "" || !strings.Contains(p.Detail, "dead letter 2 of agent:ops@here, after 1 were sent") {
		t.Errorf("%+v", p)
	}
	if out := redrive(`{"to":"agent:full","seqs":[1,2,3]}`, 200); len(out.Items) != 2 || out.More || out.Items[0].Status != 409 || out.Items[1].Problem.Code != wire.CodeFull {
		t.Errorf("by number: %+v", out)
	}
	redrive(`{"to":"agent:full"}`, problem(wire.CodeFull, "").Status) // nothing was sent
}

// TestBadMail checks that an invalid mail is refused as an invalid task is, and that nothing
// of it is kept.
func TestBadMail(t *testing.T) {
	n := newMailNode(t)
	const one = `{"to":"agent:ops"}`
	many := func(count int, sep string) string { return strings.Repeat(one+sep, count-1) + one }
	for _, tt := range []struct {
		name, target, contentType, body string
		headers                         []string
		status                          int
		detail                          string
	}{
		{"a stream without a box", "/v1/mail", "text/plain", "hello", nil, 422, "no to in the query"},
		{"no document", "/v1/mail", jsonType, "", nil, 400, "object is expected"},
		{"fields in the query", "/v1/mail?to=agent:ops", jsonType, one, nil, 422, "move the query"},
		{"an unknown field", "/v1/mail", jsonType, `{"to":"agent:ops","prio":1}`, nil, 400, `read the mail: unknown field "prio"`},
		{"a field twice", "/v1/mail", jsonType, `{"to":"agent:ops","to":"agent:ops"}`, nil, 400, "twice"},
		{"a wrong type", "/v1/mail", jsonType, `{"to":"agent:ops","hops":"1"}`, nil, 400, `field "hops" cannot be a string`},
		{"a number as a time", "/v1/mail", jsonType, `{"to":"agent:ops","ttl":7}`, nil, 400, `field "ttl" cannot be a number`},
		{"two bodies", "/v1/mail", jsonType, `{"to":"agent:ops","text":"x","body":"AA=="}`, nil, 422, "a mail has one body"},
		{"no base64", "/v1/mail", jsonType, `{"to":"agent:ops","body":"?"}`, nil, 400, "base64"},
		{"nobody", "/v1/mail", jsonType, `{"text":"x"}`, nil, 422, ""},
		{"a node", "/v1/mail", jsonType, `{"to":"laptop"}`, nil, 422, "agent:NAME@NODE"},
		{"an unknown class", "/v1/mail", jsonType, `{"to":"agent:ops","class":"urgent"}`, nil, 422, "urgent"},
		{"too large inside", "/v1/mail", jsonType, `{"to":"agent:ops","text":"` + strings.Repeat("x", 256<<10+1) + `"}`, nil, 413, "262144"},
		{"too large", "/v1/mail", jsonType, `{"to":"agent:ops","text":"` + strings.Repeat("x", 2<<20) + `"}`, nil, 413, "larger than"},
		{"keys that differ", "/v1/mail", jsonType, `{"to":"agent:ops","dedupe":"a"}`, []string{"Idempotency-Key", "b"}, 422, "field dedupe differ"},
		{"two keys", "/v1/mail", jsonType, one, []string{"Idempotency-Key", "a", "Idempotency-Key", "b"}, 422, "more than one"},
		{"a bad trace", "/v1/mail", jsonType, `{"to":"agent:ops","traceparent":"x"}`, nil, 422, "trace"},
		{"a batch with one key", "/v1/mail/batch", jsonType, "[" + one + "]", []string{"Idempotency-Key", "a"}, 422, "give each mail its own dedupe"},
		{"a batch of another type", "/v1/mail/batch", "text/csv", one, nil, 415, "x-ndjson"},
		{"a batch that is no array", "/v1/mail/batch", jsonType, one, nil, 400, "array is expected"},
		{"an empty batch", "/v1/mail/batch", jsonType, "[]", nil, 422, "empty"},
		{"513 mails", "/v1/mail/batch", jsonType, "[" + many(513, ",") + "]", nil, 413, "more than 512 mails"},
		{"513 lines", "/v1/mail/batch", "application/x-ndjson", many(513, "\n"), nil, 413, "more than 512 mails"},
		{"11 MB of mails", "/v1/mail/batch", jsonType, "[" + strings.Repeat(" ", 11<<20) + one + "]", nil, 413, "larger than"},
		{"a lease of another type", "/v1/mailboxes/ops/lease", "text/xml", "<max/>", nil, 415, "text/xml"},
		{"a lease with an unknown field", "/v1/mailboxes/ops/lease", jsonType, `{"count":1}`, nil, 422, "count"},
		{"a settlement of 513", "/v1/mailboxes/ops/settle", jsonType, `{"ack":["1.1.1"` + strings.Repeat(`,"1.1.1"`, 512) + `]}`, nil, 422, "body.ack"},
		{"a settlement of 2 MB", "/v1/mailboxes/ops/settle", jsonType, `{"ack":["` + strings.Repeat("1", 2<<20) + `"]}`, nil, 413, "larger than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res, body := ask(t, n, "POST", tt.target, tt.contentType, tt.body, tt.headers...)
			p := problemOfBody(t, res, body)
			if p.Status != tt.status || !strings.Contains(p.Detail, tt.detail) || len(p.Detail) > 2000 {
				t.Errorf("%d %.300s, want %d with %q", p.Status, p.Detail, tt.status, tt.detail)
			}
			if !strings.Contains(tt.target, "ops") && strings.Contains(p.Fix, "kind in the query") {
				t.Errorf("a mail cannot be sent so: %s", p.Fix)
			}
		})
	}
	if b := boxed(t, n, "ops"); b.Waiting != 0 || b.Next != 1 {
		t.Errorf("%d mails were kept, the next has the number %d", b.Waiting, b.Next)
	}
}

// TestHeadersOfAMail checks the fields of a mail that may be set in headers.
func TestHeadersOfAMail(t *testing.T) {
	const trace, other = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b7-01"
	n := newMailNode(t)
	for _, tt := range []struct{ name, more, key, trace, want string }{ // want "": a new trace
		{"both", "", "k1", trace, trace},
		{"the same key in the document", `,"dedupe":"k2"`, "k2", "", ""},
		{"the document's trace wins", `,"traceparent":"` + trace + `"`, "k3", other, trace},
		{"a trace that is not valid", "", "k4", "x", ""},
	} {
		var ids []string
		for range 2 {
			res, body := ask(t, n, "POST", "/v1/mail", jsonType, `{"to":"agent:ops"`+tt.more+`}`, "Idempotency-Key", tt.key, "Traceparent", tt.trace)
			s := decoded[wire.SentMail](t, res, body, 202)
			if ids = append(ids, s.ID); s.Known != (len(ids) == 2) || ids[0] != s.ID {
				t.Errorf("%s: %+v, then %s", tt.name, s, ids[0])
			}
		}
		if m, err := n.Mail.Mail(t.Context(), ids[0]); err != nil || m.Trace != tt.want && (tt.want != "" || !proto.ValidTraceparent([]byte(m.Trace))) {
			t.Errorf("%s: trace %q, %v", tt.name, m.Trace, err)
		}
	}
}

// TestMailBatch checks that each mail of a batch has its own result, in order, in both forms.
func TestMailBatch(t *testing.T) {
	n := newMailNode(t)
	lines := []string{`{"to":"agent:ops","text":"1"}`, `{"to":"agent:none"}`, `{"to":"agent:ops","prio":1}`, `{"to":"agent:ops","class":"urgent"}`, `{"to":"agent:ops","to":"agent:ops"}`, `{"to":"agent:ops","text":"2"}`}
	for contentType, doc := range map[string]string{jsonType: "[" + strings.Join(lines, ",") + "]", ndjsonType: strings.Join(lines, "\n")} {
		res, body := ask(t, n, "POST", "/v1/mail/batch", contentType, doc)
		got := decoded[wire.MailBatch](t, res, body, 200)
		if got.Accepted != 2 || got.Failed != 4 || len(got.Items) != len(lines) {
			t.Fatalf("%s: %+v", contentType, got)
		}
		for i, status := range []int{202, 404, 400, 422, 400, 202} {
			if item := got.Items[i]; item.Status != status || (item.Mail == nil) != (item.Problem != nil) {
				t.Errorf("%s: mail %d: %+v", contentType, i, item)
			}
		}
		given, err := n.Mail.Lease(t.Context(), "ops", "", wire.LeaseMail{Max: 9})
		if err != nil || len(given) != 2 || string(given[0].Mail.Body) != "1" || string(given[1].Mail.Body) != "2" || given[1].Mail.ID != got.Items[5].Mail.ID {
			t.Errorf("%s: leased %+v, %v", contentType, given, err)
		}
	}
}

func FuzzDecodeMail(f *testing.F) {
	f.Add([]byte(`{"to":"agent:ceo@laptop","class":"high","key":"k","ttl":"1h","at":"2026-11-20T12:00:00Z","body":"AA==","labels":{"a":"b"},"hops":3}`))
	f.Add([]byte(`{"to":"topic:orders","subject":"eu.created","text":"\ud83d\ude00\u0000","relaxed":true}`))
	f.Add([]byte(`{"to":"agent:ceo","body":"AA\u003d="}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMail(b)
		if err != nil {
			if p, ok := errors.AsType[*wire.Problem](err); !ok || p.Status != 400 && p.Status != 422 {
				t.Fatalf("%v", err)
			}
			return
		}
		if !json.Valid(b) || m.TTL < 0 || m.Delay < 0 {
			t.Fatalf("accepted %q as %+v", b, m)
		}
		again, err := json.Marshal(m)
		if err != nil {
			return // a year that JSON cannot encode
		}
		back, err := decodeMail(again)
		if err != nil {
			t.Fatalf("%+v came back with %v", m, err)
		}
		if twice, err := json.Marshal(back); err != nil || string(twice) != string(again) {
			t.Fatalf("%s came back as %s, %v", again, twice, err)
		}
	})
}
