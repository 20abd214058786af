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
	why := unheard{cause: wire.BounceLoop}
	if !t.Loop {
		why = b.deliver(ctx, t)
	}
	if why.cause == "" || ctx.Err() != nil {
		return
	}
	origin := t.Origin
	if origin.IsZero() {
		origin = b.self
	}
	if t.Loop {
		b.log.Warn("a mail in a loop of mails has ended, and its sender is not told", "mail", l.BounceOf, "from", origin, "sender", t.To)
		b.report(origin, &l, t.To, why)
		return
	}
	to := t.To
	if p, bad := b.target(t); bad.cause == "" {
		to = p.text
	}
	b.unheard(origin, &l, to, why)
}

// An unheard is why no box takes a bounce; without a cause, one does.
type unheard struct {
	cause  wire.BounceCause
	code   string // of a refusal or an error
	detail string
}

// deliver puts a bounce into its box, or the spool for that. If the box closes for a handover
// meanwhile, or goes, it begins again.
func (b *bounces) deliver(ctx context.Context, t mail.Bounce) unheard {
	for {
		to, why := b.target(t)
		if why.cause != "" {
			return why
		}
		sent, err := b.mailer.deliver(ctx, []place{to}, [][]byte{t.Letter}, false, &t)
		switch {
		case errors.Is(err, wire.ErrFull):
			return unheard{cause: wire.BounceFull, detail: err.Error()}
		case err != nil:
			return unheard{wire.BounceFailed, string(wire.CodeOf(err)), err.Error()}
		}
		now, _ := b.target(t)
		switch r := &sent[0]; {
		case ctx.Err() == nil && (r.Code == proto.CodeBusy || r.Code == proto.CodeNoHandler && now.home != to.home):
			clock.Pause(ctx, partBusy)
		case r.Code == proto.CodeOK:
			return unheard{}
		case r.Code == proto.CodeNoHandler:
			return unheard{cause: wire.BounceNoBox}
		case r.Code == proto.CodeFull:
			return unheard{cause: wire.BounceFull, detail: r.Detail}
		default:
			return unheard{wire.BounceRefused, r.Code.Name(), r.Detail}
		}
	}
}

// unheard reports a bounce that no box takes. The peer is the node that sent the mail, or at
// that node the one that sent the bounce, which may do so more than once.
func (b *bounces) unheard(p proto.PeerID, bounce *proto.Letter, to string, why unheard) {
	level, now, last := slog.LevelDebug, int64(b.clock.Mono()), b.lost.Load()
	if (last == 0 || now-last >= int64(bounceLogEvery)) && b.lost.CompareAndSwap(last, now) {
		level = slog.LevelInfo
	}
	b.log.Log(context.Background(), level, "mail has ended, and its sender is not told", "mail", bounce.BounceOf, "peer", p, "to", to, "cause", why.cause, "code", why.code, "detail", why.detail)
	b.report(p, bounce, to, why)
}

// report makes the event of a bounce that nobody gets, with a code of its cause.
func (b *bounces) report(p proto.PeerID, bounce *proto.Letter, to string, why unheard) {
	kind := wire.EventMailBounced
	if string(bounce.Type) == mail.TypeDone {
		kind = wire.EventMailUntold
	}
	b.event(kind, p, map[string]string{
		"mail": bounce.BounceOf.String(), "to": b.places.text(to), "cause": string(why.cause), "code": why.code, "detail": why.detail, "bounce": string(bounce.Body),
	})
}

// target returns the box that a bounce goes to: that which the mail named, or the mailbox
// of the agent that sent it. A full name without a node is that of a mailbox of the mesh, if
// there is one.
func (b *bounces) target(t mail.Bounce) (place, unheard) {
	if strings.Contains(t.To, "@") || strings.HasPrefix(t.To, proto.TopicPrefix) {
		p, err := b.places.find(t.To)
		if err != nil {
			return p, unheard{cause: wire.BounceNoName, detail: err.Error()}
		}
		return p, unheard{}
	}
	home := t.Origin
	if home.IsZero() {
		home = b.self
	}
	name, prefixed := strings.CutPrefix(t.To, proto.AgentPrefix)
	if name == "" {
		return place{}, unheard{cause: wire.BounceNoSender}
	}
	if !proto.ValidQueue(name) {
		return place{}, unheard{cause: wire.BounceNoName}
	}
	if prefixed {
		if p := b.places.named(proto.Target{Kind: proto.TargetAgent, Name: name}); p.generation > 0 {
			return p, unheard{}
		}
	}
	return b.places.mailbox(name, home), unheard{}
}
