package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A Submit is a task in the form of the API. Durations are text like 90s or 24h.
type Submit struct {
	Target  string            `json:"target" minLength:"1" doc:"where it runs: a peer's name or id"`
	Kind    string            `json:"kind" minLength:"1" maxLength:"128" doc:"which handler"`
	Class   string            `json:"class,omitempty" enum:"critical,high,normal,low" doc:"default normal"`
	Mode    string            `json:"mode,omitempty" enum:"at_least_once,at_most_once" doc:"after a crash during a run: run it again, or never; default at_least_once"`
	TTL     string            `json:"ttl,omitempty" example:"24h" doc:"not started after this; default 168h, at most 720h"`
	Delay   string            `json:"delay,omitempty" example:"90s" doc:"not sent before; not together with at"`
	At      time.Time         `json:"at,omitzero" doc:"not sent before"`
	Key     string            `json:"key,omitempty" maxLength:"256" doc:"idempotency key, like the header; auto: derived from the content"`
	Order   string            `json:"order,omitempty" maxLength:"256" doc:"ordering key: tasks with the same key run one after the other"`
	OnDead  string            `json:"on_dead,omitempty" enum:"skip,block" doc:"after a dead task with the same ordering key; default skip"`
	Args    []string          `json:"args,omitempty" maxItems:"256" doc:"appended to the handler's arguments, if it allows that"`
	Body    []byte            `json:"body,omitempty" doc:"input of the handler; alternative to text"`
	Text    string            `json:"text,omitempty" doc:"the body as plain text"`
	Type    string            `json:"type,omitempty" maxLength:"255" doc:"content type of the body"`
	Labels  map[string]string `json:"labels,omitempty" doc:"free labels, at most 32"`
	Trace   string            `json:"traceparent,omitempty" doc:"W3C trace context, like the header of that name; without a valid one the task gets a new one with the sampled flag"`
	Retries uint32            `json:"retries,omitempty" doc:"attempts of the handler, up to what it allows; default its own"`
	Result  int64             `json:"max_result,omitempty" minimum:"0" doc:"largest result in bytes, up to the handler's limit; default that limit"`
	Require []string          `json:"require,omitempty" maxItems:"32" doc:"labels that the node must have; only for a queue"`
	Prefer  []string          `json:"prefer,omitempty" maxItems:"32" doc:"labels that the node should have: nodes with all of them are preferred"`
}

// submitFields are the JSON names of the fields of Submit.
var submitFields = func() map[string]bool {
	names := map[string]bool{}
	for f := range reflect.TypeFor[Submit]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names[name] = true
	}
	return names
}()

// SubmitOf converts a request of the Go API. A stream and fields that only a node sets are
// left out.
func SubmitOf(r wire.Request) Submit {
	s := Submit{
		Target: r.Target, Kind: r.Kind, Class: r.Class, Mode: r.Mode, At: r.At, Key: r.Key, Order: r.Order, OnDead: r.OnDead, Args: r.Args,
		Body: r.Body, Type: r.Type, Labels: r.Labels, Trace: r.Trace, Retries: r.Retries, Result: r.MaxResult,
		Require: r.Require, Prefer: r.Prefer,
	}
	if r.TTL != 0 {
		s.TTL = r.TTL.String()
	}
	if r.Delay != 0 {
		s.Delay = r.Delay.String()
	}
	return s
}

// decodeSubmit decodes one task strictly.
func decodeSubmit(b []byte) (wire.Request, error) {
	w := scanner{b: b, noted: "body"}
	if err := w.document(func(name string) bool { return submitFields[name] }); err != nil {
		return wire.Request{}, malformed("read the task: %v", err)
	}
	var s Submit
	rest, body := splitBody(b, w.from, w.to)
	if err := json.Unmarshal(rest, &s); err != nil {
		return wire.Request{}, malformed("read the task: %s", plainJSONError(err))
	}
	if body != nil {
		s.Body = body
	}
	return s.request()
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
		return fmt.Sprintf("field %q cannot be a %s", e.Field, e.Value)
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// request converts s to a request of the node. Checks that only the node can make, like the
// target's, are left to it.
func (s *Submit) request() (wire.Request, error) {
	r := wire.Request{
		Target: s.Target, Kind: s.Kind, At: s.At, Key: s.Key, Order: s.Order, OnDead: s.OnDead, Args: s.Args,
		Body: s.Body, Type: s.Type, Labels: s.Labels, Trace: s.Trace, Bounds: wire.Bounds{Retries: s.Retries, MaxResult: s.Result},
		Affinity: wire.Affinity{Require: s.Require, Prefer: s.Prefer},
	}
	switch {
	case s.Target == "":
		return r, problem(CodeInvalid, "no target: give a peer")
	case s.Kind == "":
		return r, problem(CodeInvalid, "no kind: give a handler of %.60s", s.Target)
	case s.Text != "" && len(s.Body) > 0:
		return r, problem(CodeInvalid, "body and text are both given: a task has one body")
	case s.Text != "":
		r.Body = []byte(s.Text)
		if r.Type == "" {
			r.Type = "text/plain; charset=utf-8"
		}
	}
	class, err := proto.ParseClass(s.Class)
	if err != nil {
		return r, problem(CodeInvalid, "class: %v", err)
	}
	mode, err := proto.ParseMode(s.Mode)
	if err != nil {
		return r, problem(CodeInvalid, "mode: %v", err)
	}
	r.Class, r.Mode = class.Name(), mode.Name()
	if r.TTL, err = duration("ttl", s.TTL); err != nil {
		return r, err
	}
	r.Delay, err = duration("delay", s.Delay)
	return r, err
}

func duration(field, s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, problem(CodeInvalid, "%s %.40q: it must be a positive duration like 90s, 30m or 24h", field, s)
	}
	return d, nil
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
		return wire.Request{}, problem(CodeInvalid, "a JSON task has all its fields in the document: move the query parameters %.80q there", r.URL.RawQuery)
	}
	b, err := readBody(w, r, s.cfg.maxDocument())
	if err != nil {
		return wire.Request{}, err
	}
	req, err := decodeSubmit(b)
	if err == nil && int64(len(req.Body)) > s.cfg.Payload {
		err = problem(CodeTooLarge, "a body of %d bytes inside JSON, the limit is %d", len(req.Body), s.cfg.Payload)
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
		return wire.Request{}, problem(CodeInvalid, "no target in the query. A task in JSON needs the header Content-Type: application/json; with any other type the content is the task's body, and target and kind are in the query")
	}
	s, err := submitOfQuery(q)
	if err != nil {
		return wire.Request{}, err
	}
	if s.Type == "" {
		s.Type = r.Header.Get("Content-Type")
	}
	req, err := s.request()
	req.Stream = r.Body
	return req, err
}

// textFields are the plain text fields of a task by their names.
func (s *Submit) textFields() map[string]*string {
	return map[string]*string{
		"target": &s.Target, "kind": &s.Kind, "class": &s.Class, "mode": &s.Mode, "ttl": &s.TTL, "delay": &s.Delay, "key": &s.Key,
		"order": &s.Order, "on_dead": &s.OnDead, "type": &s.Type, "traceparent": &s.Trace,
	}
}

func submitOfQuery(q url.Values) (s Submit, err error) {
	words := s.textFields()
	for name, vs := range q {
		field, plain := words[name]
		switch {
		case plain && len(vs) == 1:
			*field = vs[0]
		case name == "arg":
			s.Args = vs
		case name == "require":
			s.Require = vs
		case name == "prefer":
			s.Prefer = vs
		case name == "label":
			s.Labels, err = labels(vs)
		case name == "retries" && len(vs) == 1:
			var n uint64
			n, err = strconv.ParseUint(vs[0], 10, 32)
			s.Retries = uint32(n)
		case name == "max_result" && len(vs) == 1:
			s.Result, err = strconv.ParseInt(vs[0], 10, 64)
		case name == "at" && len(vs) == 1:
			s.At, err = time.Parse(time.RFC3339, vs[0])
		case plain || name == "retries" || name == "max_result" || name == "at":
			err = errors.New("given twice")
		default:
			err = errors.New("unknown query parameter")
		}
		if err != nil {
			return s, problem(CodeInvalid, "%.40s: %v", name, err)
		}
	}
	return s, nil
}

func labels(vs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, l := range vs {
		k, v, ok := strings.Cut(l, "=")
		if _, twice := out[k]; !ok || k == "" || twice {
			return nil, fmt.Errorf("%.60q: it must be name=value, each name once", l)
		}
		out[k] = v
	}
	return out, nil
}

// Query encodes s as the query of a streamed submit: all fields except the body.
func (s Submit) Query() url.Values {
	q := url.Values{}
	for name, v := range s.textFields() {
		if *v != "" {
			q.Set(name, *v)
		}
	}
	if !s.At.IsZero() {
		q.Set("at", s.At.Format(time.RFC3339Nano))
	}
	if s.Retries > 0 {
		q.Set("retries", strconv.FormatUint(uint64(s.Retries), 10))
	}
	if s.Result > 0 {
		q.Set("max_result", strconv.FormatInt(s.Result, 10))
	}
	for _, a := range s.Args {
		q.Add("arg", a)
	}
	for _, l := range s.Require {
		q.Add("require", l)
	}
	for _, l := range s.Prefer {
		q.Add("prefer", l)
	}
	for k, v := range s.Labels {
		q.Add("label", k+"="+v)
	}
	return q
}

// headers reads the fields that can be given as headers.
func headers(r *wire.Request, h http.Header) error {
	key := h.Get("Idempotency-Key")
	if unquoted, err := strconv.Unquote(key); err == nil && strings.HasPrefix(key, `"`) {
		key = unquoted
	}
	switch {
	case len(h.Values("Idempotency-Key")) > 1:
		return problem(CodeInvalid, "more than one Idempotency-Key")
	case key != "" && r.Key != "" && key != r.Key:
		return problem(CodeInvalid, "the header Idempotency-Key and the field key differ")
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
