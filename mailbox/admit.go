package mailbox

import (
	"context"
	"fmt"

	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// admit returns the decision whether boxes take mail from a peer. Bounces, and what tells of mail that is DONE, are taken from
// every member: who sent a mail must hear of its end. They are small. One for a box that is
// not here, where the mail was sent, reaches nobody: that is an event, and it does not wait.
func (b *Boxes) admit(ctx context.Context, k *mail.Broker, from proto.PeerID) (mail.Admit, error) {
	rules := b.rules.Load()
	if rules == nil {
		if err := b.readRules(ctx, k); err != nil {
			return nil, err
		}
		rules = b.rules.Load()
	}
	allowed, waits := map[string]bool{}, false
	return func(name string, l *proto.Letter) (proto.Code, string) {
		n, ok := (*rules)[name]
		bounce := mail.IsBounce(l) && !l.BounceOf.IsZero() && len(l.Body) <= mail.MaxBounce && l.Object.IsZero()
		switch {
		case !ok && bounce && !waits && !k.Has(name):
			why := fmt.Sprintf("no box %q", name)
			b.unheard(from, l, "no_box", name, why)
			return proto.CodeDenied, why
		case !ok && !waits && b.isReplyBox(name) && !k.Has(name):
			return proto.CodeDenied, "nobody waits for the reply any more"
		case !ok: // it may be there, with rules that are not known yet; what is behind it waits too
			waits = true
			return proto.CodeNoHandler, fmt.Sprintf("no box %q", name)
		case bounce && !b.isReplyBox(name): // of whom a reply is taken, a bounce is too
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
		return b.admitBody(name, l)
	}, nil
}

// allows reports whether the handler of a box may be started now for mail of a node, zero for
// this one (I17). Boxes take more than that: bounces, and what came when another list counted.
func (b *Boxes) allows(name string, from proto.PeerID) bool {
	return from.IsZero() || from == b.cfg.Self || inbox.Allowed((*b.rules.Load())[name].Allow, from, b.parts.Members)
}

// readRules reads who may send to the boxes.
func (b *Boxes) readRules(ctx context.Context, k *mail.Broker) error {
	rules := map[string]notes{}
	err := k.View(ctx, func(s *box.State) {
		var before map[string]notes
		if known := b.rules.Load(); known != nil {
			before = *known
		}
		for _, id := range s.Boxes() {
			settings, ok := s.Settings(id)
			if !ok || settings.Kind == box.Spool || settings.Handover.IsCopy() {
				continue
			}
			n, ok := before[settings.Name]
			if !ok || n.text != settings.Notes {
				n = notesOf(settings)
			}
			n.to = targets(s, id, settings.Kind)
			rules[settings.Name] = n
		}
		b.rules.Store(&rules) // here: what is read later is stored later
	})
	b.handlers.settingsRead()
	return err
}

// targets returns into which boxes subscriptions of a topic deliver.
func targets(s *box.State, id box.BoxID, kind box.Kind) map[string]string {
	if kind != box.Topic {
		return nil
	}
	to := map[string]string{}
	info, _ := s.Info(id)
	for _, sub := range info.Subs {
		if u, _ := s.SubInfo(id, sub); u.Settings.To != "" {
			to[u.Settings.Name] = u.Settings.To
		}
	}
	return to
}
