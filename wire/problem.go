package wire

import (
	"context"
	"errors"
	"net/http"
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
	CodeMoved       Code = "MOVED"              // 409
	CodeHeld        Code = "HELD"               // 409
	CodeTooLarge    Code = "TOO_LARGE"          // 413
	CodeType        Code = "UNSUPPORTED_TYPE"   // 415
	CodeInternal    Code = "INTERNAL"           // 500
	CodeBounced     Code = "BOUNCED"            // 502
	CodeDraining    Code = "DRAINING"           // 503
	CodeStarting    Code = "STARTING"           // 503
	CodeUnhealthy   Code = "UNHEALTHY"          // 503
	CodeTimeout     Code = "TIMEOUT"            // 504
	CodeUnknown     Code = "UNKNOWN_OUTCOME"    // 504
	CodeFull        Code = "FULL"               // 507
)

// sentinels has the code of each error, the most specific first.
var sentinels = []struct {
	err  error
	code Code
}{
	{ErrKeyConflict, CodeKeyConflict},
	{ErrBounced, CodeBounced},
	{ErrFull, CodeFull},
	{ErrDraining, CodeDraining},
	{ErrStarting, CodeStarting},
	{ErrNoAdmin, CodeNoAdmin},
	{ErrMoved, CodeMoved},
	{ErrHeld, CodeHeld},
	{ErrDenied, CodeDenied},
	{ErrNotFound, CodeNotFound},
	{ErrRefused, CodeRefused},
	{ErrTooLarge, CodeTooLarge},
	{ErrInvalid, CodeInvalid},
	{context.DeadlineExceeded, CodeTimeout},
}

// CodeOf returns the code of err, CodeInternal if it is none that callers act on.
func CodeOf(err error) Code {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p.Code
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.code
		}
	}
	return CodeInternal
}

// A Problem is an error in the form of RFC 9457, with a code and a fix.
type Problem struct {
	Type   string  `json:"type" doc:"the code as a URN"`
	Title  string  `json:"title" doc:"the same for every problem of this code"`
	Status int     `json:"status" doc:"the HTTP status"`
	Detail string  `json:"detail" doc:"what failed, and why"`
	Code   Code    `json:"code" doc:"what kind of problem it is, for programs"`
	Fix    string  `json:"fix,omitempty" doc:"what to do about it"`
	Home   string  `json:"home,omitempty" doc:"of MOVED, HELD and DRAINING about a mailbox or topic: its node"`
	Errors []Fault `json:"errors,omitempty" doc:"the invalid fields"`
}

// A Fault is one invalid field.
type Fault struct {
	Where string `json:"where" doc:"like body.ttl or query.limit"`
	What  string `json:"what"`
}

// Error returns the detail.
func (p *Problem) Error() string { return p.Detail }

// Is makes errors.Is(p, ErrNotFound) and similar work on both sides of the socket.
func (p *Problem) Is(target error) bool {
	for _, s := range sentinels {
		if s.err == target {
			return s.code == p.Code
		}
	}
	return false
}

// NoRouteFix is the fix of a request for a route that the node does not have.
const NoRouteFix = "GET /openapi.json lists every route"

// Unrouted reports whether the node has no such route: it is older or newer than the
// client.
func (p *Problem) Unrouted() bool { return p.Code == CodeNotFound && p.Fix == NoRouteFix }

// GetStatus returns the HTTP status.
func (p *Problem) GetStatus() int { return p.Status }

// GetHeaders returns when to retry after a temporary problem.
func (p *Problem) GetHeaders() http.Header {
	if p.Status == http.StatusServiceUnavailable {
		return http.Header{"Retry-After": {"1"}}
	}
	return nil
}

// ProblemType is the content type of RFC 9457.
const ProblemType = "application/problem+json"

// ContentType returns ProblemType.
func (p *Problem) ContentType(string) string { return ProblemType }
