package view

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/wire"
)

// A listing merges a page of the tasks that were made here with one of those in
// custody.
type listing struct {
	span  backlog.Span
	limit int
	lines []listItem
	end   proto.TaskID // one of the pages ends here: what follows may be incomplete
}

// A listItem is one task of a listing. A task that the node sent to itself appears
// twice.
type listItem struct {
	id     proto.TaskID
	role   string
	record *proto.Record
}

func (l *listing) add(id proto.TaskID, role string, r *proto.Record) {
	l.lines = append(l.lines, listItem{id, role, r})
}

// until records where one of the pages ends; zero: it is complete.
func (l *listing) until(next proto.TaskID) {
	if !next.IsZero() && (l.end.IsZero() || l.span.Compare(next, l.end) < 0) {
		l.end = next
	}
}

// page returns the lines of the merged page and the cursor of the next one, empty at
// the end.
func (l *listing) page() (lines []listItem, next string) {
	slices.SortFunc(l.lines, func(a, b listItem) int {
		return cmp.Or(l.span.Compare(a.id, b.id), cmp.Compare(a.role, b.role))
	})
	for i, x := range l.lines {
		if !l.end.IsZero() && l.span.Compare(x.id, l.end) > 0 {
			return l.lines[:i], writeCursor(wire.RoleOwner, l.end)
		}
		if i == l.limit {
			last := l.lines[i-1]
			return l.lines[:i], writeCursor(last.role, last.id)
		}
	}
	if !l.end.IsZero() {
		next = writeCursor(wire.RoleOwner, l.end)
	}
	return l.lines, next
}

// writeCursor encodes the position after a task. Of two lines with one id, the home
// comes first.
func writeCursor(role string, id proto.TaskID) string {
	return role[:1] + base64.RawURLEncoding.EncodeToString(id[:])
}

// readCursor returns what q asks for of the tasks made here, and of those in custody.
func readCursor(q wire.Query) (home, owner backlog.Span, err error) {
	home.Oldest = q.Oldest
	if q.Cursor != "" {
		id, err := base64.RawURLEncoding.DecodeString(q.Cursor[1:])
		if err != nil || len(id) != len(home.From) || !slices.Contains([]string{wire.RoleHome[:1], wire.RoleOwner[:1]}, q.Cursor[:1]) {
			return home, owner, fmt.Errorf("%w: the cursor is not from this list", wire.ErrInvalid)
		}
		copy(home.From[:], id)
	}
	owner = home
	owner.With = q.Cursor != "" && q.Cursor[:1] == wire.RoleHome[:1]
	return home, owner, nil
}
