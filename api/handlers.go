package api

import (
	"context"

	"github.com/balefire/balefire/wire"
)

func (s *Server) routeHandlers() {
	route(s, op("GET", "/v1/handlers", "listHandlers", "handlers", "List the handlers of this node"), func(context.Context, *struct{}) (wire.Page[wire.Handler], error) {
		return list(s.handlers.List()), nil
	})
	routeNoContent(s, op("POST", "/v1/handlers", "addHandler", "handlers", "Add or replace the handler of a kind"), func(ctx context.Context, in *struct{ Body wire.HandlerSpec }) error {
		return s.handlers.Add(ctx, in.Body)
	})
	type remove struct {
		Kind string `path:"kind" maxLength:"128"`
	}
	routeNoContent(s, op("DELETE", "/v1/handlers/{kind}", "removeHandler", "handlers", "Remove a handler"), func(ctx context.Context, in *remove) error {
		return s.handlers.Remove(ctx, in.Kind)
	})
}
