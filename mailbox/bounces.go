package mailbox

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// bounceLogEvery is how often a bounce that nobody gets is logged at info level; those in
// between are debug.
const bounceLogEvery = time.Minute

// bounces tells senders of the ends of their mails, or operators if nobody hears it.
type bounces struct {
	self   proto.PeerID
	clock  clock.Clock
	log    *slog.Logger
	event  func(kind string, p proto.PeerID, fields map[string]string)
	places *places
	mailer *mailer

	lost atomic.Int64 // monotonic time of the last line about a bounce that nobody gets; 0: none
}

// send tells a sender of the end of its mail.
func (b *bounces) send(ctx context.Context, t mail.Bounce) {
	l, err := proto.ParseLetter(t.Letter)
	if err != nil {
		b.log.Error("a bounce has a bad letter", "why", err) // a bug
		return
	}
	if t.Loop {
		err = invalid("%d mails caused one another before it: a bounce might cause the next", box.MaxHops)
	} else {
		err = b.deliver(ctx, t)
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	origin := t.Origin
	if origin.IsZero() {
		origin = b.self
	}
	if t.Loop {
		b.log.Warn("a mail in a loop of mails has ended, and its sender is not told", "mail", l.BounceOf, "from", origin, "sender", t.To)
		b.report(origin, &l, "loop", t.To, err.Error())
		return
	}
	b.unheard(origin, &l, unheardCause(err), t.To, err.Error())
}

// deliver puts a bounce into its box, or the spool for that. If the box closes for a handover
// meanwhile, or goes, it begins again.
func (b *bounces) deliver(ctx context.Context, t mail.Bounce) error {
	for {
		to, err := b.target(t)
		if err != nil {
			return err
		}
		sent, err := b.mailer.deliver(ctx, []place{to}, [][]byte{t.Letter}, false, &t)
		if err != nil {
			return err
		}
		now, _ := b.target(t)
		switch code := sent[0].Code; {
		case ctx.Err() == nil && (code == proto.CodeBusy || code == proto.CodeNoHandler && now.home != to.home):
			clock.Pause(ctx, partBusy)
		default:
			_, err = b.mailer.sentMail(to, sent[0], false)
			return err
		}
	}
}

// unheardCause returns why no box takes a bounce, in a word.
func unheardCause(err error) string {
	switch {
	case errors.Is(err, wire.ErrFull):
		return "full"
	case errors.Is(err, wire.ErrNotFound), errors.Is(err, wire.ErrInvalid):
		return "no_box"
	}
	return "refused"
}

// unheard reports a bounce that no box takes. The peer is the node that sent the mail, or at
// that node the one that sent the bounce, which may do so more than once.
func (b *bounces) unheard(p proto.PeerID, bounce *proto.Letter, cause, to, why string) {
	level, now, last := slog.LevelDebug, int64(b.clock.Mono()), b.lost.Load()
	if (last == 0 || now-last >= int64(bounceLogEvery)) && b.lost.CompareAndSwap(last, now) {
		level = slog.LevelInfo
	}
	b.log.Log(context.Background(), level, "mail has ended, and its sender is not told", "mail", bounce.BounceOf, "peer", p, "to", to, "cause", cause, "why", why)
	b.report(p, bounce, cause, to, why)
}

// report makes the event of a bounce that nobody gets, with a code of its cause.
func (b *bounces) report(p proto.PeerID, bounce *proto.Letter, cause, to, why string) {
	kind := wire.EventMailBounced
	if string(bounce.Type) == mail.TypeDone {
		kind = wire.EventMailUntold
	}
	b.event(kind, p, map[string]string{
		"mail": bounce.BounceOf.String(), "to": to, "why": why, "cause": cause, "bounce": string(bounce.Body),
	})
}

// target returns the box that a bounce goes to: that which the mail named, or the mailbox
// of the agent that sent it. A full name without a node is that of a mailbox of the mesh, if
// there is one.
func (b *bounces) target(t mail.Bounce) (place, error) {
	if strings.Contains(t.To, "@") || strings.HasPrefix(t.To, proto.TopicPrefix) {
		return b.places.find(t.To)
	}
	home := t.Origin
	if home.IsZero() {
		home = b.self
	}
	name, prefixed := strings.CutPrefix(t.To, proto.AgentPrefix)
	if name == "" {
		return place{}, invalid("the mail names no sender")
	}
	if !proto.ValidQueue(name) {
		return place{}, invalid("%.64q is no mailbox", t.To)
	}
	if prefixed {
		if p := b.places.named(proto.Target{Kind: proto.TargetAgent, Name: name}); p.generation > 0 {
			return p, nil
		}
	}
	return b.places.mailbox(name, home), nil
}
