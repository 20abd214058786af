package api

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	_ "embed"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/balefire/balefire/wire"
)

// description is the OpenAPI document, compressed. TestOpenAPI makes it of the routes.
//
//go:embed openapi.json.gz
var description []byte

// openAPI answers with the description, and unpacks it for a client that cannot.
func (s *Server) openAPI(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/vnd.oai.openapi+json;version=3.1")
	w.Header().Set("Vary", "Accept-Encoding")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(description) // a client that has disconnected does not need it
		return
	}
	if text, err := gzip.NewReader(bytes.NewReader(description)); err == nil { // it is one: TestOpenAPI
		_, _ = io.Copy(w, text)
	}
}

// newAPI returns the huma API of the server. Huma's own documentation pages are left out:
// they load scripts from other hosts.
func newAPI(mux *http.ServeMux) huma.API {
	cfg := huma.DefaultConfig("balefire", "1")
	cfg.Info.Description = "The API of a balefire node on its unix socket. GET requests never change anything. Errors are problem+json with a code and a fix."
	cfg.DocsPath, cfg.SchemasPath, cfg.OpenAPIPath, cfg.CreateHooks = "", "", "", nil
	cfg.Servers = []*huma.Server{{URL: "http://node", Description: "The node's unix socket, for example curl --unix-socket \"$SOCKET\"; balefire-node config path prints its path. The host name is ignored."}}
	cfg.Info.Description += " Times are RFC 3339. Durations in settings are text like 90s, 1h30m or 7d; measured durations are numbers of seconds in fields that end in _seconds. Sizes are in bytes. An absent field is unknown or does not apply. " +
		"On the same socket /debug/pprof/ has the profiles of net/http/pprof: index, profile, heap, goroutine, trace and others."
	return humago.New(strictMux{mux}, cfg)
}

// strictMux is a mux whose handlers see only valid documents.
type strictMux struct{ *http.ServeMux }

// HandleFunc registers next with a check of the request body.
func (d strictMux) HandleFunc(pattern string, next func(http.ResponseWriter, *http.Request)) {
	d.ServeMux.HandleFunc(pattern, checkDocument(next))
}

// register adds a huma route whose errors become problems.
func register[I, O any](s *Server, op huma.Operation, f func(context.Context, *I) (*O, error)) {
	handle(s, op, reflect.TypeFor[I](), func(ctx context.Context, in any) (*O, error) { return f(ctx, in.(*I)) })
}

// handle is register with a function that gets a pointer to a value of type in.
func handle[O any](s *Server, op huma.Operation, in reflect.Type, f func(context.Context, any) (*O, error)) {
	if op.Method != http.MethodGet && !notAudited[op.OperationID] {
		action := actions[op.OperationID]
		if action == "" {
			panic("api: " + op.OperationID + " has no name in the audit log") // the routes are the same in every program
		}
		op.Middlewares = append(op.Middlewares, withPath)
		f = audited(s, action, f)
	}
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{} // huma adds to it below
	}
	doc := op
	decoder := newInput(s.api.OpenAPI().Components.Schemas, &doc, in)
	op.Hidden = true // huma does not know the input
	huma.Register(s.api, op, func(ctx context.Context, q *question) (*O, error) {
		v, err := decoder.read(q.c)
		if err != nil {
			return nil, ProblemOf(err)
		}
		out, err := f(ctx, v)
		if err != nil {
			return nil, ProblemOf(err)
		}
		return out, nil
	})
	s.api.OpenAPI().AddOperation(&doc)
}

// An answer is a response with a body of any type. One type for all routes keeps the program
// small: huma compiles a route again for each pair of types.
type answer struct{ Body any }

// route adds a route with a response value.
func route[I, T any](s *Server, op huma.Operation, f func(context.Context, *I) (T, error)) {
	s.describe(&op, reflect.TypeFor[T]())
	register(s, op, func(ctx context.Context, in *I) (*answer, error) {
		v, err := f(ctx, in)
		return &answer{v}, err
	})
}

// describe puts the type of the body of a response into the OpenAPI document.
func (s *Server) describe(op *huma.Operation, body reflect.Type) {
	schema := s.api.OpenAPI().Components.Schemas.Schema(body, true, op.OperationID+"Response")
	status := strconv.Itoa(cmp.Or(op.DefaultStatus, http.StatusOK))
	op.Responses = map[string]*huma.Response{status: {Content: map[string]*huma.MediaType{"application/json": {Schema: schema}}}}
}

// routeNoContent adds a route without a response body.
func routeNoContent[I any](s *Server, op huma.Operation, f func(context.Context, *I) error) {
	op.DefaultStatus = http.StatusNoContent
	register(s, op, func(ctx context.Context, in *I) (*struct{}, error) { return nil, f(ctx, in) })
}

// orZero returns the document of a request, or the zero value without one.
func orZero[T any](doc *T) (v T) {
	if doc != nil {
		v = *doc
	}
	return v
}

// op describes a route.
func op(method, path, id, tag, summary string) huma.Operation {
	return huma.Operation{Method: method, Path: path, OperationID: id, Tags: []string{tag}, Summary: summary}
}

// content describes a body with one or more content types.
func content(schema *huma.Schema, types ...string) map[string]*huma.MediaType {
	out := map[string]*huma.MediaType{}
	for _, t := range types {
		out[t] = &huma.MediaType{Schema: schema}
	}
	return out
}

// schema returns the schema of T.
func schema[T any](s *Server) *huma.Schema {
	return s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")
}

// answers describes a response of a route outside huma.
func answers[T any](s *Server, code, what string) map[string]*huma.Response {
	return map[string]*huma.Response{
		code:      {Description: what, Content: content(schema[T](s), jsonType)},
		"default": {Description: "Error", Content: content(schema[wire.Problem](s), wire.ProblemType)},
	}
}
