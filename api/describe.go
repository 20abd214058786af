package api

import (
	"context"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// newAPI starts the description of the window. Huma's own pages are left out:
// they load scripts from elsewhere.
func newAPI(mux *http.ServeMux) huma.API {
	cfg := huma.DefaultConfig("balefire", "1")
	cfg.Info.Description = "What a balefire node answers on its unix socket. Reading is GET and never changes anything. Errors are problem+json with a code and what to do."
	cfg.DocsPath, cfg.SchemasPath, cfg.OpenAPIPath, cfg.CreateHooks = "", "", "", nil
	cfg.RejectUnknownQueryParameters = true
	return humago.New(documents{mux}, cfg)
}

// documents is a mux whose handlers see sound documents only.
type documents struct{ *http.ServeMux }

// HandleFunc registers next behind the check of its body.
func (d documents) HandleFunc(pattern string, next func(http.ResponseWriter, *http.Request)) {
	d.ServeMux.HandleFunc(pattern, document(next))
}

// register adds a route of huma, whose errors become problems.
func register[I, O any](s *Server, op huma.Operation, f func(context.Context, *I) (*O, error)) {
	op.MaxBodyBytes, op.BodyReadTimeout = -1, -1 // the check of documents has read the body
	huma.Register(s.api, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := f(ctx, in)
		if err != nil {
			return nil, ProblemOf(err)
		}
		return out, nil
	})
}

// route adds a route that answers with a value.
func route[I, T any](s *Server, op huma.Operation, f func(context.Context, *I) (T, error)) {
	register(s, op, func(ctx context.Context, in *I) (*struct{ Body T }, error) {
		v, err := f(ctx, in)
		return &struct{ Body T }{v}, err
	})
}

// routeDone adds a route that answers with nothing but that it was done.
func routeDone[I any](s *Server, op huma.Operation, f func(context.Context, *I) error) {
	op.DefaultStatus = http.StatusNoContent
	register(s, op, func(ctx context.Context, in *I) (*struct{}, error) { return nil, f(ctx, in) })
}

// op describes a route.
func op(method, path, id, tag, summary string) huma.Operation {
	return huma.Operation{Method: method, Path: path, OperationID: id, Tags: []string{tag}, Summary: summary}
}

// content describes a body of one or several content types.
func content(schema *huma.Schema, types ...string) map[string]*huma.MediaType {
	out := map[string]*huma.MediaType{}
	for _, t := range types {
		out[t] = &huma.MediaType{Schema: schema}
	}
	return out
}

// schema describes T in the document.
func schema[T any](s *Server) *huma.Schema {
	return s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "")
}

// answers describes what a route outside huma answers with.
func answers[T any](s *Server, code, what string) map[string]*huma.Response {
	return map[string]*huma.Response{
		code:      {Description: what, Content: content(schema[T](s), jsonType)},
		"default": {Description: "Error", Content: content(schema[Problem](s), problemType)},
	}
}
