package api

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/balefire/balefire/node"
)

// ndjsonType is that of a stream of documents, one a line.
const ndjsonType = "application/x-ndjson"

// eventStep is how many events of a stream are written at once.
const eventStep = 256

// EventsAfter asks for what happened behind a number.
type EventsAfter struct {
	After  uint64 `query:"after" doc:"number of the last event that is known; 0: from the first that is kept"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"256" doc:"of a page; a stream has none"`
	Wait   string `query:"wait" example:"30s" doc:"of a page: how long to wait for the first event when there is none yet, at most 10m; default not at all"`
	stream bool
}

// Resolve reads which of the two forms the client takes.
func (e *EventsAfter) Resolve(c huma.Context) []error {
	for kind := range strings.SplitSeq(c.Header("Accept"), ",") {
		kind, _, _ = strings.Cut(kind, ";")
		e.stream = e.stream || strings.TrimSpace(kind) == ndjsonType
	}
	return nil
}

// A Missed stands in a stream of events in place of those that were dropped.
type Missed struct {
	Missed uint64 `json:"missed" doc:"so many: the reader was too slow or came too late"`
}

// events is an answer in one of two forms.
type events struct {
	ContentType string `header:"Content-Type"`
	Body        func(huma.Context)
}

func (s *Server) routeEvents(n eventReader) {
	o := op("GET", "/v1/events", "events", "watching", "Read what happened on this node, or follow it")
	o.Description = "A page answers at once, or when something happens within the wait. With Accept: " + ndjsonType + " the answer is a stream, one event a line, " +
		"that goes on until the client leaves or the node stops; a line {\"missed\":n} stands for events that were dropped before the next one. " +
		"Numbers begin anew at each start of the node."
	o.Responses = answers[node.EventPage](s, "200", "What happened after the number")
	o.Responses["200"].Content[ndjsonType] = &huma.MediaType{Schema: &huma.Schema{OneOf: []*huma.Schema{schema[node.NodeEvent](s), schema[Missed](s)}}}
	register(s, o, func(ctx context.Context, in *EventsAfter) (*events, error) {
		if in.stream {
			return &events{ndjsonType, func(c huma.Context) { writeEvents(c, n, in.After) }}, nil
		}
		wait, err := duration("wait", in.Wait)
		if err != nil {
			return nil, err
		}
		waiting, cancel := stopContext(ctx, maxWait)
		defer cancel()
		page := n.Events(waiting, in.After, in.Limit, min(wait, maxWait))
		return &events{jsonType, func(c huma.Context) { _ = encode(c.BodyWriter(), page) }}, nil // a client that has gone does not miss it
	})
}

// writeEvents writes events as they happen. Nothing is kept for a slow reader: what
// the node dropped meanwhile is told as a number.
func writeEvents(c huma.Context, n eventReader, after uint64) {
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
		page := n.Events(ctx, after, eventStep, maxWait)
		over := c.Context().Err() != nil || errors.Is(context.Cause(ctx), node.ErrDraining)
		cancel()
		var err error
		if page.Missed > 0 {
			err = encode(w, Missed{page.Missed})
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
