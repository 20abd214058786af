package api

import (
	"context"
	"net/http"
	"path/filepath"

	"github.com/balefire/balefire/wire"
)

func (s *Server) routeStore() {
	route(s, op("GET", "/v1/status", "getStatus", "node", "Status of this node"), func(ctx context.Context, _ *struct{}) (wire.Status, error) {
		return s.views.Status(ctx), nil
	})
	type why struct {
		Subject string `path:"subject" maxLength:"128" doc:"the id of a task or a mail, or its beginning; the name of a peer; queue:NAME, agent:NAME, topic:NAME or topic:NAME/SUBSCRIPTION"`
	}
	route(s, op("GET", "/v1/why/{subject}", "why", "node", "Explain what a task, a mail, a peer, a queue or a box is waiting for"), func(ctx context.Context, in *why) (wire.Blocker, error) {
		return s.explainer.Why(ctx, in.Subject)
	})
	route(s, op("GET", "/v1/store", "getStore", "store", "Sizes of the store"), func(context.Context, *struct{}) (wire.StoreStats, error) {
		return s.views.StoreStats(), nil
	})
	routeNoContent(s, op("POST", "/v1/store/compact", "compactStore", "store", "Reclaim the space of removed records"), func(ctx context.Context, _ *struct{}) error {
		return s.store.Compact(ctx)
	})
	copied := op("POST", "/v1/store/snapshot", "snapshotStore", "store", "Copy the store while the node runs")
	copied.DefaultStatus = http.StatusCreated
	route(s, copied, func(ctx context.Context, in *struct{ Body wire.Snapshot }) (wire.Snapshot, error) {
		return in.Body, s.snapshot(ctx, in.Body)
	})
}

func (s *Server) snapshot(ctx context.Context, to wire.Snapshot) error {
	if !filepath.IsAbs(to.Dir) {
		return problem(wire.CodeInvalid, "dir %.200q: it must be an absolute path, because the node has another working directory", to.Dir)
	}
	return s.store.Snapshot(ctx, to.Dir, to.ToKey)
}
