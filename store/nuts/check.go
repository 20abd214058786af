package nuts

import (
	"fmt"
	"path/filepath"
)

// A Report is what [Check] or [Salvage] found.
type Report struct {
	Generation   string // the folder that was read
	Segments     int    // log files
	Bytes        int64  // their size
	Transactions int    // whole transactions
	Entries      int    // puts and deletes that can be read
	TornBytes    int64  // written after the last commit; the next open moves them to quarantine
	Orphans      int    // transactions that were never committed but lie between others

	Lost     []Range // what Salvage could not read
	Partial  int     // transactions that Salvage copied and that may lack entries
	Imported int     // puts and deletes that Salvage copied
}

// A Range is a run of bytes of one log file, From to before To.
type Range struct {
	File     string
	From, To int64
}

// Clean reports whether the next open has nothing to repair.
func (r Report) Clean() bool { return r.TornBytes == 0 && r.Orphans == 0 && len(r.Lost) == 0 }

// Check reads the whole store in dir and changes nothing. The error is an
// [store.ErrCorrupt] when acknowledged data is damaged; a torn tail is not damage. The
// store should not be in use: a commit in progress looks like a torn tail.
func Check(dir string) (Report, error) {
	r, err := check(dir)
	if err != nil {
		return r, fmt.Errorf("check store %s: %w", dir, err)
	}
	return r, nil
}

func check(dir string) (Report, error) {
	n, ok, err := readCurrent(dir)
	if err != nil {
		return Report{}, err
	}
	if !ok {
		if err := checkEmpty(dir); err != nil {
			return Report{}, err
		}
		return Report{}, fmt.Errorf("nuts: there is no store in %s", dir)
	}
	gen := genDir(dir, n.num)
	r := Report{Generation: filepath.Base(gen)}
	s, err := surveyAll(gen, n.segment, func(int64, int64) {})
	if s != nil {
		r.Segments, r.Bytes = len(s.segments), s.bytes()
		r.Transactions, r.Entries = s.txs, s.entries
		r.TornBytes, r.Orphans = s.torn, len(s.orphans)
	}
	if err != nil {
		return r, err
	}
	return r, checkBucketFile(gen)
}
