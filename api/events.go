package api

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

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
	Mail   string `query:"mail" maxLength:"192" example:"agent:ceo" doc:"the events of the mail of this mailbox or topic instead, which have numbers of their own; *: of all"`
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
		if _, err := s.eventPage(ctx, in, 1, 0); err != nil { // it is no box
			return nil, err
		}
		if in.stream {
			return &events{ndjsonType, func(c huma.Context) { s.writeEvents(c, in) }}, nil
		}
		wait, err := duration("wait", in.Wait)
		if err != nil {
			return nil, err
		}
		waiting, cancel := stopContext(ctx, maxWait)
		defer cancel()
		page, err := s.eventPage(waiting, in, in.Limit, min(wait, maxWait))
		return &events{jsonType, func(c huma.Context) { _ = encode(c.BodyWriter(), page) }}, err // a client that has disconnected does not need it
	})
}

// eventPage returns events of the node, or of the mail that is asked for.
func (s *Server) eventPage(ctx context.Context, in *EventsAfter, limit int, wait time.Duration) (wire.EventPage, error) {
	if in.Mail != "" {
		return s.mail.Events(ctx, in.Mail, in.After, limit, wait)
	}
	return s.events.Read(ctx, in.After, limit, wait), nil
}

// writeEvents writes events as they happen. Nothing is buffered for a slow reader: it gets
// the number of the events that the node dropped.
func (s *Server) writeEvents(c huma.Context, in *EventsAfter) {
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
		page, err := s.eventPage(ctx, in, eventStep, maxWait)
		over := c.Context().Err() != nil || errors.Is(context.Cause(ctx), wire.ErrDraining)
		cancel()
		if page.Missed > 0 && err == nil {
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
		in.After = page.Next
	}
}
