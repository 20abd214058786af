package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// maxBreaches bounds a report: a file of garbage must not produce a million breaches.
const maxBreaches = 100

// A Report is the result of Verify.
type Report struct {
	Sound    bool     `json:"sound"` // there is no breach, and a known position that was given is in it
	Files    int      `json:"files"`
	Lines    uint64   `json:"lines"`
	Bytes    int64    `json:"bytes"`
	Before   Head     `json:"-"`                    // position before the oldest line kept; older files were removed by age
	Last     Head     `json:"head,omitzero"`        // the newest line
	Torn     int64    `json:"torn_bytes,omitempty"` // of an unfinished write at the end, which Open cuts off; this is not a breach
	Breaches []Breach `json:"breaches,omitempty"`   // at most 100, in order
}

// Verify reads the whole record in dir and returns [ErrBroken] if it differs from
// what was written, with the breaches in the report. The positions in known, taken
// from [Journal.Head] and stored elsewhere, must be in it too unless they are older
// than what is kept; if all of them are, it returns [ErrUnproven]. Nothing is modified, and
// the journal may be open.
func Verify(dir string, known ...Head) (Report, error) {
	var rep Report
	var err error
	for range 3 { // a file may be removed by age while we read
		if rep, err = verify(dir, known); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	switch {
	case err != nil:
		return rep, fmt.Errorf("verify audit log %s: %w", dir, err)
	case len(rep.Breaches) > 0:
		for i := range rep.Breaches {
			rep.Breaches[i].File = filepath.Join(dir, rep.Breaches[i].File)
		}
		return rep, fmt.Errorf("verify audit log: %w in %d places, first %s", ErrBroken, len(rep.Breaches), rep.Breaches[0])
	}
	if len(known) > 0 && !slices.ContainsFunc(known, func(h Head) bool { return h.Seq >= rep.Before.Seq }) {
		return rep, fmt.Errorf("verify audit log: %w, which begins with line %d", ErrUnproven, rep.Before.Seq+1)
	}
	rep.Sound = true
	return rep, nil
}

func verify(dir string, known []Head) (Report, error) {
	h, err := readHeads(dir) // before the files: lines may be added meanwhile
	return verifyFiles(dir, known, h, err)
}

// verifyFiles is verify after h was read, or headErr was.
func verifyFiles(dir string, known []Head, h heads, headErr error) (Report, error) {
	var v verifier
	names, err := files(dir)
	if err != nil {
		return v.rep, err
	}
	if errors.Is(headErr, fs.ErrNotExist) && len(names) == 0 && len(known) == 0 {
		return v.rep, nil // never opened
	}
	if headErr != nil {
		v.breach(Breach{File: headName, Reason: headErr.Error()})
	}
	v.expect(known...)
	v.expect(h.Base, h.Last)
	for i, name := range names {
		if err := v.file(dir, name, i == 0, i == len(names)-1, h.Last, headErr == nil); err != nil {
			return v.rep, err
		}
	}
	if headErr == nil && v.rep.Before.Seq > h.Base.Seq {
		if now, err := readHeads(dir); err == nil && now.Base != h.Base {
			return v.rep, fmt.Errorf("the oldest file was removed by age: %w", fs.ErrNotExist)
		}
		v.breach(Breach{File: headName, Reason: fmt.Sprintf("lines %d to %d are gone", h.Base.Seq+1, v.rep.Before.Seq)})
	}
	v.missing()
	return v.rep, nil
}

// A verifier follows the chain through all files.
type verifier struct {
	rep  Report
	want map[uint64][]Hash // positions that must be passed
}

func (v *verifier) breach(list ...Breach) {
	room := maxBreaches - len(v.rep.Breaches)
	v.rep.Breaches = append(v.rep.Breaches, list[:min(room, len(list))]...)
}

func (v *verifier) expect(places ...Head) {
	if v.want == nil {
		v.want = make(map[uint64][]Hash)
	}
	for _, p := range places {
		if p != (Head{}) {
			v.want[p.Seq] = append(v.want[p.Seq], p.Hash)
		}
	}
}

// pass removes the expected position that at matches.
func (v *verifier) pass(at Head) {
	if left, ok := v.want[at.Seq]; ok {
		v.want[at.Seq] = slices.DeleteFunc(left, func(h Hash) bool { return h == at.Hash })
	}
}

// missing reports the positions that were not passed.
func (v *verifier) missing() {
	for _, seq := range slices.Sorted(maps.Keys(v.want)) {
		if len(v.want[seq]) > 0 && seq >= v.rep.Before.Seq {
			v.breach(Breach{File: headName, Seq: seq, Reason: fmt.Sprintf("line %d is known to have been written and is missing or changed", seq)})
		}
	}
}

// file checks one file; first and last give its position among the files, synced is
// the last line known to be on disk, if known.
func (v *verifier) file(dir, name string, first, last bool, synced Head, known bool) error {
	prev := v.rep.Last
	if n, _ := firstOf(name); first {
		prev = Head{Seq: n - 1}
	}
	w, err := scanFile(dir, name, prev, v.pass)
	if err != nil {
		return err
	}
	v.rep.Files, v.rep.Lines, v.rep.Bytes = v.rep.Files+1, v.rep.Lines+w.lines, v.rep.Bytes+w.size
	begins := prev
	if w.header.Version != 0 {
		begins = w.header.before()
	}
	if first {
		v.rep.Before = begins
	} else if begins != prev {
		reason := fmt.Sprintf("the file continues after line %d, but the previous file ends at line %d or with a different hash", begins.Seq, prev.Seq)
		if w.header.Gap != "" {
			reason += ": Open found " + w.header.Gap
		}
		v.breach(Breach{File: name, Line: 1, Seq: prev.Seq, Reason: reason})
	}
	v.rep.Last = w.end
	if last && w.torn(synced, known) {
		v.rep.Torn, v.rep.Last = w.size-w.cut, w.valid
		return nil
	}
	v.breach(w.bad...)
	return nil
}

// Scan calls fn with every line in dir, oldest first, until fn returns an error;
// [fs.SkipAll] stops it without one. Unreadable lines are skipped and make Scan return
// [ErrBroken] at the end. Only [Verify] checks whether lines are genuine. An unfinished
// last line is ignored.
func Scan(dir string, fn func(Record) error) error { return ScanFrom(dir, 0, fn) }

// ScanFrom is Scan for the lines from the number first on. It opens no file that ends before.
func ScanFrom(dir string, first uint64, fn func(Record) error) error {
	names, err := files(dir)
	if err != nil {
		return fmt.Errorf("scan audit log: %w", err)
	}
	unread := 0
	for i, name := range names {
		if i+1 < len(names) {
			if next, _ := firstOf(names[i+1]); next <= first {
				continue
			}
		}
		err := readLines(dir, name, func(l line) error {
			if l.no == 1 || !l.whole {
				return nil
			}
			if seq, err := parseSeq(l.text); err == nil && seq < first {
				return nil
			}
			r, err := parseRecord(l.text)
			if err != nil {
				unread++
				return nil
			}
			return fn(r)
		})
		switch {
		case errors.Is(err, fs.SkipAll):
			return nil
		case err != nil && !errors.Is(err, fs.ErrNotExist): // it was removed by age
			return err
		}
	}
	if unread > 0 {
		return fmt.Errorf("scan audit log %s: %w: %d lines cannot be read; `balefire-node audit verify` tells which", dir, ErrBroken, unread)
	}
	return nil
}

// A Query selects lines. A zero field matches all.
type Query struct {
	Since  time.Time
	Task   string // id
	Action string // such as command.start, or the part before the dot
	Limit  int    // of the newest lines; 0: all
}

// Read returns the lines in dir that q selects, oldest first. If some cannot be read, it
// returns [ErrBroken] and all others.
func Read(dir string, q Query) ([]Record, error) {
	out := []Record{}
	err := Scan(dir, func(r Record) error {
		area, _, _ := strings.Cut(r.Action, ".")
		switch {
		case r.Time.Before(q.Since),
			q.Task != "" && r.Task != q.Task,
			q.Action != "" && q.Action != r.Action && q.Action != area:
			return nil
		}
		if out = append(out, r); q.Limit > 0 && len(out) > q.Limit {
			out = out[1:]
		}
		return nil
	})
	return out, err
}
