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
		return paged(s.views.DeadLetters(in.query()))
	})
	route(s, op("POST", "/v1/dead-letters/retry", "retryDeadLetters", "dead letters", "Repeat dead letters as new tasks"), func(ctx context.Context, in *struct{ Body wire.Redrive }) (wire.Redriven, error) {
		return s.redrive(ctx, in.Body)
	})
}

func (s *Server) redrive(ctx context.Context, r wire.Redrive) (wire.Redriven, error) {
	out := wire.Redriven{Items: []wire.RedrivenItem{}, DryRun: r.DryRun}
	if len(r.States) == 0 {
		r.States = nil // an empty list selects no less than none
	}
	ids, filtered := r.IDs, r.All || !reflect.ValueOf(r.Query).IsZero()
	switch {
	case len(ids) == 0 && !filtered:
		return out, problem(wire.CodeInvalid, "no dead letters selected: give ids, a filter, or all: true")
	case len(ids) > 0 && filtered:
		return out, problem(wire.CodeInvalid, "ids and a filter, or all: true, are both given, and a filter does not narrow ids: give one of them")
	case len(ids) == 0:
		var err error
		if ids, out.More, err = s.deadLetterIDs(ctx, r.Query); err != nil {
			return out, err
		}
	}
	for _, id := range ids {
		item, err := wire.RedrivenItem{ID: id}, error(nil)
		if r.DryRun {
			err = s.redriver.Check(ctx, id)
		} else if done, failed := s.redriver.Retry(ctx, id); failed == nil {
			item.Task = &done
		} else {
			err = failed
		}
		if err != nil {
			item.Problem = ProblemOf(err)
			out.Failed++
		}
		out.Items = append(out.Items, item)
	}
	return out, ctx.Err()
}

// deadLetterIDs returns the ids of dead letters that have not been repeated. It lists all
// before any is repeated, because that changes the list.
func (s *Server) deadLetterIDs(ctx context.Context, q wire.Query) (ids []string, more bool, err error) {
	for q.Oldest, q.Limit = true, maxRedrive; ; {
		page, err := s.views.DeadLetters(q)
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
