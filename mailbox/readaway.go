package mailbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

const (
	remoteAnswer = 15 * time.Second // wait for the answer of another node
	movePause    = time.Second      // between looks for the new home of a name
	maxStarts    = 64               // of homes that a session tells apart
)

// A session gives its program mail of one subscription. It is a [mail.Session], or one at
// another node.
type session interface {
	// NextInto waits for mail: see [mail.Session.NextInto].
	NextInto(ctx context.Context, n int, dst []mail.Delivery, buf []byte) ([]mail.Delivery, []byte, error)
	// AddCredit lets n more mails be leased at once.
	AddCredit(ctx context.Context, n int) error
	// Close ends the session; broke: its reader broke off.
	Close(ctx context.Context, broke bool) error
}

// A followed session goes on at the new home of its box when that moves.
type followed struct {
	r         *reads
	name, sub string

	mu      sync.Mutex
	reading wire.LeaseMail
	now     session
	place   place // of the box now
	closed  bool
	starts  map[uint64]proto.PeerID // which home gave what, by its start
}

// begin begins a session at a box of another node.
func (r *reads) begin(ctx context.Context, name string, p place, sub string, l wire.LeaseMail) (*followed, error) {
	f := &followed{r: r, name: name, sub: sub, reading: l, starts: map[uint64]proto.PeerID{}}
	return f, f.begin(ctx, p)
}

// begin begins a session where the box is.
func (f *followed) begin(ctx context.Context, p place) error {
	f.mu.Lock()
	reading := f.reading
	f.mu.Unlock()
	now, err := f.r.session(ctx, p, f.sub, reading)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.now, f.place = now, p
	more, closed := f.reading.Max-reading.Max, f.closed
	f.mu.Unlock()
	switch {
	case closed:
		return errors.Join(errSessionEnded, now.Close(ctx, false))
	case more > 0:
		return now.AddCredit(ctx, more)
	}
	return nil
}

// session begins a session, here or on another node.
func (r *reads) session(ctx context.Context, p place, sub string, l wire.LeaseMail) (session, error) {
	if p.home != r.self {
		r.want(p.home)
		return r.exchanges.with(p.home).home.begin(p, sub, l)
	}
	k := r.ledger.broker()
	if k == nil {
		return nil, noBox(p, sub)
	}
	s, err := k.Read(ctx, mail.Reading{Box: p.name, Subscription: sub, Reader: l.Reader, Priority: l.Priority, Credit: max(l.Max, 1)})
	return s, r.atHome(p, failure(p, sub, err))
}

func (f *followed) current() (session, place) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, f.place
}

// given notes which home gave deliveries: their handles are for that one.
func (f *followed) given(home proto.PeerID, all []mail.Delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range all {
		if f.starts[d.Handle.Boot] == home {
			continue
		}
		if len(f.starts) == maxStarts {
			delete(f.starts, slices.Min(slices.Collect(maps.Keys(f.starts))))
		}
		f.starts[d.Handle.Boot] = home
	}
}

// forHome returns settlements without those of what other homes gave: at this one their handles
// may be those of other mail. Old says which these are.
func (f *followed) forHome(home proto.PeerID, what []mail.Settlement) (_ []mail.Settlement, old []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, w := range what {
		if from, known := f.starts[w.Handle.Boot]; known && from != home {
			old = append(old, i)
		}
	}
	if len(old) == 0 {
		return what, nil
	}
	what = slices.Clone(what)
	for _, i := range old {
		what[i].Handle = box.Handle{} // which no home knows
	}
	return what, old
}

// NextInto implements [session].
func (f *followed) NextInto(ctx context.Context, n int, dst []mail.Delivery, buf []byte) ([]mail.Delivery, []byte, error) {
	for {
		now, p := f.current()
		out, buf, err := now.NextInto(ctx, n, dst, buf)
		f.given(p.home, out[len(dst):])
		if moved, ok := errors.AsType[*remoteError](err); ok && moved.code == proto.CodeMoved {
			if p, err = f.r.awaitMove(ctx, f.name, moved); err == nil {
				err = f.begin(ctx, p)
			}
			if err == nil {
				continue
			}
		}
		return out, buf, f.r.failure(p, f.sub, err)
	}
}

// AddCredit implements [session].
func (f *followed) AddCredit(ctx context.Context, n int) error {
	f.mu.Lock()
	f.reading.Max += max(n, 0)
	now := f.now
	f.mu.Unlock()
	return now.AddCredit(ctx, n)
}

// Close implements [session].
func (f *followed) Close(ctx context.Context, broke bool) error {
	f.mu.Lock()
	f.closed = true
	now := f.now
	f.mu.Unlock()
	return now.Close(ctx, broke)
}

// awaitMove returns the box where it has moved to, as soon as this node knows its new home by
// the deeds of the mesh; it does not take the word of the old one.
func (r *reads) awaitMove(ctx context.Context, name string, moved *remoteError) (place, error) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for end := r.clock.Mono() + remoteAnswer; ; {
		select {
		case <-ctx.Done():
			return place{}, ctx.Err()
		case <-pause.C:
		}
		p, err := r.places.find(name)
		switch {
		case err != nil:
			return p, err
		case p.home != moved.home.peer:
			return p, nil
		case r.clock.Mono() >= end:
			to := r.book.NameOf(moved.movedTo)
			return p, &wire.HomeError{Home: to, Err: fmt.Errorf("%w: the home of %s has moved from %s to %s, which this node does not know yet: try again", wire.ErrMoved, p.text, moved.home.name(), to)}
		}
		pause.Reset(movePause)
	}
}

// leaseAway is Lease for a box of another node.
func (r *reads) leaseAway(ctx context.Context, name string, p place, sub string, l wire.LeaseMail) ([]wire.DeliveredMail, error) {
	for {
		given, err := r.leaseOnce(ctx, p, sub, l)
		if moved, ok := errors.AsType[*remoteError](err); ok && moved.code == proto.CodeMoved {
			if p, err = r.awaitMove(ctx, name, moved); err != nil {
				return nil, err
			}
			if p.home == r.self {
				return r.lease(ctx, name, sub, l)
			}
			continue
		}
		if err != nil {
			return nil, r.failure(p, sub, err)
		}
		return r.views.delivered(p, given)
	}
}

// leaseOnce takes one batch of a box of another node, and leaves it leased.
func (r *reads) leaseOnce(ctx context.Context, p place, sub string, l wire.LeaseMail) (given []mail.Delivery, err error) {
	r.want(p.home)
	h := &r.exchanges.with(p.home).home
	s, err := h.begin(p, sub, l)
	if err != nil {
		return nil, err
	}
	s.fixed = true
	most := max(l.Max, 1)
	waiting, stop := context.WithTimeout(ctx, time.Duration(l.Wait))
	given, _, err = s.NextInto(waiting, most, nil, nil)
	stop()
	late := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
	if err == nil || late {
		s.end(proto.ReadLeave)
		given, err = s.rest(ctx, time.Duration(l.Wait), most, given)
	}
	s.end(proto.ReadReturn) // what comes now is given back
	if err != nil && len(given) > 0 {
		_, _ = h.settle(p, sub, returned(given)) // if there are too many, they lapse
	}
	return given, err
}

// rest returns what comes until the peer has ended the session, at most n mails together with
// those that came before. The session has waited for some time already.
func (s *remoteSession) rest(ctx context.Context, waited time.Duration, n int, given []mail.Delivery) (_ []mail.Delivery, err error) {
	limit := remoteAnswer
	if _, linked := s.isOpen(); !linked {
		limit = max(limit-waited, 0)
	}
	answer, stop := context.WithTimeout(ctx, limit)
	defer stop()
	for err == nil && len(given) < n {
		given, _, err = s.NextInto(answer, n-len(given), given, nil)
	}
	switch {
	case ctx.Err() != nil:
		return given, ctx.Err()
	case errors.Is(err, errSessionEnded), len(given) > 0:
		return given, nil
	case errors.Is(err, context.DeadlineExceeded):
		return nil, s.home.unreachable()
	}
	return given, err
}

// returned gives deliveries back that did not reach their reader.
func returned(given []mail.Delivery) []mail.Settlement {
	what := make([]mail.Settlement, len(given))
	for i, d := range given {
		what[i] = mail.Settlement{Handle: d.Handle, Op: box.Return}
	}
	return what
}

// failure returns an error of a session or of settlements at another node in the terms of
// the API.
func (r *reads) failure(p place, sub string, err error) error {
	e, ok := errors.AsType[*remoteError](err)
	if !ok {
		return r.atHome(p, failure(p, sub, err))
	}
	home, name := e.home.name(), strings.TrimPrefix(p.name, proto.AgentPrefix)
	name, _, _ = strings.Cut(name, "@")
	verb := "mailbox"
	if p.kind == wire.BoxTopic {
		verb, name = "topic", strings.TrimPrefix(p.name, proto.TopicPrefix)
	}
	switch e.code {
	case proto.CodeDenied:
		return fmt.Errorf("%w: %s does not allow this node to read %s: there, balefire-node %s set %s --allow-read peer:%s does", wire.ErrDenied, home, p.path(sub), verb, name, r.book.NameOf(r.self))
	case proto.CodeNoHandler:
		return fmt.Errorf("%w: there is no %s on %s: %s", wire.ErrNotFound, p.path(sub), home, e.detail)
	case proto.CodeMoved:
		return &wire.HomeError{Home: r.book.NameOf(e.movedTo), Err: fmt.Errorf("%w: the home of %s is not %s any more: its mail is delivered again at the new one", wire.ErrMoved, p.path(sub), home)}
	case proto.CodeHeld:
		return r.atHome(p, fmt.Errorf("%w: %s on %s: %s", wire.ErrHeld, p.path(sub), home, e.detail))
	case proto.CodeDraining:
		return r.atHome(p, fmt.Errorf("%w: %s on %s: %s", wire.ErrDraining, p.path(sub), home, e.detail))
	}
	return refusal(e.code, fmt.Sprintf("%s on %s: %s", p.path(sub), home, e.detail))
}

// atHome adds the home of a box to an error with which a program may go on elsewhere, or later.
func (r *reads) atHome(p place, err error) error {
	if e := (*wire.HomeError)(nil); errors.As(err, &e) || !errors.Is(err, wire.ErrMoved) && !errors.Is(err, wire.ErrHeld) && !errors.Is(err, wire.ErrDraining) {
		return err
	}
	return &wire.HomeError{Home: r.book.NameOf(p.home), Err: err}
}

// settleAt settles deliveries of a box, here or on another node.
func (r *reads) settleAt(ctx context.Context, p place, k *mail.Broker, sub string, what []mail.Settlement) ([]mail.Settled, error) {
	if k != nil {
		settled, err := k.Settle(ctx, p.name, sub, what)
		return settled, failure(p, sub, unknown(err))
	}
	s, err := r.settleAway(p, sub, what)
	if err != nil {
		return nil, err
	}
	return r.settledAway(ctx, p, sub, s)
}

// settleAway queues settlements for another node.
func (r *reads) settleAway(p place, sub string, what []mail.Settlement) (*remoteSettle, error) {
	r.want(p.home)
	return r.exchanges.with(p.home).home.settle(p, sub, what)
}

func (r *reads) settledAway(ctx context.Context, p place, sub string, s *remoteSettle) ([]mail.Settled, error) {
	settled, err := r.exchanges.with(p.home).home.wait(ctx, s)
	return settled, r.failure(p, sub, err)
}
