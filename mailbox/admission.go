package mailbox

import (
	"context"
	"fmt"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// admission decides whose mail the boxes take, and who reads them. It keeps nothing.
type admission struct {
	self    proto.PeerID
	book    *addressbook.Book
	members inbox.Members
	ledger  *ledgerOpener
	places  *places
	rules   *rules
	bodies  *letterBodies
	bounces *bounces
}

// from returns the decision whether boxes take mail from a peer. Bounces, and what tells of mail that is DONE, are taken from
// every member: who sent a mail must hear of its end. They are small. One for a box that is
// not here, where the mail was sent, reaches nobody: that is an event, and it does not wait.
func (a *admission) from(ctx context.Context, k *mail.Broker, from proto.PeerID) (mail.Admit, error) {
	rules, err := a.rules.known(ctx, k)
	if err != nil {
		return nil, err
	}
	allowed, waits := map[string]bool{}, false
	return func(name string, l *proto.Letter) (proto.Code, string) {
		n, ok := rules[name]
		bounce := mail.IsBounce(l) && !l.BounceOf.IsZero() && len(l.Body) <= mail.MaxBounce && l.Object.IsZero()
		switch {
		case !ok && !waits && k.HandoverOf(name).IsCopy():
			waits = true
			return proto.CodeBusy, "the box is on its way here"
		case !ok && bounce && !waits && !k.Has(name):
			a.bounces.unheard(from, l, name, unheard{cause: wire.BounceNoBox})
			return proto.CodeDenied, fmt.Sprintf("no box %q", name)
		case !ok && !waits && a.places.isReplyBox(name) && !k.Has(name):
			return proto.CodeDenied, "nobody waits for the reply any more"
		case !ok: // it may be there, with rules that are not known yet; what is behind it waits too
			waits = true
			return proto.CodeNoHandler, fmt.Sprintf("no box %q", name)
		case bounce && !a.places.isReplyBox(name): // of whom a reply is taken, a bounce is too
			return proto.CodeOK, ""
		}
		yes, known := allowed[name]
		if !known {
			yes = inbox.Allowed(n.Allow, from, a.members)
			allowed[name] = yes
		}
		if !yes {
			return proto.CodeDenied, "the box does not allow mail from this node"
		}
		return a.bodies.admit(name, l)
	}, nil
}

// readableBy returns a box of this node that a peer may read.
func (a *admission) readableBy(ctx context.Context, from proto.PeerID, name string) (place, *mail.Broker, refused) {
	p, err := a.places.findTarget(name)
	k := a.ledger.broker()
	switch {
	case err != nil:
		return p, nil, refused{code: proto.CodeBadForm, detail: fmt.Sprintf("box %.80q", name)}
	case p.home != a.self && p.generation > 0:
		return p, nil, refused{proto.CodeMoved, "its home is " + a.book.NameOf(p.home), p.home, p.generation}
	case p.home != a.self:
		return p, nil, refused{code: proto.CodeBadForm, detail: fmt.Sprintf("box %.80q is on another node", name)}
	case k == nil:
		return p, nil, refused{code: proto.CodeNoHandler, detail: "there is no such box"}
	}
	rules, err := a.rules.known(ctx, k)
	if err != nil {
		return p, nil, refused{code: proto.CodeDraining, detail: "the node is stopping"}
	}
	n, ok := rules[p.name]
	switch {
	case !ok:
		return p, nil, refused{code: proto.CodeNoHandler, detail: "there is no such box"}
	case !inbox.Allowed(n.AllowRead, from, a.members):
		return p, nil, refused{code: proto.CodeDenied, detail: "the box does not allow this node to read it"}
	}
	return p, k, refused{}
}
