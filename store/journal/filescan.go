package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// A fileScan is what reading one file from its header to its end found.
type fileScan struct {
	header    header
	lines     uint64   // lines behind the header
	size      int64    // bytes
	end       Head     // where the last readable line claims to be
	valid     Head     // the end of what is whole, from the header on
	cut       int64    // bytes up to there
	bad       []Breach // what is wrong behind it, at most maxBreaches
	after     int      // sound lines behind the first bad one
	misplaced bool     // the first bad one is a line in the wrong place
}

// A Breach is one place where the record is not what was written.
type Breach struct {
	File   string
	Line   int    // of the file, from 1; 0 when it is the file itself
	Seq    uint64 // number of the last sound line before it
	Reason string
}

func (b Breach) String() string {
	if b.Line == 0 {
		return fmt.Sprintf("%s: %s", b.File, b.Reason)
	}
	return fmt.Sprintf("%s:%d: %s", b.File, b.Line, b.Reason)
}

// scanFile reads the file called name. If it has no readable header, the chain
// is taken to go on from prev. Each place that the chain passes is given to pass.
func scanFile(dir, name string, prev Head, pass func(Head)) (fileScan, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return fileScan{}, err
	}
	defer f.Close()
	return scanLines(f, name, prev, pass)
}

// scanLines is walkFile for a file that is open as r.
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

// take moves w over l, or says what is wrong with it.
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

// torn reports whether all that is wrong with w, the newest file, is what a
// power cut in the middle of a write explains: damage behind every line that
// is known to have been synced, no larger than one write.
func (w fileScan) torn(last Head, known bool) bool {
	return len(w.bad) > 0 && !w.misplaced && w.cut > 0 && w.size-w.cut <= maxGroup &&
		((known && w.valid.Seq >= last.Seq) || (!known && w.after == 0))
}

// maxSkip is how many numbers a damaged file may be believed to hold.
const maxSkip = 1 << 24

// resumeAfter returns the place that the record goes on from behind damage:
// no number that was given before may be given again, and a damaged line that
// claims an absurd one is not believed.
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
