package api

import (
	"cmp"
	"mime"
	"net/http"
	"net/url"
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

var submitFields = fieldsOf[submit]()

func (s *submit) form() form { return form{"task", submitFields, s, &s.Body, &s.Type, &s.Text} }

// decodeSubmit decodes one task strictly. Whether its fields are valid is checked by the
// node.
func decodeSubmit(b []byte) (wire.Request, error) {
	var s submit
	if err := s.form().decode(b); err != nil {
		return wire.Request{}, err
	}
	return s.Request, nil
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
		err = headers(r.Header, "key", &req.Key, &req.Trace)
	}
	if err != nil {
		writeProblem(w, err)
		return
	}
	done, err := s.submitter.Submit(r.Context(), req)
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
	b, err := readForm(w, r, "task", s.cfg.maxDocument())
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

// headers reads the key, which is the field with this name, and the trace of a task or mail
// that can be given as headers.
func headers(h http.Header, field string, key, trace *string) error {
	given := h.Get("Idempotency-Key")
	if unquoted, err := strconv.Unquote(given); err == nil && strings.HasPrefix(given, `"`) {
		given = unquoted
	}
	switch {
	case len(h.Values("Idempotency-Key")) > 1:
		return problem(wire.CodeInvalid, "more than one Idempotency-Key")
	case given != "" && *key != "" && given != *key:
		return problem(wire.CodeInvalid, "the header Idempotency-Key and the field %s differ", field)
	case given != "":
		*key = given
	}
	if *trace == "" {
		*trace = h.Get("Traceparent")
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
