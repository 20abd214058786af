package api

import (
	"context"
	"reflect"
	"slices"

	"github.com/balefire/balefire/wire"
)

// maxRedrive bounds how many dead letters one request repeats.
const maxRedrive = 1000

func (s *Server) routeDeadLetters() {
	route(s, op("GET", "/v1/dead-letters", "listDeadLetters", "dead letters", "List dead letters: tasks that are not retried automatically"), func(ctx context.Context, in *List) (wire.Page[wire.Task], error) {
		return paged(s.node.Views.DeadLetters(ctx, in.query()))
	})
	type redrive struct{ Body wire.Redrive }
	route(s, op("POST", "/v1/dead-letters/retry", "retryDeadLetters", "dead letters", "Repeat dead letters as new tasks"), func(ctx context.Context, in *redrive) (wire.Redriven, error) {
		return s.redrive(ctx, in.Body)
	})
}

func (s *Server) redrive(ctx context.Context, r wire.Redrive) (wire.Redriven, error) {
	out := wire.Redriven{Items: []wire.RedrivenItem{}, DryRun: r.DryRun}
	ids := r.IDs
	if len(ids) == 0 {
		var err error
		if ids, out.More, err = s.deadLetterIDs(ctx, r); err != nil {
			return out, err
		}
	}
	for _, id := range ids {
		item := wire.RedrivenItem{ID: id}
		if !r.DryRun {
			done, err := s.node.Redriver.Retry(ctx, id)
			if err != nil {
				item.Problem = ProblemOf(err)
				out.Failed++
			} else {
				item.Task = &done
			}
		}
		out.Items = append(out.Items, item)
	}
	return out, ctx.Err()
}

// deadLetterIDs returns the ids of dead letters that have not been repeated. It lists all
// before any is repeated, because that changes the list.
func (s *Server) deadLetterIDs(ctx context.Context, r wire.Redrive) (ids []string, more bool, err error) {
	q := r.Query
	if !r.All && reflect.ValueOf(q).IsZero() {
		return nil, false, problem(wire.CodeInvalid, "no dead letters selected: give ids, a filter, or all: true")
	}
	for q.Oldest, q.Limit = true, maxRedrive; ; {
		page, err := s.node.Views.DeadLetters(ctx, q)
		if err != nil {
			return nil, false, err
		}
		for _, t := range page.Items {
			if t.RedrivenAs != "" || t.Role == wire.RoleOwner || slices.Contains(ids, t.ID) {
				continue
			}
			if len(ids) == maxRedrive {
				return ids, true, nil
			}
			ids = append(ids, t.ID)
		}
		if q.Cursor = page.Next; q.Cursor == "" {
			return ids, false, nil
		}
	}
}
