package api

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/balefire/balefire/wire"
)

// A submit is a task in the form of the API.
type submit struct {
	wire.Request
	Text string `json:"text,omitempty" doc:"the body as plain text"`
}

// submitFields are the JSON names of the fields of a submit.
var submitFields = func() map[string]bool {
	names := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[submit]()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous && name != "-" {
			names[name] = true
		}
	}
	return names
}()

// decodeSubmit decodes one task strictly. Whether its fields are valid is checked by the
// node.
func decodeSubmit(b []byte) (wire.Request, error) {
	w := scanner{b: b, noted: "body"}
	if err := w.document(func(name string) bool { return submitFields[name] }); err != nil {
		return wire.Request{}, malformed("read the task: %v", err)
	}
	rest, body := splitBody(b, w.from, w.to)
	return unmarshalSubmit(rest, body)
}

// unmarshalSubmit decodes a task whose body may have been taken out of it.
func unmarshalSubmit(b, body []byte) (wire.Request, error) {
	var s submit
	switch err := json.Unmarshal(b, &s); {
	case errors.Is(err, wire.ErrInvalid):
		return wire.Request{}, ProblemOf(err)
	case err != nil:
		return wire.Request{}, malformed("read the task: %s", plainJSONError(err))
	}
	if body != nil {
		s.Body = body
	}
	if s.Text == "" {
		return s.Request, nil
	}
	if len(s.Body) > 0 {
		return wire.Request{}, problem(wire.CodeInvalid, "body and text are both given: a task has one body")
	}
	s.Body, s.Type = []byte(s.Text), cmp.Or(s.Type, "text/plain; charset=utf-8")
	return s.Request, nil
}

// splitBody decodes the body of a task, which is at from to to of b, and returns b without
// it. The body is most of b, and encoding/json would scan each byte of it four times. A
// value that is not plain base64 is left to encoding/json, which decodes it or reports the
// error: then rest is b and there is no body.
func splitBody(b []byte, from, to int) (rest, body []byte) {
	if from == to || b[from] != '"' {
		return b, nil
	}
	text := b[from+1 : to-1]
	if bytes.IndexByte(text, '\\') >= 0 {
		return b, nil
	}
	body = make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(body, text)
	if err != nil || base64.StdEncoding.EncodedLen(n) != len(text) { // it accepts line ends
		return b, nil
	}
	return slices.Concat(b[:from], []byte(`""`), b[to:]), body[:n]
}

// plainJSONError describes a decoding error without naming Go types.
func plainJSONError(err error) string {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
		text := fmt.Sprintf("field %q cannot be a %s", strings.TrimPrefix(e.Field, "Request."), e.Value)
		switch e.Type.Kind() {
		case reflect.Uint32:
			text += fmt.Sprintf(": it must be a whole number from 0 to %d", uint32(math.MaxUint32))
		case reflect.Int64:
			text += fmt.Sprintf(": it must be a whole number from 0 to %d", math.MaxInt64)
		}
		return text
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// duration parses a query parameter that is a duration.
func duration(field, s string) (time.Duration, error) {
	var d wire.Duration
	if err := d.UnmarshalText([]byte(s)); err != nil {
		return 0, problem(wire.CodeInvalid, "%s: %s", field, strings.TrimPrefix(err.Error(), wire.ErrInvalid.Error()+": "))
	}
	return time.Duration(d), nil
}

// submit accepts one task: as a JSON document, or with any other content type as its raw
// body of any size, with all other fields in the query.
func (s *Server) submit(w http.ResponseWriter, r *http.Request) {
	req, err := s.submitted(w, r)
	if err == nil {
		err = headers(&req, r.Header)
	}
	if err != nil {
		writeProblem(w, err)
		return
	}
	done, err := s.node.Submit(r.Context(), req)
	if err != nil {
		writeProblem(w, err)
		return
	}
	w.Header().Set("Location", "/v1/tasks/"+done.ID)
	writeJSON(w, http.StatusAccepted, done)
}

func (s *Server) submitted(w http.ResponseWriter, r *http.Request) (wire.Request, error) {
	if mediaType(r) != jsonType {
		return streamed(r)
	}
	if r.URL.RawQuery != "" {
		return wire.Request{}, problem(wire.CodeInvalid, "a JSON task has all its fields in the document: move the query parameters %.80q there", r.URL.RawQuery)
	}
	b, err := readBody(w, r, s.cfg.maxDocument())
	if err != nil {
		return wire.Request{}, err
	}
	req, err := decodeSubmit(b)
	if err == nil && int64(len(req.Body)) > s.cfg.Payload {
		err = problem(wire.CodeTooLarge, "a body of %d bytes inside JSON, the limit is %d", len(req.Body), s.cfg.Payload)
	}
	return req, err
}

// streamed parses the fields of a task from the query: its body is still to come.
func streamed(r *http.Request) (wire.Request, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return wire.Request{}, malformed("read the query: %v", err)
	}
	if q.Get("target") == "" {
		return wire.Request{}, problem(wire.CodeInvalid, "no target in the query. A task in JSON needs the header Content-Type: application/json; with any other type the content is the task's body, and target and kind are in the query")
	}
	req, err := wire.RequestOfQuery(q)
	req.Type, req.Stream = cmp.Or(req.Type, r.Header.Get("Content-Type")), r.Body
	return req, err
}

// headers reads the fields that can be given as headers.
func headers(r *wire.Request, h http.Header) error {
	key := h.Get("Idempotency-Key")
	if unquoted, err := strconv.Unquote(key); err == nil && strings.HasPrefix(key, `"`) {
		key = unquoted
	}
	switch {
	case len(h.Values("Idempotency-Key")) > 1:
		return problem(wire.CodeInvalid, "more than one Idempotency-Key")
	case key != "" && r.Key != "" && key != r.Key:
		return problem(wire.CodeInvalid, "the header Idempotency-Key and the field key differ")
	case key != "":
		r.Key = key
	}
	if r.Trace == "" {
		r.Trace = h.Get("Traceparent")
	}
	return nil
}

const jsonType = "application/json"

// mediaType returns the content type without its parameters, in lower case.
func mediaType(r *http.Request) string {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}
