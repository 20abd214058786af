package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// codes has the status, title and usual fix of each code.
var codes = map[wire.Code]struct {
	status     int
	title, fix string
}{
	wire.CodeInvalid:     {422, "Invalid request", "correct what the detail names; GET /openapi.json describes every field"},
	wire.CodeDenied:      {403, "Not allowed", "see what the detail names: the peer may be blocked, or this node may lack a role"},
	wire.CodeNotFound:    {404, "Not found", "check the name: GET /v1/tasks, /v1/peers, /v1/handlers, /v1/queues, /v1/mailboxes and /v1/topics list what exists"},
	wire.CodeMethod:      {405, "Method not allowed", "use one of the methods in the Allow header"},
	wire.CodeKeyConflict: {409, "The idempotency key was used for another request", "repeat the first request unchanged, or use a new key"},
	wire.CodeRefused:     {409, "Not possible in this state", "see the detail; GET /v1/why/{task} names what a task waits for"},
	wire.CodeNoAdmin:     {409, "No admin is connected", "retry when one is, or do it on an admin: see the detail"},
	wire.CodeMoved:       {409, "The mailbox or topic has another home", "repeat the request; what was leased is delivered again at the new home"},
	wire.CodeHeld:        {409, "Another reader has it", "retry when that one has ended, or let the mailbox have more readers: mode shared or failover"},
	wire.CodeTooLarge:    {413, "Too large for one JSON document", "send the body as a stream: Content-Type application/octet-stream, with target and kind in the query"},
	wire.CodeType:        {415, "Unsupported content type", "send Content-Type: application/json"},
	wire.CodeInternal:    {500, "The node failed", "check the node's log; if it persists, restart the node: no task is lost"},
	wire.CodeBounced:     {502, "The mail was not delivered", "see the detail: the node of the box refused the mail, or its reader did"},
	wire.CodeDraining:    {503, "The node is stopping", "nothing was accepted: retry when the node has started"},
	wire.CodeStarting:    {503, "The node is starting", "nothing was accepted: retry; GET /readyz reports the progress"},
	wire.CodeUnhealthy:   {503, "The node is unhealthy", "check the node's log and GET /v1/status"},
	wire.CodeTimeout:     {504, "Timeout", "retry; what was stored is safe"},
	wire.CodeUnknown:     {504, "It is unknown whether it was stored", "retry with the same Idempotency-Key: it is stored once"},
	wire.CodeFull:        {507, "No space", "free disk space, let what waits be handled, or remove ended tasks: POST /v1/tasks/purge"},
}

// storeErrors has the codes of the errors of a store that the node passes on.
var storeErrors = []struct {
	err  error
	code wire.Code
}{
	{store.ErrFull, wire.CodeFull},
	{store.ErrUnknown, wire.CodeUnknown},
	{store.ErrFailed, wire.CodeUnhealthy},
}

// problem returns a problem with a code and a detail.
func problem(c wire.Code, format string, a ...any) *wire.Problem {
	k := codes[c]
	urn := "urn:balefire:problem:" + strings.ToLower(strings.ReplaceAll(string(c), "_", "-"))
	return &wire.Problem{Type: urn, Title: k.title, Status: k.status, Detail: fmt.Sprintf(format, a...), Code: c, Fix: k.fix}
}

// malformed returns the problem of a request that cannot be parsed.
func malformed(format string, a ...any) *wire.Problem {
	p := problem(wire.CodeInvalid, format, a...)
	p.Status = http.StatusBadRequest
	return p
}

// ProblemOf converts an error of the node to a problem.
func ProblemOf(err error) *wire.Problem {
	if p, ok := errors.AsType[*wire.Problem](err); ok {
		return p
	}
	if big, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return problem(wire.CodeTooLarge, "the document is larger than %d bytes", big.Limit)
	}
	if errors.Is(err, bodies.ErrTooLarge) {
		p := problem(wire.CodeTooLarge, "%v", err)
		p.Title, p.Fix = "Too large for this node", "split it, or raise the node's limit for a body"
		return p
	}
	if errors.Is(err, wire.ErrTooLarge) {
		p := problem(wire.CodeTooLarge, "%v", err)
		p.Title, p.Fix = "Too large for a mail", largeMailFix
		return p
	}
	for _, s := range storeErrors {
		if errors.Is(err, s.err) {
			return problem(s.code, "%v", err)
		}
	}
	code := wire.CodeOf(err)
	if code == wire.CodeInternal && errors.Is(err, io.ErrUnexpectedEOF) {
		return malformed("the body ended early, so nothing was accepted: %v", err)
	}
	p := problem(code, "%v", err)
	if e, ok := errors.AsType[*wire.HomeError](err); ok {
		p.Home = e.Home
	}
	return p
}

// writeProblem answers with the problem for err.
func writeProblem(w http.ResponseWriter, err error) {
	p := ProblemOf(err)
	for k, v := range p.GetHeaders() {
		w.Header()[k] = v
	}
	var doc bytes.Buffer
	if err := encode(&doc, p); err != nil {
		panic(fmt.Sprintf("api: encode a problem: %v", err))
	}
	w.Header().Set("Content-Type", wire.ProblemType)
	w.Header().Set("Content-Length", strconv.Itoa(doc.Len()))
	w.WriteHeader(p.Status)
	_, _ = doc.WriteTo(w) // a client that has disconnected does not need it
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
	code := wire.CodeInvalid
	for c, k := range codes {
		switch c {
		case wire.CodeRefused, wire.CodeNoAdmin, wire.CodeMoved, wire.CodeHeld, wire.CodeUnhealthy, wire.CodeStarting, wire.CodeUnknown: // others have their status, too
		default:
			if k.status == status {
				code = c
			}
		}
	}
	if status >= 500 && code == wire.CodeInvalid {
		code = wire.CodeInternal
	}
	p := problem(code, "%s", msg)
	if status > 0 {
		p.Status = status
	}
	for _, err := range errs {
		addFault(p, err)
	}
	return p
}

func addFault(p *wire.Problem, err error) {
	f := wire.Fault{}
	switch d, ok := errors.AsType[*huma.ErrorDetail](err); {
	case ok:
		f = wire.Fault{Where: d.Location, What: d.Message}
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
	validation.MsgExpectedMaximumNumber = "expected number <= %.0f" // all limits are whole numbers; %v writes 4.294967295e+09
}
