// Package audit keeps a tamper-evident, append-only record. After a successful Append
// the line is on disk, at its position in a chain of hashes; [Verify] detects every edit,
// insertion and reordering of lines, and every deletion but that of the oldest files, which
// go by their age (I19).
//
//	00000000000000000001.jsonl   {"journal":1,"first":1,"start":h0,…}
//	                             {"seq":1,…,"hash":h1}    h1 = SHA-256(domain ‖ h0 ‖ line 1)
//	                             {"seq":2,…,"hash":h2}    h2 = SHA-256(domain ‖ h1 ‖ line 2)
//	00000000000000000003.jsonl   {"journal":1,"first":3,"start":h2,…}
//	                             …
//	HEAD                         first and last hash known, rewritten in place after each fsync
//
// The chain proves order and completeness unless an attacker can rewrite all of it. To
// detect that too, store [Journal.Head] elsewhere from time to time and pass it to
// [Verify].
//
// Concurrent appenders share one fsync: the first of them writes for all, and no
// goroutine runs while nothing is appended. Only one process opens a journal at a time;
// the lock of the data directory ensures this.
package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/clock"
)

// The errors to test for.
var (
	// ErrClosed is returned by Append after Close.
	ErrClosed = errors.New("audit: closed")
	// ErrFailed is returned by every Append after a failed fsync: the state on disk is
	// unknown, and the journal must be reopened.
	ErrFailed = errors.New("audit: failed, open it again")
	// ErrTooLarge is returned for an entry whose line would exceed MaxLine.
	ErrTooLarge = errors.New("audit: entry too large")
	// ErrUnknown is returned when the caller gave up while its line was being written:
	// the line may or may not be on disk.
	ErrUnknown = errors.New("audit: outcome unknown")
	// ErrBroken is returned by Verify, and by Scan at its end, if the record differs from
	// what was written.
	ErrBroken = errors.New("audit: chain broken")
	// ErrUnproven is returned by Verify if the record is whole, but begins behind each known
	// position: it may be another one.
	ErrUnproven = errors.New("audit: each known head is older than what is kept")
)

const (
	// DirName is the name of the record's folder in the folder of a node.
	DirName = "audit"
	// MaxLine is the length limit of a line in bytes, including its hash.
	MaxLine = 64 << 10
	// maxGroup is how many bytes one fsync covers at most: a power cut does not explain
	// more damage than this at the end of a file.
	maxGroup = 1 << 20
)

// Config tunes a journal. The zero value of each field means its default.
type Config struct {
	MaxFile int64         // bytes after which a new file is started; default 100 MB
	Keep    time.Duration // whole files older than this are removed; default 90 days
	Clock   clock.Clock   // default clock.System()

	fault func(op string) error // tests: an error makes "write", "sync", "rotate" or "begin" (the file is made) fail
}

func (c Config) withDefaults() Config {
	c.MaxFile = cmp.Or(c.MaxFile, 100e6)
	c.Keep = cmp.Or(c.Keep, 90*24*time.Hour)
	if c.Clock.IsZero() {
		c.Clock = clock.System()
	}
	if c.fault == nil {
		c.fault = func(string) error { return nil }
	}
	return c
}

// A Journal is an open record. It is safe for concurrent use.
type Journal struct {
	dir     string
	cfg     Config
	repairs []string // what Open had to repair, oldest first; empty after a clean stop

	leader chan struct{} // contains one value while a goroutine writes

	mu     sync.Mutex // guards the fields up to the next blank line
	queue  []*waiter
	closed bool
	failed error
	last   Head

	// The fields below belong to the current leader.
	file     *os.File
	size     int64     // bytes of file that are durable
	created  time.Time // when file was created
	firstSeq uint64    // number of its first line
	base     Head      // position before the oldest file
	headF    *os.File
	buf      []byte
}

// A waiter is one Append in the queue.
type waiter struct {
	entry []byte // a JSON object
	seq   uint64
	err   error
	done  chan struct{}
}

// Append writes e and returns its number once it is on disk. An error other
// than [ErrUnknown] and [ErrFailed] means that nothing was written.
func (j *Journal) Append(ctx context.Context, e Entry) (uint64, error) {
	w, err := j.enqueue(ctx, e)
	if err != nil {
		return 0, fmt.Errorf("append %s: %w", e.Action, err)
	}
	select {
	case <-w.done:
	case j.leader <- struct{}{}:
		j.commitQueue(w)
		<-j.leader
	case <-ctx.Done():
		return 0, fmt.Errorf("append %s: %w", e.Action, j.giveUp(w, ctx.Err()))
	}
	if w.err != nil {
		return 0, fmt.Errorf("append %s: %w", e.Action, w.err)
	}
	return w.seq, nil
}

// Head returns the number and hash of the last line on disk. If it is stored
// elsewhere, [Verify] can later check whether that line is still there.
func (j *Journal) Head() Head {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last
}

// Err returns the error that made the journal refuse writes, or nil.
func (j *Journal) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failed
}

// Close writes what is queued and releases the files.
func (j *Journal) Close() error {
	j.mu.Lock()
	was := j.closed
	j.closed = true
	j.mu.Unlock()
	if was {
		return nil
	}
	j.leader <- struct{}{}
	defer func() { <-j.leader }()
	for group := j.takeGroup(); len(group) > 0; group = j.takeGroup() {
		j.commitGroup(group)
	}
	return errors.Join(j.headF.Sync(), j.headF.Close(), j.file.Close())
}

func (j *Journal) enqueue(ctx context.Context, e Entry) (*waiter, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if e.Time.IsZero() {
		e.Time = j.cfg.Clock.Now()
	}
	text, err := e.encode()
	if err != nil {
		return nil, err
	}
	w := &waiter{entry: text, done: make(chan struct{})}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.closed:
		return nil, ErrClosed
	case j.failed != nil:
		return nil, fmt.Errorf("%w: %w", ErrFailed, j.failed)
	}
	j.queue = append(j.queue, w)
	return w, nil
}

// giveUp removes w from the queue, unless it is already being written.
func (j *Journal) giveUp(w *waiter, cause error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if i := slices.Index(j.queue, w); i >= 0 {
		j.queue = slices.Delete(j.queue, i, i+1)
		return cause
	}
	return fmt.Errorf("%w: %w", ErrUnknown, cause)
}

// commitQueue writes groups until own has been written.
func (j *Journal) commitQueue(own *waiter) {
	for {
		select {
		case <-own.done:
			return
		default:
		}
		j.commitGroup(j.takeGroup())
	}
}

// commitGroup writes group and answers its waiters.
func (j *Journal) commitGroup(group []*waiter) {
	err := j.commit(group)
	for _, w := range group {
		w.err = err
		close(w.done)
	}
}

// takeGroup takes from the queue as much as one fsync may cover.
func (j *Journal) takeGroup() []*waiter {
	j.mu.Lock()
	defer j.mu.Unlock()
	n, size := 0, 0
	for n < len(j.queue) {
		size += len(j.queue[n].entry) + lineOverhead
		if n > 0 && size > maxGroup {
			break
		}
		n++
	}
	group := slices.Clone(j.queue[:n])
	j.queue = slices.Delete(j.queue, 0, n)
	return group
}

// commit makes group durable. Only the leader calls it.
func (j *Journal) commit(group []*waiter) error {
	if err := j.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	head := j.Head()
	j.buf = j.buf[:0]
	for _, w := range group {
		j.buf, head = appendLine(j.buf, head, w.entry)
		w.seq = head.Seq
	}
	if err := j.rotateIfDue(int64(len(j.buf))); err != nil {
		return fmt.Errorf("begin a new file: %w", err)
	}
	if err := j.write(j.buf); err != nil {
		return err
	}
	if err := writeHead(j.headF, heads{Base: j.base, Last: head}); err != nil {
		return j.fail(fmt.Errorf("write HEAD: %w", err))
	}
	j.mu.Lock()
	j.last = head
	j.mu.Unlock()
	return nil
}

// write appends b to the file and syncs. A write that failed, as on a full
// disk, is undone and the journal continues; a failed sync stops it, because the
// kernel may have dropped pages and will not report that again.
func (j *Journal) write(b []byte) error {
	err := j.cfg.fault("write")
	if err == nil {
		_, err = j.file.WriteAt(b, j.size)
	}
	if err != nil {
		if undo := j.file.Truncate(j.size); undo != nil {
			return j.fail(errors.Join(err, undo))
		}
		return err
	}
	if err := errors.Join(j.cfg.fault("sync"), j.file.Sync()); err != nil {
		return j.fail(fmt.Errorf("fsync: %w", err))
	}
	j.size += int64(len(b))
	return nil
}

func (j *Journal) fail(err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failed = cmp.Or(j.failed, err)
	return fmt.Errorf("%w: %w", ErrFailed, err)
}
