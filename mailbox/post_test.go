package mailbox

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A mailbox whose mail is posted acknowledges it by the answer.
func TestPost(t *testing.T) {
	for _, tt := range []struct {
		name    string
		status  int
		answer  string
		outcome handler.Outcome
	}{
		{"200", 200, "rich", handler.Success},
		{"204", 204, "", handler.Success},
		{"a redirect", 301, "", handler.Retry},
		{"400", 400, "bad order", handler.Fail},
		{"404", 404, "", handler.Fail},
		{"429", 429, "later", handler.Retry},
		{"500", 500, "", handler.Retry},
		{"503", 503, "", handler.Retry},
		{"a large answer", 200, strings.Repeat("x", proto.MaxInlineBody+1), handler.Fail},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got *http.Request
			var body []byte
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got = r
				body, _ = io.ReadAll(r.Body)
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.answer)
			}))
			defer server.Close()
			h, err := newPost(wire.MailHandler{Post: server.URL + "/in", Forward: "agent:next"})
			if err != nil {
				t.Fatal(err)
			}
			res := handler.Call(t.Context(), h, &handler.Run{Body: strings.NewReader("the body"), BodySize: 8, Env: map[string]string{
				"BALEFIRE_MAIL_ID": "7", "BALEFIRE_CONTENT_TYPE": "text/plain", "TRACEPARENT": "00-1", "BALEFIRE_KEY": "",
			}})
			if res.Outcome != tt.outcome || res.Outcome == handler.Success && string(res.Output) != tt.answer || res.Outcome != handler.Success && res.Reason == "" {
				t.Errorf("%+v, want %v", res, tt.outcome)
			}
			if len(tt.answer) < 100 && res.Outcome != handler.Success && res.Stderr != tt.answer {
				t.Errorf("it keeps %q", res.Stderr)
			}
			if got.Method != "POST" || got.URL.Path != "/in" || string(body) != "the body" || got.Header.Get("Balefire-Mail-Id") != "7" || got.Header.Get("Content-Type") != "text/plain" ||
				got.Header.Get("Traceparent") != "00-1" || got.Header.Values("Balefire-Key") != nil {
				t.Errorf("%+v: %q", got, body)
			}
		})
	}
}

// Without a box to forward to, the status of an answer decides, whatever becomes of its body.
func TestPostWhoseAnswerNobodyReads(t *testing.T) {
	for _, tt := range []struct {
		name     string
		size     int // of the answer
		declared int
		forward  string
		outcome  handler.Outcome
	}{
		{"a large answer", proto.MaxInlineBody + 1, proto.MaxInlineBody + 1, "", handler.Success},
		{"an answer that breaks off", 10, 20, "", handler.Success},
		{"an answer that is forwarded and breaks off", 10, 20, "agent:next", handler.Retry},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", strconv.Itoa(tt.declared))
				_, _ = io.WriteString(w, strings.Repeat("x", tt.size))
			}))
			defer server.Close()
			h, err := newPost(wire.MailHandler{Post: server.URL, Forward: tt.forward})
			if err != nil {
				t.Fatal(err)
			}
			if res := handler.Call(t.Context(), h, &handler.Run{}); res.Outcome != tt.outcome || len(res.Output) > 0 {
				t.Errorf("%+v, want %v", res, tt.outcome)
			}
		})
	}
}

// A URL without a server spends nothing; one that does not answer in time is an attempt.
func TestPostWithoutAnAnswer(t *testing.T) {
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-ended }))
	h, err := newPost(wire.MailHandler{Post: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(handler.ErrTimeout)
	if res := handler.Call(ctx, h, &handler.Run{}); res.Outcome != handler.Timeout {
		t.Errorf("%+v", res)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	cancel(handler.ErrStopping)
	if res := handler.Call(ctx, h, &handler.Run{}); res.Outcome != handler.Cancelled {
		t.Errorf("%+v", res)
	}
	close(ended)
	server.Close()
	if res := handler.Call(t.Context(), h, &handler.Run{}); res.Outcome != handler.Unready || !strings.Contains(res.Reason, "refused") {
		t.Errorf("%+v", res)
	}
}

// The reason that a sender is told has nothing of the URL and nothing that its server wrote.
func TestReasonOfAPostHasNoSecret(t *testing.T) {
	for _, status := range []int{0, 200, 301, 404, 500} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if status == 0 {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, strings.Repeat("secret", proto.MaxInlineBody))
		}))
		h, err := newPost(wire.MailHandler{Post: server.URL + "/secret?key=secret", Forward: "agent:next"})
		if err != nil {
			t.Fatal(err)
		}
		for _, cause := range []error{nil, handler.ErrTimeout} {
			ctx, cancel := context.WithCancelCause(t.Context())
			if cause != nil {
				cancel(cause)
			}
			res := handler.Call(ctx, h, &handler.Run{})
			reason, _, _ := strings.Cut(failed(box.Nack, res).Reason, "\n")
			if !strings.HasPrefix(reason, "POST: ") || strings.Contains(reason, "secret") || strings.Contains(reason, server.URL) {
				t.Errorf("%d: %+v is told as %q", status, res, reason)
			}
			cancel(nil)
		}
		server.Close()
		if res := handler.Call(t.Context(), h, &handler.Run{}); res.Outcome != handler.Unready || strings.Contains(res.Reason, "secret") {
			t.Errorf("without a server: %+v", res)
		}
	}
}
