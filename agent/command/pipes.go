package command

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// drainWait is how long output is awaited once no process that could write it is
// left.
const drainWait = time.Second

// pipes are a program's standard streams: our ends and the child's.
type pipes struct {
	in, out, err *os.File    // in is nil when the program gets no input
	childEnds    [3]*os.File // until the program has started
}

func openPipes(cmd *exec.Cmd, stdin bool) (*pipes, error) {
	p := &pipes{}
	var errs [3]error
	if stdin {
		p.childEnds[0], p.in, errs[0] = os.Pipe()
	}
	p.out, p.childEnds[1], errs[1] = os.Pipe()
	p.err, p.childEnds[2], errs[2] = os.Pipe()
	if err := errors.Join(errs[:]...); err != nil {
		p.close()
		return nil, err
	}
	if stdin {
		cmd.Stdin = p.childEnds[0]
	}
	cmd.Stdout, cmd.Stderr = p.childEnds[1], p.childEnds[2]
	return p, nil
}

// started closes the child's ends, which the program now has.
func (p *pipes) started() { closeAll(p.childEnds[:]...) }

func (p *pipes) close() {
	closeAll(p.in, p.out, p.err)
	closeAll(p.childEnds[:]...)
}

// closeAll closes pipes; errors do not matter.
func closeAll(list ...*os.File) {
	for _, f := range list {
		if f != nil {
			_ = f.Close()
		}
	}
}

// feed writes body to the program and then closes its input. If the body cannot
// be read, it calls broken and leaves the input open until stopped is closed: the
// program must not see an end. The returned channel is closed when it is done.
func (p *pipes) feed(body io.Reader, broken func(error), stopped <-chan struct{}) <-chan struct{} {
	done := make(chan struct{})
	if p.in == nil {
		close(done)
		return done
	}
	src := &sourceReader{r: body}
	go func() {
		defer close(done)
		defer closeAll(p.in)
		_, _ = io.Copy(p.in, src) // a program may end without reading its input
		if src.err != nil {
			broken(src.err)
			<-stopped
		}
	}()
	return done
}

// A sourceReader records the error of its reader, to distinguish it from one of
// the writer.
type sourceReader struct {
	r   io.Reader
	err error
}

func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// collect copies the program's output. The channel is closed at its end.
func (p *pipes) collect(stdout, stderr io.Writer) <-chan struct{} {
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(stdout, p.out) })
	wg.Go(func() { _, _ = io.Copy(stderr, p.err) })
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	return done
}

// drain waits for the end of both, but not for another process that inherited the
// program's streams.
func (p *pipes) drain(stdinDone, outputDone <-chan struct{}) {
	if p.in != nil {
		_ = p.in.SetWriteDeadline(time.Unix(1, 0)) // nobody reads any more
	}
	<-stdinDone
	limit := time.NewTimer(drainWait)
	defer limit.Stop()
	select {
	case <-outputDone:
	case <-limit.C:
	}
	closeAll(p.out, p.err)
	<-outputDone
}

// A tail keeps the last bytes written to it.
type tail struct {
	max  int
	text []byte
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p[max(0, len(p)-t.max):]...)
	t.text = t.text[max(0, len(t.text)-t.max):]
	return len(p), nil
}

// String returns what was kept, as text.
func (t *tail) String() string { return strings.ToValidUTF8(string(t.text), "?") }
