package agent

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
)

const (
	// MaxInline is how many bytes of output a result holds itself; more of it
	// is in a file.
	MaxInline = 256 << 10
	// defaultMaxOutput is how many bytes of output are kept in all.
	defaultMaxOutput = 10 << 20
)

// An Output collects what a handler writes, in memory at first and in a file
// once it is long. It takes everything it is given and keeps the beginning: a
// program must not fail because it says too much. It is safe for concurrent use.
type Output struct {
	dir string
	max int64

	mu        sync.Mutex
	mem       bytes.Buffer
	file      *os.File
	size      int64
	truncated bool
	err       error // the file could not be written
}

// NewOutput returns an output that keeps at most max bytes (0: 10 MiB). Files
// are made in dir; without one everything stays in memory.
func NewOutput(dir string, max int64) *Output {
	return &Output{dir: dir, max: cmp.Or(max, defaultMaxOutput)}
}

// Write never fails.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	keep := p[:min(int64(len(p)), max(0, o.max-o.size))]
	if len(keep) < len(p) || o.err != nil {
		o.truncated = true
	}
	if len(keep) > 0 && o.err == nil {
		o.err = o.store(keep)
	}
	return len(p), nil
}

func (o *Output) store(p []byte) error {
	if o.file == nil && o.dir != "" && o.size+int64(len(p)) > MaxInline {
		if err := o.spill(); err != nil {
			return err
		}
	}
	if o.file == nil {
		o.mem.Write(p)
		o.size += int64(len(p))
		return nil
	}
	n, err := o.file.Write(p)
	o.size += int64(n)
	return err
}

// spill moves what is in memory to a file. If it cannot, it stays in memory.
func (o *Output) spill() error {
	f, err := os.CreateTemp(o.dir, "output-*")
	if err != nil {
		return err
	}
	if _, err := f.Write(o.mem.Bytes()); err != nil {
		return errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	o.file, o.mem = f, bytes.Buffer{}
	return nil
}

// Into ends the output and puts it into r. Output that could not be kept does
// not change the outcome: the work is done or not whatever became of its words.
func (o *Output) Into(r *Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file != nil {
		r.OutputFile = o.file.Name()
		o.err = errors.Join(o.err, o.file.Close())
	} else {
		r.Output = bytes.Clone(o.mem.Bytes())
	}
	r.OutputSize, r.Truncated = o.size, o.truncated || o.err != nil
	if o.err != nil && r.Err == "" {
		r.Err = fmt.Sprintf("keep output: %v", o.err)
	}
}
