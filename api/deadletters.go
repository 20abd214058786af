package api

import (
	"context"
	"slices"

	"github.com/balefire/balefire/wire"
)

// maxRedrive bounds how many dead letters one request repeats.
const maxRedrive = 1000

// A Redrive selects the dead letters to repeat: those with the given ids, or those that a
// filter selects and that have not been repeated yet.
type Redrive struct {
	IDs []string `json:"ids,omitempty" maxItems:"1000"`
	Filter
	All    bool `json:"all,omitempty" doc:"required when neither ids nor a filter is given"`
	DryRun bool `json:"dry_run,omitempty" doc:"only list"`
}

// Redriven is the result of a Redrive.
type Redriven struct {
	Items  []RedrivenItem `json:"items"`
	Failed int            `json:"failed"`
	More   bool           `json:"more" doc:"there were more than one request can take: repeat it"`
	DryRun bool           `json:"dry_run"`
}

// A RedrivenItem is one dead letter.
type RedrivenItem struct {
	ID      string          `json:"id" doc:"of the dead letter"`
	Task    *wire.Submitted `json:"task,omitempty" doc:"the new task"`
	Problem *Problem        `json:"problem,omitempty"`
}

func (s *Server) routeDeadLetters() {
	route(s, op("GET", "/v1/dead-letters", "listDeadLetters", "dead letters", "List dead letters: tasks that are not retried automatically"), func(ctx context.Context, in *List) (wire.Page[wire.Task], error) {
		q, err := in.query()
		if err != nil {
			return wire.Page[wire.Task]{}, err
		}
		return paged(s.node.DeadLetters(ctx, q))
	})
	type redrive struct{ Body Redrive }
	route(s, op("POST", "/v1/dead-letters/retry", "retryDeadLetters", "dead letters", "Repeat dead letters as new tasks"), func(ctx context.Context, in *redrive) (Redriven, error) {
		return s.redrive(ctx, in.Body)
	})
}

func (s *Server) redrive(ctx context.Context, r Redrive) (Redriven, error) {
	out := Redriven{Items: []RedrivenItem{}, DryRun: r.DryRun}
	ids := r.IDs
	if len(ids) == 0 {
		var err error
		if ids, out.More, err = s.deadLetterIDs(ctx, r); err != nil {
			return out, err
		}
	}
	for _, id := range ids {
		item := RedrivenItem{ID: id}
		if !r.DryRun {
			done, err := s.node.Retry(ctx, id)
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
func (s *Server) deadLetterIDs(ctx context.Context, r Redrive) (ids []string, more bool, err error) {
	q, err := r.Filter.query()
	if err != nil {
		return nil, false, err
	}
	if !r.All && r.isEmpty() {
		return nil, false, problem(CodeInvalid, "no dead letters selected: give ids, a filter, or all: true")
	}
	for q.Oldest, q.Limit = true, maxRedrive; ; {
		page, err := s.node.DeadLetters(ctx, q)
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

// isEmpty reports whether f selects all.
func (f Filter) isEmpty() bool {
	return len(f.States) == 0 && f.Role == "" && f.Peer == "" && f.Kind == "" && f.Label == "" && f.Before.IsZero() && f.After.IsZero()
}
