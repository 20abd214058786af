package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/blob"
	"github.com/balefire/balefire/wire"
)

// A Code is the kind of a problem, as a stable word.
type Code string

// The codes of problems.
const (
	CodeInvalid     Code = "INVALID"            // 400 if it cannot be parsed, 422 if it is invalid
	CodeDenied      Code = "DENIED"             // 403
	CodeNotFound    Code = "NOT_FOUND"          // 404
	CodeMethod      Code = "METHOD_NOT_ALLOWED" // 405
	CodeKeyConflict Code = "KEY_CONFLICT"       // 409
	CodeRefused     Code = "REFUSED"            // 409
	CodeNoAdmin     Code = "NO_ADMIN"           // 409
	CodeTooLarge    Code = "TOO_LARGE"          // 413
	CodeType        Code = "UNSUPPORTED_TYPE"   // 415
	CodeInternal    Code = "INTERNAL"           // 500
	CodeDraining    Code = "DRAINING"           // 503
	CodeStarting    Code = "STARTING"           // 503
	CodeUnhealthy   Code = "UNHEALTHY"          // 503
	CodeTimeout     Code = "TIMEOUT"            // 504
	CodeUnknown     Code = "UNKNOWN_OUTCOME"    // 504
	CodeFull        Code = "FULL"               // 507
)

// codes has the status, title and usual fix of each code.
var codes = map[Code]struct {
	status     int
	title, fix string
}{
	CodeInvalid:     {422, "Invalid request", "correct what the detail names; GET /openapi.json describes every field"},
	CodeDenied:      {403, "Not allowed", "see what the detail names: the peer may be blocked, or this node may lack a role"},
	CodeNotFound:    {404, "Not found", "check the name: GET /v1/tasks, /v1/peers, /v1/handlers and /v1/queues list what exists"},
	CodeMethod:      {405, "Method not allowed", "use one of the methods in the Allow header"},
	CodeKeyConflict: {409, "The idempotency key was used for another request", "repeat the first request unchanged, or use a new key"},
	CodeRefused:     {409, "Not possible in this state", "see the detail; GET /v1/why/{task} names what a task waits for"},
	CodeNoAdmin:     {409, "No admin is connected", "retry when one is, or do it on an admin: see the detail"},
	CodeTooLarge:    {413, "Too large for one JSON document", "send the body as a stream: Content-Type application/octet-stream, with target and kind in the query"},
	CodeType:        {415, "Unsupported content type", "send Content-Type: application/json"},
	CodeInternal:    {500, "The node failed", "check the node's log; if it persists, restart the node: no task is lost"},
	CodeDraining:    {503, "The node is stopping", "nothing was accepted: retry when the node has started"},
	CodeStarting:    {503, "The node is starting", "nothing was accepted: retry; GET /readyz reports the progress"},
	CodeUnhealthy:   {503, "The node is unhealthy", "check the node's log and GET /v1/status"},
	CodeTimeout:     {504, "Timeout", "retry; what was stored is safe"},
	CodeUnknown:     {504, "It is unknown whether the task was stored", "retry with the same Idempotency-Key: the task is stored once"},
	CodeFull:        {507, "No space for new tasks", "free disk space, let queued tasks be delivered, or remove ended ones: POST /v1/tasks/purge"},
}

// sentinels maps the node's errors to codes, the most specific first.
var sentinels = []struct {
	err  error
	code Code
}{
	{wire.ErrKeyConflict, CodeKeyConflict},
	{wire.ErrFull, CodeFull},
	{store.ErrFull, CodeFull},
	{wire.ErrDraining, CodeDraining},
	{ErrStarting, CodeStarting},
	{store.ErrUnknown, CodeUnknown},
	{store.ErrFailed, CodeUnhealthy},
	{wire.ErrNoAdmin, CodeNoAdmin},
	{wire.ErrDenied, CodeDenied},
	{wire.ErrNotFound, CodeNotFound},
	{wire.ErrRefused, CodeRefused},
	{wire.ErrInvalid, CodeInvalid},
	{context.DeadlineExceeded, CodeTimeout},
}

// ErrStarting means that the node is still opening its store.
var ErrStarting = errors.New("the node is starting")

// A Problem is an error in the form of RFC 9457, with a code and a fix.
type Problem struct {
	Type   string  `json:"type" doc:"the code as a URN"`
	Title  string  `json:"title" doc:"the same for every problem of this code"`
	Status int     `json:"status" doc:"the HTTP status"`
	Detail string  `json:"detail" doc:"what failed, and why"`
	Code   Code    `json:"code" doc:"what kind of problem it is, for programs"`
	Fix    string  `json:"fix,omitempty" doc:"what to do about it"`
	Errors []Fault `json:"errors,omitempty" doc:"the invalid fields"`
}

// A Fault is one invalid field.
type Fault struct {
	Where string `json:"where" doc:"like body.ttl or query.limit"`
	What  string `json:"what"`
}

// problem returns a problem with a code and a detail.
func problem(c Code, format string, a ...any) *Problem {
	k := codes[c]
	urn := "urn:balefire:problem:" + strings.ToLower(strings.ReplaceAll(string(c), "_", "-"))
	return &Problem{Type: urn, Title: k.title, Status: k.status, Detail: fmt.Sprintf(format, a...), Code: c, Fix: k.fix}
}

// malformed returns the problem of a request that cannot be parsed.
func malformed(format string, a ...any) *Problem {
	p := problem(CodeInvalid, format, a...)
	p.Status = http.StatusBadRequest
	return p
}

// ProblemOf converts an error of the node to a problem.
func ProblemOf(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if big, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return problem(CodeTooLarge, "the document is larger than %d bytes", big.Limit)
	}
	if errors.Is(err, blob.ErrTooLarge) {
		p := problem(CodeTooLarge, "%v", err)
		p.Title, p.Fix = "Too large for this node", "split it, or raise the node's limit for a body"
		return p
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return problem(s.code, "%v", err)
		}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return malformed("the body ended early, so nothing was accepted: %v", err)
	}
	return problem(CodeInternal, "%v", err)
}

// Error returns the detail.
func (p *Problem) Error() string { return p.Detail }

// Is makes errors.Is(p, node.ErrNotFound) and similar work on both sides of the socket.
func (p *Problem) Is(target error) bool {
	for _, s := range sentinels {
		if s.err == target {
			return s.code == p.Code
		}
	}
	return false
}

// Unrouted reports whether the node has no such route: it is older or newer than the
// client.
func (p *Problem) Unrouted() bool { return p.Code == CodeNotFound && p.Fix == noRouteFix }

// GetStatus returns the HTTP status.
func (p *Problem) GetStatus() int { return p.Status }

// GetHeaders returns when to retry after a temporary problem.
func (p *Problem) GetHeaders() http.Header {
	if p.Status == http.StatusServiceUnavailable {
		return http.Header{"Retry-After": {"1"}}
	}
	return nil
}

// ContentType returns the content type of RFC 9457.
func (p *Problem) ContentType(string) string { return problemType }

const problemType = "application/problem+json"

// writeProblem answers with the problem for err.
func writeProblem(w http.ResponseWriter, err error) {
	p := ProblemOf(err)
	for k, v := range p.GetHeaders() {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	_ = encode(w, p) // a client that has disconnected does not need it
}

// writeJSON answers with v.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = encode(w, v) // a client that has disconnected does not need it
}

func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// humaProblem converts huma's validation errors. The invalid values are left out: they may
// be part of a payload.
func humaProblem(status int, msg string, errs ...error) huma.StatusError {
	code := CodeInvalid
	for c, k := range codes {
		if k.status == status && c != CodeRefused && c != CodeNoAdmin && c != CodeUnhealthy && c != CodeStarting && c != CodeUnknown {
			code = c
		}
	}
	if status >= 500 && code == CodeInvalid {
		code = CodeInternal
	}
	p := problem(code, "%s", msg)
	if status > 0 {
		p.Status = status
	}
	for _, err := range errs {
		p.add(err)
	}
	return p
}

func (p *Problem) add(err error) {
	f := Fault{}
	switch d, ok := errors.AsType[*huma.ErrorDetail](err); {
	case ok:
		f = Fault{Where: d.Location, What: d.Message}
	case err != nil:
		f.What = err.Error()
	default:
		return
	}
	p.Errors = append(p.Errors, f)
	p.Detail += fmt.Sprintf("; %s: %s", f.Where, f.What)
}

// Package variables of huma control its errors and whether field names ignore case. Only
// this package uses huma, so it sets them for the whole program.
func init() {
	huma.NewError = humaProblem
	huma.ValidateStrictCasing = true
}
