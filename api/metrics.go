package api

import (
	"cmp"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A meter counts requests by route, without path parameters.
type meter struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	inFlight prometheus.Gauge
}

func newMeter(r prometheus.Registerer) *meter {
	return &meter{
		requests: registered(r, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "balefire_http_requests_total",
			Help: "Requests answered; a rejected GET of a write-only route has route none and code 405.",
		}, []string{"method", "route", "code"})),
		seconds: registered(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "balefire_http_request_duration_seconds", Help: "Time from the header of a request to the end of its response.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 2.5, 10, 60},
		}, []string{"route"})),
		inFlight: registered(r, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "balefire_http_requests_in_flight", Help: "Requests in flight.",
		})),
	}
}

// registered registers c, or returns the one that another server of the same node
// registered.
func registered[C prometheus.Collector](r prometheus.Registerer, c C) C {
	err := r.Register(c)
	if before, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		return before.ExistingCollector.(C)
	}
	if err != nil {
		panic(err) // the names above are invalid
	}
	return c
}

// count measures the requests of next.
func (m *meter) count(next func(*status, *http.Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start, seen := time.Now(), &status{ResponseWriter: w}
		m.inFlight.Inc()
		defer func() {
			m.inFlight.Dec()
			route := cmp.Or(r.Pattern, "none")
			m.requests.WithLabelValues(method(r.Method), route, strconv.Itoa(cmp.Or(seen.code, http.StatusOK))).Inc()
			m.seconds.WithLabelValues(route).Observe(time.Since(start).Seconds())
		}()
		next(seen, r)
	})
}

// method bounds the label values that a client can cause.
func method(m string) string {
	switch m {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return m
	}
	return "other"
}

// status records the status of a response.
type status struct {
	http.ResponseWriter
	code int // 0 until the response has begun
}

func (s *status) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

func (s *status) Write(b []byte) (int, error) {
	s.code = cmp.Or(s.code, http.StatusOK)
	return s.ResponseWriter.Write(b)
}

// Unwrap gives http.ResponseController access to deadlines and flushing.
func (s *status) Unwrap() http.ResponseWriter { return s.ResponseWriter }
