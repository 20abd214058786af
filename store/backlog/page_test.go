package backlog

import (
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// TestPagesAreNewestFirst checks that pages of any size, in either direction, list every
// task once, whatever set it is in, even with more tasks than one selection finds.
func TestPagesAreNewestFirst(t *testing.T) {
	w := newFixture(t, Config{})
	var ids, failures []proto.TaskID
	for i := range 2*pageStep + 300 {
		w.clock.Advance(time.Millisecond)
		k := w.addOne("p", classNormal, func(r *proto.Record) { r.Kind = []string{"even", "odd"}[i%2] })
		switch i % 7 {
		case 1:
			w.end(k, success)
		case 2:
			w.end(k, failed)
			failures = append(failures, k.ID)
		}
		ids = append(ids, k.ID)
	}
	newest := slices.Clone(ids)
	slices.Reverse(newest)
	for _, tt := range []struct {
		name  string
		span  Span
		limit int
		want  []proto.TaskID
	}{
		{"one page", Span{}, len(ids), newest},
		{"pages of 7", Span{}, 7, newest},
		{"the oldest first", Span{Oldest: true}, 1000, ids},
		{"after one", Span{From: newest[10]}, 50, newest[11:]},
		{"from one", Span{From: newest[10], With: true}, 50, newest[10:]},
	} {
		if got := w.pages(tt.span, tt.limit, nil); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %d tasks, want %d in order", tt.name, len(got), len(tt.want))
		}
	}
	odd := w.pages(Span{}, 10, func(_ Key, r *proto.Record) bool { return r.Kind == "odd" })
	if len(odd) != len(ids)/2 || odd[0] != newest[0] {
		t.Errorf("%d odd tasks, want %d", len(odd), len(ids)/2)
	}
	if dead := w.pages(Span{Oldest: true, Sets: []Set{Dead}}, 10, nil); !slices.Equal(dead, failures) {
		t.Errorf("%d dead, want %d", len(dead), len(failures))
	}
}

// TestPagingWhileTasksEnd checks that a task that ends between two pages is listed once:
// its id determines its position in the list, not its set.
func TestPagingWhileTasksEnd(t *testing.T) {
	w := newFixture(t, Config{})
	var keys []Key
	for range 10 {
		w.clock.Advance(time.Millisecond)
		keys = append(keys, w.addOne("p", classNormal, nil))
	}
	var got []proto.TaskID
	for span := (Span{}); ; {
		page, next, err := w.Page(span, 3, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range page {
			got = append(got, l.Key.ID)
		}
		if len(got) == 3 {
			w.end(keys[9], success) // listed already
			w.end(keys[4], failed)  // on a later page
		}
		if span.From = next; next.IsZero() {
			break
		}
	}
	if len(got) != len(keys) || got[5] != keys[4].ID {
		t.Errorf("%d tasks listed, want each of %d once", len(got), len(keys))
	}
}

func (w *fixture) pages(span Span, limit int, match func(Key, *proto.Record) bool) (ids []proto.TaskID) {
	w.t.Helper()
	for {
		page, next, err := w.Page(span, limit, match)
		if err != nil || len(page) > limit {
			w.t.Fatalf("a page of %d, %v", len(page), err)
		}
		for _, l := range page {
			ids = append(ids, l.Key.ID)
		}
		if span.From, span.With = next, false; next.IsZero() {
			return ids
		}
	}
}
