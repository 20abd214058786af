package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/balefire/balefire/wire"
)

// ndjsonType is the content type of a stream of documents, one per line.
const ndjsonType = "application/x-ndjson"

// eventStep is how many events of a stream are written at a time.
const eventStep = 256

// EventsAfter asks for the events after a number.
type EventsAfter struct {
	After  uint64 `query:"after" doc:"number of the last known event; 0: from the oldest that is kept"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"256" doc:"of a page; a stream has no limit"`
	Wait   string `query:"wait" example:"30s" doc:"of a page: how long to wait for the first event if there is none yet, at most 10m; default 0"`
	stream bool
}

// Resolve determines which of the two forms the client accepts.
func (e *EventsAfter) Resolve(c huma.Context) []error {
	for kind := range strings.SplitSeq(c.Header("Accept"), ",") {
		kind, _, _ = strings.Cut(kind, ";")
		e.stream = e.stream || strings.TrimSpace(kind) == ndjsonType
	}
	return nil
}

// events is a response in one of two forms.
type events struct {
	ContentType string `header:"Content-Type"`
	Body        func(huma.Context)
}

func (s *Server) routeEvents() {
	o := op("GET", "/v1/events", "events", "watching", "Read or follow the events of this node")
	o.Description = "A page is returned at once, or at the first event within the wait. With Accept: " + ndjsonType + " the response is a stream, one event per line, " +
		"that continues until the client disconnects or the node stops; a line {\"missed\":n} replaces events that were dropped before the next one. " +
		"Numbers start at 1 again when the node restarts."
	o.Responses = answers[wire.EventPage](s, "200", "The events after the number")
	o.Responses["200"].Content[ndjsonType] = &huma.MediaType{Schema: &huma.Schema{OneOf: []*huma.Schema{schema[wire.NodeEvent](s), schema[wire.Missed](s)}}}
	register(s, o, func(ctx context.Context, in *EventsAfter) (*events, error) {
		if in.stream {
			return &events{ndjsonType, func(c huma.Context) { s.writeEvents(c, in.After) }}, nil
		}
		wait, err := duration("wait", in.Wait)
		if err != nil {
			return nil, err
		}
		waiting, cancel := stopContext(ctx, maxWait)
		defer cancel()
		page := s.node.Events(waiting, in.After, in.Limit, min(wait, maxWait))
		return &events{jsonType, func(c huma.Context) { _ = encode(c.BodyWriter(), page) }}, nil // a client that has disconnected does not need it
	})
}

// writeEvents writes events as they happen. Nothing is buffered for a slow reader: it gets
// the number of the events that the node dropped.
func (s *Server) writeEvents(c huma.Context, after uint64) {
	w, ok := c.BodyWriter().(http.ResponseWriter)
	if !ok {
		return
	}
	line := http.NewResponseController(w)
	if line.Flush() != nil || c.Method() == http.MethodHead {
		return
	}
	for {
		ctx, cancel := stopContext(c.Context(), maxWait)
		page := s.node.Events(ctx, after, eventStep, maxWait)
		over := c.Context().Err() != nil || errors.Is(context.Cause(ctx), wire.ErrDraining)
		cancel()
		var err error
		if page.Missed > 0 {
			err = encode(w, wire.Missed{Missed: page.Missed})
		}
		for _, e := range page.Items {
			if err == nil {
				err = encode(w, e)
			}
		}
		if err != nil || over || line.Flush() != nil {
			return
		}
		after = page.Next
	}
}
