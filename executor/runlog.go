package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/disk"
)

// runsName is the name of the file in the folder of the audit with the number of a line: each
// run that began before that line has its end there. A start of the node reads the audit from that line.
const runsName = "RUNS"

// markEvery is how many lines the number in the file lags behind at most, but for runs that last.
const markEvery = 50_000

// A runLog writes the starts and ends of runs to the audit, and knows which have no end yet.
type runLog struct {
	audit Audit
	path  string // of the file runsName
	every uint64 // see markEvery

	mu   sync.Mutex
	open map[uint64]uint64 // a line before the start of each run without an end, by a number of the run
	late []runEnd          // that could not be written
	runs uint64            // that began
	last uint64            // a line that is written, as new as is known
	mark uint64            // what the file says
}

// A runEnd is the record of the end of a run.
type runEnd struct {
	run   uint64
	entry audit.Entry
}

func newRunLog(a Audit, dir string) *runLog {
	return &runLog{audit: a, path: filepath.Join(dir, audit.DirName, runsName), every: markEvery, open: map[uint64]uint64{}}
}

// load returns what the file says; 0: read all.
func (l *runLog) load() uint64 {
	b, err := os.ReadFile(l.path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64) // 0 if it is damaged
	return n
}

// start writes the start of a run and returns the number for its end. A start of unknown outcome
// may be in the audit: it stays open, for the next start of the node. After [audit.ErrFailed] too,
// but then no end is written either, and the file stays as it is.
func (l *runLog) start(ctx context.Context, e audit.Entry) (uint64, error) {
	l.mu.Lock()
	l.runs++
	run := l.runs
	l.open[run] = l.last
	l.mu.Unlock()
	seq, err := l.audit.Append(ctx, e)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = max(l.last, seq)
	if err != nil && !errors.Is(err, audit.ErrUnknown) {
		delete(l.open, run)
	}
	return run, err
}

// end writes the end of a run, and behind it those that could not be written. One that cannot
// is kept for the next end, and its run stays open.
func (l *runLog) end(ctx context.Context, run uint64, e audit.Entry) error {
	if err := l.write(ctx, runEnd{run, e}); err != nil {
		return err
	}
	l.mu.Lock()
	late := l.late
	l.late = nil
	l.mu.Unlock()
	for _, x := range late {
		_ = l.write(ctx, x) // it was reported
	}
	return nil
}

func (l *runLog) write(ctx context.Context, x runEnd) error {
	seq, err := l.audit.Append(ctx, x.entry)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.late = append(l.late, x)
		return err
	}
	l.last = max(l.last, seq)
	delete(l.open, x.run)
	oldest := l.last
	for _, before := range l.open {
		oldest = min(oldest, before)
	}
	if oldest >= l.mark+l.every {
		_ = l.save(oldest) // the file lags, and the next end tries again
	}
	return nil
}

// save writes the file. l.mu is held, or nothing runs yet.
func (l *runLog) save(mark uint64) error {
	if err := disk.WriteFile(l.path, fmt.Appendf(nil, "%d\n", mark)); err != nil {
		return err
	}
	l.mark = mark
	return nil
}
