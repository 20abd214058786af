package api

import (
	"context"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/balefire/balefire/wire"
)

func (s *Server) routeHealth() {
	route(s, op("GET", "/healthz", "healthz", "watching", "Check that the node's loops run and its last commit succeeded"), func(context.Context, *struct{}) (wire.Health, error) {
		return healthAnswer(s.life.Healthy())
	})
	route(s, op("GET", "/readyz", "readyz", "watching", "Check that the node accepts tasks"), func(context.Context, *struct{}) (wire.Health, error) {
		return healthAnswer(s.life.Ready())
	})
	metrics := op("GET", "/metrics", "metrics", "watching", "Prometheus metrics")
	metrics.Responses = answers[string](s, "200", "The text format of Prometheus")
	metrics.Responses["200"].Content = content(schema[string](s), "text/plain")
	s.api.OpenAPI().AddOperation(&metrics)
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	s.mux.HandleFunc("GET /openapi.json", s.openAPI)
}

// healthAnswer answers that a node is healthy, or that it is not: that is a response, not a
// failed request.
func healthAnswer(err error) (wire.Health, error) {
	if err != nil {
		return wire.Health{}, problem(wire.CodeUnhealthy, "%v", err)
	}
	return wire.Health{Status: "ok"}, nil
}
