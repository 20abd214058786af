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

// An answer is what huma writes for a value.
type answer[T any] struct {
	Status   int
	Location string `header:"Location"`
	Body     T
}

// route adds a route that answers with a value.
func route[I, T any](s *Server, op huma.Operation, f func(context.Context, *I) (T, error)) {
	routeAnswer(s, op, func(ctx context.Context, in *I) (answer[T], error) {
		v, err := f(ctx, in)
		return answer[T]{Body: v}, err
	})
}

// routeAnswer adds a route that chooses its status.
func routeAnswer[I, T any](s *Server, op huma.Operation, f func(context.Context, *I) (answer[T], error)) {
	usual := op.DefaultStatus
	if usual == 0 {
		usual = http.StatusOK
	}
	huma.Register(s.api, bodied(op), func(ctx context.Context, in *I) (*answer[T], error) {
		out, err := f(ctx, in)
		if err != nil {
			return nil, ProblemOf(err)
		}
		if out.Status == 0 {
			out.Status = usual
		}
		return &out, nil
	})
}

// routeDone adds a route that answers with nothing but that it was done.
func routeDone[I any](s *Server, op huma.Operation, f func(context.Context, *I) error) {
	op.DefaultStatus = http.StatusNoContent
	huma.Register(s.api, bodied(op), func(ctx context.Context, in *I) (*struct{}, error) {
		if err := f(ctx, in); err != nil {
			return nil, ProblemOf(err)
		}
		return nil, nil
	})
}

// bodied takes huma's own limits off: the check before it has read the body.
func bodied(op huma.Operation) huma.Operation {
	op.MaxBodyBytes, op.BodyReadTimeout = -1, -1
	return op
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
