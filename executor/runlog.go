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
	runs uint64            // that began
	last uint64            // a line that is written, as new as is known
	mark uint64            // what the file says
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

// start writes the start of a run and returns the number for its end. A start that failed may be
// in the audit all the same: it stays open then, for the next start of the node.
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
	if err != nil && !errors.Is(err, audit.ErrUnknown) && !errors.Is(err, audit.ErrFailed) {
		delete(l.open, run)
	}
	return run, err
}

// end writes the end of a run.
func (l *runLog) end(ctx context.Context, run uint64, e audit.Entry) error {
	seq, err := l.audit.Append(ctx, e)
	if err != nil {
		return err // the run stays open
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = max(l.last, seq)
	delete(l.open, run)
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
	if err := disk.WriteFile(l.path, fmt.Appendf(nil, "%d\n", mark), 0o600); err != nil {
		return err
	}
	l.mark = mark
	return nil
}
