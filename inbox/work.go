package inbox

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/balefire/balefire/proto"
)

// work calls the handler of a started task and sees where that leads.
func (s *shift) work(stay context.Context, c *claim) error {
	defer s.release(c)
	ran := s.handle(stay, c)
	why := s.desk.rise(c)
	if err := s.cfg.Fail(PointFinish, c.key.ID); err != nil {
		return err
	}
	l := s.limits
	l.maxAttempts = c.h.maxAttempts(c.rec.MaxAttempts)
	return s.conclude(stay, c, l.after(c.rec, ran, why, s.cfg.Rand()), ran)
}

// probe asks the handler of an interrupted task whether it had its effect.
func (s *shift) probe(stay context.Context, c *claim) error {
	defer s.release(c)
	found := s.ask(stay, c)
	if s.desk.rise(c) == stopNode {
		return nil // asked again at the next start
	}
	to := s.limits.recovered(c.rec, c.h.OnCrash, found, s.cfg.Rand())
	return s.conclude(stay, c, to, &Ran{End: Success})
}

// ask is one call of a handler's probe.
func (s *shift) ask(stay context.Context, c *claim) (found Probe) {
	ctx, done := s.attach(stay, c)
	defer done()
	r, ended := s.prepare(ctx, c)
	if ended != nil {
		return Unknown
	}
	defer r.close()
	if !s.begin(c) {
		return Unknown
	}
	defer func() {
		if p := recover(); p != nil {
			s.cfg.Logger.Error("a probe panicked", "task", c.key.String(), "panic", p)
			found = Unknown
		}
	}()
	return c.h.Handler.(Prober).Probe(ctx, &r.Run)
}

// handle is one run of the handler. A panic in it is its death.
func (s *shift) handle(stay context.Context, c *claim) (ran *Ran) {
	ctx, done := s.attach(stay, c)
	defer done()
	r, ended := s.prepare(ctx, c)
	if ended != nil {
		return ended
	}
	defer r.close()
	if !s.begin(c) {
		return &Ran{End: Stopped}
	}
	defer func() {
		if p := recover(); p != nil {
			ran = &Ran{End: Crashed, Reason: fmt.Sprintf("the handler panicked: %v", p), Stderr: string(debug.Stack())}
		}
	}()
	if ran = c.h.Handler.Run(ctx, &r.Run); ran == nil {
		ran = &Ran{End: Crashed, Reason: "the handler returned nothing"}
	}
	if len(ran.Output) > proto.MaxInlineBody {
		ran.Output, ran.Truncated = ran.Output[:proto.MaxInlineBody], true
	}
	return ran
}

// attach makes the context of a run, done already when the run was told to end.
// The caller calls done when the handler has returned.
func (s *shift) attach(stay context.Context, c *claim) (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(stay)
	s.desk.attach(c, cancel)
	return ctx, func() {
		if c.timer != nil {
			c.timer.Stop()
		}
		cancel(nil)
	}
}

// begin starts the time of a run. It reports false when the run was told to end
// before that.
func (s *shift) begin(c *claim) bool {
	if !s.desk.begin(c, s.cfg.Clock.Now(), s.cfg.Clock.Boot()) {
		return false
	}
	if t := c.h.Timeout; t > 0 {
		c.timer = time.AfterFunc(t, func() { s.desk.stop(c, stopTimeout, false) })
	}
	return true
}

// A prepared run has its body open.
type prepared struct {
	Run
	closer io.Closer
}

func (p *prepared) close() {
	if p.closer != nil {
		p.closer.Close()
	}
}

// prepare opens what the handler is given and checks the body against its signed
// digest (I9). ended is how the run ends when that cannot be done.
func (in *Inbox) prepare(ctx context.Context, c *claim) (r *prepared, ended *Ran) {
	content, err := in.content(c)
	if err != nil {
		return nil, &Ran{End: Retry, Reason: fmt.Sprintf("the task cannot be opened: %v", err)}
	}
	r = &prepared{Run: Run{
		ID: c.key.ID, Attempt: c.attempt, Epoch: c.epoch, Origin: c.origin,
		Content: content, BodySize: int64(content.BodySize), Kill: c.kill,
	}}
	err = in.body(ctx, c, content, r)
	switch {
	case errors.Is(err, errFetchAgain):
		return nil, &Ran{End: Unready, Reason: err.Error()}
	case errors.Is(err, errIntegrity):
		return nil, &Ran{End: unusable, Reason: err.Error()}
	case err != nil:
		return nil, &Ran{End: Retry, Reason: fmt.Sprintf("the body cannot be read: %v", err)}
	}
	return r, nil
}

// content opens the sealed content of a task.
func (in *Inbox) content(c *claim) (*proto.Content, error) {
	st := c.stored
	if st.Envelope != nil && len(st.Envelope.Body) == 0 && c.rec.BodyBlob != "" && !streamed(st.Envelope) {
		if in.with.Files == nil {
			return nil, errNoFiles
		}
		b, err := in.with.Files.Get(c.rec.BodyBlob)
		if err != nil {
			return nil, err
		}
		st.Envelope.Body = b
	}
	return in.with.Opener.Content(st)
}

// streamed reports whether the body of an envelope is a stream.
func streamed(e *proto.Envelope) bool {
	h, err := proto.ParseHeader(e.Header)
	_, _, ok := h.Stream()
	return err == nil && ok
}

// errIntegrity says that a body is not the one that was signed.
var errIntegrity = errors.New("inbox: the body is not what was signed")

// errFetchAgain says that the body of a granted task is gone. Its home has it.
var errFetchAgain = errors.New("inbox: the body is not here any more")

// body gives the run its body, once all of it has the signed digest. A streamed
// one is read twice: the handler must not see a byte of another.
func (in *Inbox) body(ctx context.Context, c *claim, content *proto.Content, r *prepared) error {
	if !streamed(c.stored.Envelope) {
		if err := checkDigest(content, sha256.Sum256(content.Body), len(content.Body)); err != nil {
			return err
		}
		r.Body = bytes.NewReader(content.Body)
		return nil
	}
	if in.with.Bodies == nil {
		return errNoFiles
	}
	if c.lease != nil && !in.with.Bodies.Has(c.rec.BodyBlob) {
		return errFetchAgain
	}
	if err := in.digest(ctx, c, content); err != nil {
		return err
	}
	rc, err := in.open(c)
	if err != nil {
		return err
	}
	r.Body, r.closer = rc, rc
	return nil
}

func (in *Inbox) open(c *claim) (io.ReadCloser, error) {
	h, err := proto.ParseHeader(c.stored.Envelope.Header)
	if err != nil {
		return nil, err
	}
	return in.with.Bodies.Open(c.rec.BodyBlob, [32]byte(c.stored.Key), h.Suite)
}

// digest reads a streamed body through once.
func (in *Inbox) digest(ctx context.Context, c *claim, content *proto.Content) error {
	if len(c.stored.Key) != 32 {
		return fmt.Errorf("%w: it has no key", errIntegrity)
	}
	rc, err := in.open(c)
	if err != nil {
		return err
	}
	defer rc.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, untilDone{ctx, rc})
	if err != nil {
		return err
	}
	return checkDigest(content, [32]byte(sum.Sum(nil)), int(n))
}

// untilDone reads until its context is done.
type untilDone struct {
	context.Context
	io.Reader
}

func (u untilDone) Read(p []byte) (int, error) {
	if err := u.Err(); err != nil {
		return 0, context.Cause(u)
	}
	return u.Reader.Read(p)
}

func checkDigest(c *proto.Content, sum [32]byte, size int) error {
	switch {
	case uint64(size) != c.BodySize:
		return fmt.Errorf("%w: %d bytes, signed were %d", errIntegrity, size, c.BodySize)
	case size == 0 && len(c.BodyDigest) == 0:
		return nil
	case !bytes.Equal(sum[:], c.BodyDigest):
		return fmt.Errorf("%w: its digest differs", errIntegrity)
	}
	return nil
}
