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

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/blob"
)

// A Code says what kind of problem it is, in a word that does not change.
type Code string

// The codes of problems.
const (
	CodeInvalid     Code = "INVALID"            // 400 it cannot be read, 422 it makes no sense
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

// codes tells of each code its status, its title and the usual next step.
var codes = map[Code]struct {
	status     int
	title, fix string
}{
	CodeInvalid:     {422, "The request makes no sense", "mend what the detail names; GET /openapi.json describes every field"},
	CodeDenied:      {403, "Not allowed here", "see what the detail names: the peer may be blocked, or this node may lack a role"},
	CodeNotFound:    {404, "There is no such thing", "check the name: GET /v1/tasks, /v1/peers, /v1/handlers and /v1/queues list what there is"},
	CodeMethod:      {405, "Not with this method", "use one of the methods in the Allow header"},
	CodeKeyConflict: {409, "The idempotency key belongs to another request", "repeat the first request unchanged, or use a new key"},
	CodeRefused:     {409, "Not in this state", "see the detail; GET /v1/why/{task} names what a task waits for"},
	CodeNoAdmin:     {409, "No admin is connected", "ask again when one is, or do it on an admin: see the detail"},
	CodeTooLarge:    {413, "Too large for one JSON document", "send the body as a stream: Content-Type application/octet-stream, with target and kind in the query"},
	CodeType:        {415, "Not this content type", "send Content-Type: application/json"},
	CodeInternal:    {500, "The node failed to do it", "read the node's log; if it goes on, restart the node: no task is lost"},
	CodeDraining:    {503, "The node is stopping", "nothing was taken: send it again when the node has started"},
	CodeStarting:    {503, "The node is starting", "nothing was taken: try again; GET /readyz says how far it is"},
	CodeUnhealthy:   {503, "The node is not well", "read the node's log and GET /v1/status"},
	CodeTimeout:     {504, "It took too long", "ask again; what was stored is safe"},
	CodeUnknown:     {504, "Nobody knows whether it was stored", "repeat it with the same Idempotency-Key: it is stored once"},
	CodeFull:        {507, "There is no room for new work", "free disk space, let queued tasks be delivered, or remove ended ones: POST /v1/tasks/purge"},
}

// sentinels maps the node's errors to codes, the most telling first.
var sentinels = []struct {
	err  error
	code Code
}{
	{node.ErrKeyConflict, CodeKeyConflict},
	{node.ErrFull, CodeFull},
	{store.ErrFull, CodeFull},
	{node.ErrDraining, CodeDraining},
	{ErrStarting, CodeStarting},
	{store.ErrUnknown, CodeUnknown},
	{store.ErrFailed, CodeUnhealthy},
	{node.ErrNoAdmin, CodeNoAdmin},
	{node.ErrDenied, CodeDenied},
	{node.ErrNotFound, CodeNotFound},
	{node.ErrRefused, CodeRefused},
	{node.ErrInvalid, CodeInvalid},
	{context.DeadlineExceeded, CodeTimeout},
}

// ErrStarting means that the node still opens its store.
var ErrStarting = errors.New("the node is starting")

// A Problem is an error as RFC 9457 writes it, with a code and the next step.
type Problem struct {
	Type   string  `json:"type" doc:"the code as a URN"`
	Title  string  `json:"title" doc:"the same for every problem of this code"`
	Status int     `json:"status" doc:"the HTTP status"`
	Detail string  `json:"detail" doc:"what failed, and why"`
	Code   Code    `json:"code" doc:"what kind of problem it is, for programs"`
	Fix    string  `json:"fix,omitempty" doc:"what to do about it"`
	Errors []Fault `json:"errors,omitempty" doc:"the fields at fault"`
}

// A Fault is one field that is wrong.
type Fault struct {
	Where string `json:"where" doc:"like body.ttl or query.limit"`
	What  string `json:"what"`
}

// problem makes a problem of a code with a detail.
func problem(c Code, format string, a ...any) *Problem {
	k := codes[c]
	urn := "urn:balefire:problem:" + strings.ToLower(strings.ReplaceAll(string(c), "_", "-"))
	return &Problem{Type: urn, Title: k.title, Status: k.status, Detail: fmt.Sprintf(format, a...), Code: c, Fix: k.fix}
}

// malformed is a request that is not even well formed.
func malformed(format string, a ...any) *Problem {
	p := problem(CodeInvalid, format, a...)
	p.Status = http.StatusBadRequest
	return p
}

// ProblemOf turns an error of the node into a problem.
func ProblemOf(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if big, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return problem(CodeTooLarge, "the document is larger than %d bytes", big.Limit)
	}
	if errors.Is(err, blob.ErrTooLarge) {
		p := problem(CodeTooLarge, "%v", err)
		p.Title, p.Fix = "Too large for this node", "split it, or raise the node's limit of one body"
		return p
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return problem(s.code, "%v", err)
		}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return malformed("the body broke off, so nothing was taken: %v", err)
	}
	return problem(CodeInternal, "%v", err)
}

// Error returns the detail.
func (p *Problem) Error() string { return p.Detail }

// Is makes errors.Is(p, node.ErrNotFound) and the like true on both sides of the
// socket.
func (p *Problem) Is(target error) bool {
	for _, s := range sentinels {
		if s.err == target {
			return s.code == p.Code
		}
	}
	return false
}

// Unrouted reports whether the node has no such route: it is older, or newer, than
// who asked.
func (p *Problem) Unrouted() bool { return p.Code == CodeNotFound && p.Fix == noRouteFix }

// GetStatus returns the HTTP status.
func (p *Problem) GetStatus() int { return p.Status }

// GetHeaders says when to come back after what passes by itself.
func (p *Problem) GetHeaders() http.Header {
	if p.Status == http.StatusServiceUnavailable {
		return http.Header{"Retry-After": {"1"}}
	}
	return nil
}

// ContentType is that of RFC 9457.
func (p *Problem) ContentType(string) string { return problemType }

const problemType = "application/problem+json"

// writeProblem answers with the problem that err is.
func writeProblem(w http.ResponseWriter, err error) {
	p := ProblemOf(err)
	for k, v := range p.GetHeaders() {
		w.Header()[k] = v
	}
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	_ = encode(w, p) // a client that has gone does not miss it
}

// writeJSON answers with v.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = encode(w, v) // a client that has gone does not miss it
}

func encode(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// humaProblem is how huma tells of a request that does not fit its description.
// The values at fault are left out: they may be a payload.
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

// huma makes its errors, and reads the case of field names, by what variables of
// its package say; the window owns huma, so it sets them for the whole program.
func init() {
	huma.NewError = humaProblem
	huma.ValidateStrictCasing = true
}
