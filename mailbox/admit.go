package mailbox

import (
	"context"
	"fmt"

	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/proto"
)

// admit returns the decision whether boxes take mail from a peer. Bounces, and what tells of mail that is DONE, are taken from
// every member: who sent a mail must hear of its end. They are small. One for a box that is
// not here, where the mail was sent, reaches nobody: that is an event, and it does not wait.
func (b *Boxes) admit(ctx context.Context, k *mail.Broker, from proto.PeerID) (mail.Admit, error) {
	rules, err := b.rules.known(ctx, k)
	if err != nil {
		return nil, err
	}
	allowed, waits := map[string]bool{}, false
	return func(name string, l *proto.Letter) (proto.Code, string) {
		n, ok := rules[name]
		bounce := mail.IsBounce(l) && !l.BounceOf.IsZero() && len(l.Body) <= mail.MaxBounce && l.Object.IsZero()
		switch {
		case !ok && bounce && !waits && !k.Has(name):
			why := fmt.Sprintf("no box %q", name)
			b.unheard(from, l, "no_box", name, why)
			return proto.CodeDenied, why
		case !ok && !waits && b.places.isReplyBox(name) && !k.Has(name):
			return proto.CodeDenied, "nobody waits for the reply any more"
		case !ok: // it may be there, with rules that are not known yet; what is behind it waits too
			waits = true
			return proto.CodeNoHandler, fmt.Sprintf("no box %q", name)
		case bounce && !b.places.isReplyBox(name): // of whom a reply is taken, a bounce is too
			return proto.CodeOK, ""
		}
		yes, known := allowed[name]
		if !known {
			yes = inbox.Allowed(n.Allow, from, b.parts.Members)
			allowed[name] = yes
		}
		if !yes {
			return proto.CodeDenied, "the box does not allow mail from this node"
		}
		return b.bodies.admit(name, l)
	}, nil
}
