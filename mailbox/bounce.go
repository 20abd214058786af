package mailbox

import (
	"context"
	"strings"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// EventBounced is the kind of the event for a mail that was not delivered and whose sender
// is not told: it has no box, or too many mails caused one another.
const EventBounced = "mail.bounced"

// bounced tells a sender that its mail was not delivered.
func (b *Boxes) bounced(ctx context.Context, t mail.Bounce) {
	l, err := proto.ParseLetter(t.Letter)
	if err != nil {
		b.cfg.Logger.Error("a bounce has a bad letter", "why", err) // a bug
		return
	}
	to, err := b.bounceTo(t)
	if t.Loop {
		err = invalid("%d mails caused one another before it: a bounce might cause the next", box.MaxHops)
	}
	if err == nil {
		var sent []mail.Sent
		if sent, err = b.deliver(ctx, []place{to}, [][]byte{t.Letter}, false); err == nil {
			_, err = b.sentMail(to, sent[0], false)
		}
	}
	if err == nil || ctx.Err() != nil {
		return
	}
	origin := t.Origin
	if origin.IsZero() {
		origin = b.cfg.Self
	}
	text, why := "mail "+l.BounceOf.String()+" was not delivered, and its sender has no mailbox that could be told", err.Error()
	if t.Loop {
		text = "mail " + l.BounceOf.String() + " was not delivered, and its sender is not told, because it is in a loop of mails"
		b.cfg.Logger.Warn("a mail in a loop of mails was not delivered, and its sender is not told", "mail", l.BounceOf, "from", origin, "sender", t.To)
	}
	b.cfg.Event(EventBounced, origin, text, map[string]string{
		"mail": l.BounceOf.String(), "to": t.To, "why": why, "bounce": string(l.Body),
	})
}

// bounceTo returns the box that a bounce goes to: that which the mail named, or the mailbox
// of the agent that sent it. A full name without a node is that of a mailbox of the mesh, if
// there is one.
func (b *Boxes) bounceTo(t mail.Bounce) (place, error) {
	if strings.Contains(t.To, "@") || strings.HasPrefix(t.To, proto.TopicPrefix) {
		return b.find(t.To)
	}
	home := t.Origin
	if home.IsZero() {
		home = b.cfg.Self
	}
	name, prefixed := strings.CutPrefix(t.To, proto.AgentPrefix)
	if name == "" {
		return place{}, invalid("the mail names no sender")
	}
	if !proto.ValidQueue(name) {
		return place{}, invalid("%.64q is no mailbox", t.To)
	}
	if prefixed {
		if p := b.named(proto.Target{Kind: proto.TargetAgent, Name: name}); p.generation > 0 {
			return p, nil
		}
	}
	return b.mailbox(name, home), nil
}
