package why

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Mail explains mail and boxes as far as this node has them. Home is the node that is to get
// the mail next, or has the box; zero: none.
type Mail interface {
	WhyMail(ctx context.Context, id string) (_ wire.Blocker, home proto.PeerID, err error)
	WhyBox(ctx context.Context, name string) (_ wire.Blocker, home proto.PeerID, err error)
}

// box explains a mailbox or a topic, and reports whether the subject can be one.
func (w *walk) box(ctx context.Context, subject string) (is bool, err error) {
	full := strings.HasPrefix(subject, proto.AgentPrefix) || strings.HasPrefix(subject, proto.TopicPrefix)
	if !full && idRE.MatchString(subject) {
		return false, nil
	}
	b, home, err := w.mail.WhyBox(ctx, subject)
	if err != nil {
		return full, err
	}
	w.Blocker = b
	if b.Cause.Code != wire.NoteBoxElsewhere || !w.Net.Connected(home) {
		w.toHome(home)
	}
	return true, nil
}

// mailed explains a mail. The error is unknown if there is none with this id.
func (w *walk) mailed(ctx context.Context, id string, unknown error) error {
	b, home, err := w.mail.WhyMail(ctx, id)
	if errors.Is(err, wire.ErrNotFound) {
		return fmt.Errorf("%w; no mail here has that id, and none that ended since this node started", unknown)
	}
	if err != nil {
		return err
	}
	w.Blocker = b
	if c := w.ClockDoubt(); c != nil {
		w.step(wire.NoteClockDoubted, wire.NoteArgs{Clock: c})
	}
	w.toHome(home)
	return nil
}

// toHome replaces the cause if there is no path to the node that is to get the mail. A name of
// the mesh whose home is lost can get another one.
func (w *walk) toHome(home proto.PeerID) {
	if home.IsZero() || home == w.Self.Peer {
		return
	}
	box := w.Cause.Box
	known, ok := w.Book.Get(home)
	switch {
	case !ok:
		w.cause(wire.NotePeerUnknown, wire.NoteArgs{Peer: w.Book.NameOf(home), Box: box})
	case !w.Net.Connected(home):
		w.Next = nil
		w.unreachable(w.reach(known))
		w.Cause.Box = box
	default:
		w.step(wire.StepConnected, wire.NoteArgs{Peer: known.Label(), Other: w.relayTo(home)})
		if w.Cause.Code == wire.NoteMailSent {
			w.hangs(w.reach(known))
		}
		return
	}
	state, since, gone := w.queues.HomeGone(home)
	if !gone || strings.Contains(box, "@") {
		return
	}
	a := wire.NoteArgs{Box: box, Peer: w.Book.NameOf(home), State: state}
	if !since.IsZero() {
		a.Seconds = w.Clock.Now().Sub(since).Seconds()
	}
	w.cause(wire.NoteBoxHomeLost, a)
}
