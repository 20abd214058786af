package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	"github.com/balefire/balefire/wire"
)

// Events yields the events after a number as they happen, until the caller stops or ctx is
// done. It ends with one error: [wire.ErrDraining] when the node stopped. A gap in the
// numbers means dropped events. After a restart of the node numbers start at 1 again:
// continue after 0.
func (c *Client) Events(ctx context.Context, after uint64) iter.Seq2[wire.NodeEvent, error] {
	return func(yield func(wire.NodeEvent, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		err := c.stream(ctx, after, func(e wire.NodeEvent) bool { return yield(e, nil) })
		if err != nil {
			yield(wire.NodeEvent{}, err)
		}
	}
}

// stream calls each with the events until it returns false: then err is nil.
func (c *Client) stream(ctx context.Context, after uint64, each func(wire.NodeEvent) bool) error {
	res, err := c.do(ctx, call{
		method: http.MethodGet, path: "/v1/events", query: url.Values{"after": {strconv.FormatUint(after, 10)}}, accept: "application/x-ndjson",
	})
	if err != nil {
		return err
	}
	defer res.Body.Close()
	for lines := json.NewDecoder(res.Body); ; {
		var e wire.NodeEvent
		err := lines.Decode(&e)
		switch {
		case err == nil && e.Seq == 0: // a line for dropped events: the numbers show that, too
		case err == nil:
			if !each(e) {
				return nil
			}
		case ctx.Err() != nil:
			return ctx.Err()
		case err == io.EOF: // the response is complete: the node has ended it
			return fmt.Errorf("%w: it has ended the stream of events", wire.ErrDraining)
		default:
			return fmt.Errorf("read events: %w", err)
		}
	}
}
