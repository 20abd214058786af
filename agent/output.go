package agent

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// DefaultMaxOutput is how many bytes of output are kept in total.
const DefaultMaxOutput = 10 << 20

// The reasons to stop a run because of its output, as returned by context.Cause.
var (
	// ErrOutputTooLarge stops a run that exceeds its output limit.
	ErrOutputTooLarge = errors.New("OUTPUT_TOO_LARGE")
	// ErrNoSpace stops a run for whose output there is no disk space.
	ErrNoSpace = errors.New("NO_ROOM")
)

// OutputConfig sets how much output is kept, and what happens to a run that
// writes more.
type OutputConfig struct {
	Max  int64           // bytes; default 10 MiB. A lower MaxOutput of the run takes precedence
	Cut  bool            // output beyond Max is dropped, and the run continues; default: the run is stopped and fails permanently
	Stop func(why error) // called once, when the run cannot succeed any more; default: none
}

// An Output collects what a handler writes, first in memory and then in a file
// once it is large. It accepts everything and keeps the beginning. A run whose
// output is not kept whole does not succeed, unless its handler is configured to
// keep only the beginning. It is safe for concurrent use.
type Output struct {
	cfg       OutputConfig
	dir       string
	quota     handler.Quota // nil: no limit
	limitName string        // source of the limit

	mu        sync.Mutex
	mem       bytes.Buffer
	file      *os.File
	size      int64
	truncated bool
	err       error // why the run cannot succeed any more
}

// NewOutput returns the output of r. Files are created in its folder; without one
// everything stays in memory.
func NewOutput(r *handler.Run, cfg OutputConfig) *Output {
	o := &Output{cfg: cfg, dir: r.Dir, quota: r.Quota, limitName: "max_output of the handler"}
	o.cfg.Max = cmp.Or(cfg.Max, DefaultMaxOutput)
	if r.MaxOutput > 0 && r.MaxOutput < o.cfg.Max {
		o.cfg.Max, o.limitName = r.MaxOutput, "max_result of the task"
	}
	return o
}

// Write never fails.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	keep := p[:min(int64(len(p)), max(0, o.cfg.Max-o.size))]
	if len(keep) > 0 && o.err == nil {
		o.fail(o.store(keep))
	}
	if len(keep) == len(p) && o.err == nil {
		return len(p), nil
	}
	o.truncated = true
	if !o.cfg.Cut {
		o.fail(fmt.Errorf("%w: more than %d bytes of output (%s)", ErrOutputTooLarge, o.cfg.Max, o.limitName))
	}
	return len(p), nil
}

// fail records the first reason why the run cannot succeed, and stops it.
func (o *Output) fail(err error) {
	if err == nil || o.err != nil {
		return
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	o.err = err
	if o.cfg.Stop != nil {
		o.cfg.Stop(err)
	}
}

func (o *Output) store(p []byte) error {
	if o.file == nil && o.dir != "" && o.size+int64(len(p)) > proto.MaxInlineBody {
		if err := o.moveToFile(); err != nil {
			return err
		}
	}
	if o.file == nil {
		o.mem.Write(p)
		o.size += int64(len(p))
		return nil
	}
	n, err := o.writeFile(o.file, p)
	o.size += int64(n)
	return err
}

// writeFile writes p to f if the quota allows it.
func (o *Output) writeFile(f *os.File, p []byte) (n int, err error) {
	if o.quota == nil {
		return f.Write(p)
	}
	if !o.quota.Reserve(int64(len(p))) {
		return 0, fmt.Errorf("%w: the disk is at its reserve, and the output has %d bytes so far", ErrNoSpace, o.size)
	}
	n, err = f.Write(p)
	o.quota.Settle(int64(len(p)), int64(n))
	return n, err
}

// moveToFile moves the buffered output to a file. On failure it stays in memory.
func (o *Output) moveToFile() error {
	f, err := os.CreateTemp(o.dir, "output-*")
	if err != nil {
		return fmt.Errorf("keep output: %w", err)
	}
	if _, err := o.writeFile(f, o.mem.Bytes()); err != nil {
		return errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	o.file, o.mem = f, bytes.Buffer{}
	return nil
}

// Into closes the output and puts it into r. If output could not be kept, that
// decides the outcome: too large an output fails permanently, a run without disk
// space can be restarted. A permanent failure of the program itself is kept.
func (o *Output) Into(r *handler.Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file != nil {
		r.File = o.file.Name()
		if err := o.file.Close(); err != nil && o.err == nil {
			o.err = fmt.Errorf("keep output: %w", err)
		}
	} else {
		r.Output = bytes.Clone(o.mem.Bytes())
	}
	r.Size, r.Truncated = o.size, o.truncated
	switch {
	case o.err == nil && o.truncated && r.Outcome == handler.Success:
		r.Reason = fmt.Sprintf("the output was cut off after %d bytes (%s)", o.cfg.Max, o.limitName)
	case o.err == nil || r.Outcome == handler.Fail:
	case errors.Is(o.err, ErrOutputTooLarge):
		r.Outcome, r.Reason = handler.Fail, o.err.Error()
	case errors.Is(o.err, ErrNoSpace):
		r.Outcome, r.Reason = handler.NoSpace, o.err.Error()
	default:
		r.Outcome, r.Reason = handler.Retry, o.err.Error()
	}
}
