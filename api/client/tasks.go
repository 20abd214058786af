package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/balefire/balefire/wire"
)

// Submit submits a task: when it returns, the task is on the node's disk. A Stream of any
// size is sent as it is read.
func (c *Client) Submit(ctx context.Context, r wire.Request) (wire.Submitted, error) {
	if r.Stream == nil {
		return post[wire.Submitted](ctx, c, "/v1/tasks", r)
	}
	if len(r.Body) > 0 {
		return wire.Submitted{}, fmt.Errorf("%w: body and stream are both given: a task has one body", wire.ErrInvalid)
	}
	q, err := r.Query()
	if err != nil {
		return wire.Submitted{}, err
	}
	return fetch[wire.Submitted](ctx, c, call{
		method: http.MethodPost, path: "/v1/tasks", query: q, body: r.Stream,
		contentType: "application/octet-stream", expect: true,
	})
}

// SubmitMany submits many tasks in as many batches as needed. Each has its own result or
// error. Streams are not allowed.
func (c *Client) SubmitMany(ctx context.Context, rs []wire.Request) ([]wire.Submitted, []error) {
	out, errs := make([]wire.Submitted, len(rs)), make([]error, len(rs))
	for at := 0; at < len(rs); {
		doc, n, err := lines(rs[at:], wire.MaxBatch, noStream)
		if err == nil {
			err = c.submitBatch(ctx, doc, out[at:at+n], errs[at:at+n])
		}
		for i := range n {
			if err != nil {
				errs[at+i] = err
			}
		}
		at += n
	}
	return out, errs
}

// noStream returns the error of a task that cannot be in a batch.
func noStream(r *wire.Request) error {
	if r.Stream != nil {
		return fmt.Errorf("%w: a stream cannot be in a batch: use Submit", wire.ErrInvalid)
	}
	return nil
}

// lines encodes the first n of items, at least one and at most limit, as one document, one
// item per line. check returns why an item cannot be sent.
func lines[T any](items []T, limit int, check func(*T) error) (doc []byte, n int, err error) {
	for i := range items[:min(len(items), limit)] {
		err = check(&items[i])
		line, mErr := json.Marshal(&items[i])
		if err = errors.Join(err, mErr); err != nil || n > 0 && len(doc)+len(line) >= wire.MaxBatchBytes {
			break
		}
		doc = append(append(doc, line...), '\n')
		n++
	}
	if n > 0 {
		return doc, n, nil // the error of the next one is reported in its turn
	}
	return nil, 1, err
}

func (c *Client) submitBatch(ctx context.Context, doc []byte, out []wire.Submitted, errs []error) error {
	b, err := fetch[wire.Batch](ctx, c, call{
		method: http.MethodPost, path: "/v1/tasks/batch", body: bytes.NewReader(doc), contentType: "application/x-ndjson",
	})
	if err != nil {
		return err
	}
	if len(b.Items) != len(out) {
		return fmt.Errorf("the node answered for %d tasks of %d", len(b.Items), len(out))
	}
	for i, item := range b.Items {
		switch {
		case item.Problem != nil:
			errs[i] = item.Problem
		case item.Task != nil:
			out[i] = *item.Task
		}
	}
	return nil
}

// Task returns the task with this id, or with the only id that begins with it.
func (c *Client) Task(ctx context.Context, id string) (wire.Task, error) {
	return get[wire.Task](ctx, c, "/v1/tasks/"+escape(id), nil)
}

// Tasks returns a page of the tasks that q selects.
func (c *Client) Tasks(ctx context.Context, q wire.Query) (wire.Page[wire.Task], error) {
	return get[wire.Page[wire.Task]](ctx, c, "/v1/tasks", pageOf(q))
}

// DeadLetters returns a page of the tasks that are not retried automatically.
func (c *Client) DeadLetters(ctx context.Context, q wire.Query) (wire.Page[wire.Task], error) {
	return get[wire.Page[wire.Task]](ctx, c, "/v1/dead-letters", pageOf(q))
}

func pageOf(q wire.Query) url.Values {
	v := query(q.Limit, map[string]string{
		"state": strings.Join(q.States, ","), "role": q.Role, "peer": q.Peer, "kind": q.Kind, "label": q.Label, "cursor": q.Cursor,
		"before": timeText(q.Before), "after": timeText(q.After),
	})
	if q.Oldest {
		v.Set("order", "oldest")
	}
	return v
}

// waitStep is how long one request of Wait waits.
const waitStep = time.Minute

// Wait returns the task when it has ended, or its last known state with ctx's error. A stop
// of the node is an error, too: the task is safe, wait again.
func (c *Client) Wait(ctx context.Context, id string) (last wire.Task, err error) {
	path, q := "/v1/tasks/"+escape(id)+"/wait", url.Values{"timeout": {waitStep.String()}}
	for {
		res, err := c.do(ctx, call{method: http.MethodGet, path: path, query: q})
		if err != nil {
			return last, err
		}
		var now wire.Task
		err = json.NewDecoder(res.Body).Decode(&now)
		_ = res.Body.Close()
		if err == nil {
			last = now
		}
		switch {
		case ctx.Err() != nil:
			return last, ctx.Err()
		case err != nil:
			return last, fmt.Errorf("wait for %s: %w", id, err)
		case res.StatusCode == http.StatusOK:
			return last, nil
		}
	}
}

// Result opens the result of an ended task. The returned task has only the state, and the
// size, digest, type and truncation of the result.
func (c *Client) Result(ctx context.Context, id string) (io.ReadCloser, wire.Task, error) {
	res, err := c.do(ctx, call{method: http.MethodGet, path: "/v1/tasks/" + escape(id) + "/result"})
	if err != nil {
		return nil, wire.Task{}, err
	}
	t := wire.Task{ID: id, State: res.Header.Get("Balefire-State"), Ending: wire.Ending{
		ResultSize: uint64(max(res.ContentLength, 0)), ResultHash: strings.Trim(res.Header.Get("ETag"), `"`),
		ResultType: res.Header.Get("Content-Type"), Truncated: res.Header.Get("Balefire-Truncated") == "true",
	}}
	return res.Body, t, nil
}

// Receipts returns the receipts of a task.
func (c *Client) Receipts(ctx context.Context, id string) ([]wire.Receipt, error) {
	p, err := get[wire.Page[wire.Receipt]](ctx, c, "/v1/tasks/"+escape(id)+"/receipts", nil)
	return p.Items, err
}

// Cancel cancels a task; hard kills its process group.
func (c *Client) Cancel(ctx context.Context, id string, hard bool, reason string) (wire.Task, error) {
	return post[wire.Task](ctx, c, "/v1/tasks/"+escape(id)+"/cancel", wire.Cancel{Hard: hard, Reason: reason})
}

// Retry repeats an ended task as a new one.
func (c *Client) Retry(ctx context.Context, id string) (wire.Submitted, error) {
	return post[wire.Submitted](ctx, c, "/v1/tasks/"+escape(id)+"/retry", nil)
}

// Purge removes the ended tasks that q selects, or counts them.
func (c *Client) Purge(ctx context.Context, q wire.Query, dryRun bool) (wire.Purged, error) {
	return post[wire.Purged](ctx, c, "/v1/tasks/purge", wire.Purge{Query: q, DryRun: dryRun})
}

// RetryDead repeats dead letters, at most 1000 of them.
func (c *Client) RetryDead(ctx context.Context, r wire.Redrive) (wire.Redriven, error) {
	return post[wire.Redriven](ctx, c, "/v1/dead-letters/retry", r)
}
