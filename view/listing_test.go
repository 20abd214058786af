package view

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/wire"
)

// Pages over both lists show each task of each list once and in order, with pages of
// any size, even if one list is read in steps that end early; a task that is in both
// is shown twice.
func TestListingMergesMadeAndHeldTasks(t *testing.T) {
	var all []proto.TaskID
	for i := range 60 {
		all = append(all, proto.NewTaskID(time.UnixMilli(1_700_000_000_000+int64(i))))
	}
	// source answers like an outbox or an inbox: at most limit ids of the span, after
	// examining at most step of them.
	source := func(has func(i int) bool, step int) func(backlog.Span, int) ([]proto.TaskID, proto.TaskID) {
		return func(s backlog.Span, limit int) (found []proto.TaskID, next proto.TaskID) {
			ids, examined := slices.Clone(all), 0
			if !s.Oldest {
				slices.Reverse(ids)
			}
			for _, id := range ids {
				if c := s.Compare(id, s.From); !s.From.IsZero() && (c < 0 || c == 0 && !s.With) {
					continue
				}
				if examined++; has(slices.Index(all, id)) {
					found = append(found, id)
				}
				if len(found) == limit || examined == step {
					return found, id
				}
			}
			return found, proto.TaskID{}
		}
	}
	made, custody := func(i int) bool { return i%3 != 0 }, func(i int) bool { return i%4 == 0 }
	for _, oldest := range []bool{false, true} {
		var want []string
		for i, id := range all {
			lines := []string{}
			if made(i) {
				lines = append(lines, "home "+id.String())
			}
			if custody(i) {
				lines = append(lines, "owner "+id.String())
			}
			if !oldest {
				slices.Reverse(lines)
			}
			want = append(want, lines...)
		}
		if !oldest {
			slices.Reverse(want)
		}
		for _, limit := range []int{1, 2, 7, 1000} {
			for _, steps := range [][2]int{{1000, 1000}, {5, 1000}, {1000, 5}, {3, 4}} {
				t.Run(fmt.Sprintf("oldest %v, limit %d, steps %v", oldest, limit, steps), func(t *testing.T) {
					home, owner := source(made, steps[0]), source(custody, steps[1])
					var got []string
					for q := (wire.Query{Oldest: oldest}); ; {
						h, o, err := readCursor(q)
						if err != nil {
							t.Fatal(err)
						}
						l := listing{span: h, limit: limit}
						ids, next := home(h, limit)
						for _, id := range ids {
							l.add(id, wire.RoleHome, nil)
						}
						l.until(next)
						ids, next = owner(o, limit)
						for _, id := range ids {
							l.add(id, wire.RoleOwner, nil)
						}
						l.until(next)
						lines, cursor := l.page()
						if len(lines) > limit {
							t.Fatalf("a page of %d", len(lines))
						}
						for _, x := range lines {
							got = append(got, x.role+" "+x.id.String())
						}
						if q.Cursor = cursor; cursor == "" {
							break
						}
					}
					if !slices.Equal(got, want) {
						t.Errorf("%d lines, want %d in order:\n%v\n%v", len(got), len(want), got, want)
					}
				})
			}
		}
	}
}

// A cursor that no list returned is an invalid request.
func TestForeignCursorsAreRefused(t *testing.T) {
	for _, cursor := range []string{"h", "x", "o!", "more", "hAAAA", "xAAAAAAAAAAAAAAAAAAAAAA", "o" + string(make([]byte, 2000))} {
		if _, _, err := readCursor(wire.Query{Cursor: cursor}); err == nil {
			t.Errorf("%.20q was accepted", cursor)
		}
	}
	if _, err := new(Views).Query(wire.Query{Role: "king"}); err == nil {
		t.Error("an unknown role was accepted")
	}
}
