package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// A fileScan is the result of reading one file from its header to its end.
type fileScan struct {
	header    header
	lines     uint64   // lines after the header
	size      int64    // bytes
	end       Head     // position claimed by the last readable line
	valid     Head     // end of the valid part, from the header on
	cut       int64    // bytes of the valid part
	bad       []Breach // breaches after it, at most maxBreaches
	after     int      // valid lines after the first breach
	misplaced bool     // the first breach is a line in the wrong place
}

// A Breach is one position where the record differs from what was written.
type Breach struct {
	File   string `json:"file"`           // its path
	Line   int    `json:"line,omitempty"` // in the file, from 1; 0: the file itself
	Seq    uint64 `json:"-"`              // number of the last valid line before it
	Reason string `json:"reason"`
}

// Location returns the path and the line.
func (b Breach) Location() string {
	if b.Line == 0 {
		return b.File
	}
	return fmt.Sprintf("%s:%d", b.File, b.Line)
}

func (b Breach) String() string { return b.Location() + ": " + b.Reason }

// scanFile reads the file called name. If it has no readable header, the chain is
// assumed to continue from prev. pass is called for each position of the chain.
func scanFile(dir, name string, prev Head, pass func(Head)) (fileScan, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return fileScan{}, err
	}
	defer f.Close()
	return scanLines(f, name, prev, pass)
}

// scanLines is scanFile for a file that is open as r.
func scanLines(r io.Reader, name string, prev Head, pass func(Head)) (fileScan, error) {
	w := fileScan{end: prev, valid: prev}
	err := eachLine(r, func(l line) error {
		w.size = l.off + l.size
		if err := w.take(name, l); err != nil {
			w.misplaced = w.misplaced || (len(w.bad) == 0 && errors.Is(err, errMisplaced))
			if len(w.bad) < maxBreaches {
				w.bad = append(w.bad, Breach{File: name, Line: l.no, Seq: w.valid.Seq, Reason: err.Error()})
			}
		} else if len(w.bad) == 0 {
			w.valid, w.cut = w.end, w.size
		} else {
			w.after++
		}
		pass(w.end)
		return nil
	})
	if err == nil && w.size == 0 {
		w.bad = append(w.bad, Breach{File: name, Line: 1, Seq: prev.Seq, Reason: "the file is empty"})
	}
	return w, err
}

// take advances w over l, or returns what is wrong with it.
func (w *fileScan) take(name string, l line) error {
	if !l.whole {
		return errors.New("the line has no end, or is longer than any that is written")
	}
	if l.no > 1 {
		w.lines++
		return w.end.follow(l.text)
	}
	h, err := parseHeader(l.text)
	if err != nil {
		return err
	}
	w.header, w.end = h, h.before()
	if fileName(h.First) != name {
		return fmt.Errorf("the file begins with number %d and should be called %s", h.First, fileName(h.First))
	}
	return nil
}

// torn reports whether a power cut during a write explains all breaches of w, the
// newest file: damage after all lines known to have been synced, no larger than one
// write.
func (w fileScan) torn(last Head, known bool) bool {
	return len(w.bad) > 0 && !w.misplaced && w.cut > 0 && w.size-w.cut <= maxGroup &&
		((known && w.valid.Seq >= last.Seq) || (!known && w.after == 0))
}

// maxSkip is the largest number of lines that a damaged file is believed to hold.
const maxSkip = 1 << 24

// resumeAfter returns the position from which the record continues after damage:
// no number may be assigned twice, and an absurd number in a damaged line is
// ignored.
func (w fileScan) resumeAfter(synced Head) Head {
	last := w.end
	if last.Seq-w.valid.Seq > maxSkip {
		last = w.valid
	}
	if synced.Seq >= last.Seq {
		return synced
	}
	return last
}
