package mailbox

import (
	"cmp"
	"context"
	"fmt"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// clearing lets operators clear what holds up a box: a key that a dead letter blocks, and mail
// that waits. It keeps nothing.
type clearing struct {
	self   proto.PeerID
	audit  func(ctx context.Context, action, what string) error
	book   *addressbook.Book
	places *places
}

// unblock is [Boxes.Unblock].
func (c *clearing) unblock(ctx context.Context, name, sub string, u wire.UnblockMail) error {
	p, k, err := c.places.subscribed(name, sub)
	if err != nil {
		return err
	}
	if u.Key == "" || len(u.Key) > proto.MaxKey {
		return invalid("key of %d bytes: must be that of a dead letter, of 1 to %d", len(u.Key), proto.MaxKey)
	}
	origin, err := c.origin(ctx, k, u.Origin)
	if err == nil {
		err = c.blocked(ctx, k, p, sub, origin, u.Key)
	}
	if err != nil {
		return failure(p, sub, err)
	}
	if err := k.Unblock(ctx, p.name, sub, origin, u.Key); err != nil {
		return failure(p, sub, err)
	}
	return c.audit(ctx, p.kind+".unblock", p.path(sub)+" "+u.Key)
}

// blocked returns an error unless a dead letter blocks a key.
func (c *clearing) blocked(ctx context.Context, k *mail.Broker, p place, sub string, origin proto.PeerID, key string) error {
	var err error
	viewed := k.View(ctx, func(s *box.State) {
		id, ok := s.Find(p.name)
		subID, is := s.FindSub(id, sub)
		switch {
		case !ok || !is:
			err = box.ErrNotFound
		case !s.IsBlocked(id, subID, s.Origin(origin), []byte(key)):
			err = fmt.Errorf("%w: no dead letter blocks the key %.64q in %s", wire.ErrNotFound, key, p.path(sub))
		}
	})
	return cmp.Or(viewed, err)
}

// origin returns the node from which mail came, zero for this one.
func (c *clearing) origin(ctx context.Context, k *mail.Broker, name string) (id proto.PeerID, err error) {
	if name == "" {
		return id, nil
	}
	p, err := c.book.Find(name)
	if err != nil || p.Peer == c.self {
		return id, err
	}
	known := false
	if err := k.View(ctx, func(s *box.State) { known = s.Origin(p.Peer) != 0 }); err != nil {
		return id, err
	}
	if !known {
		return id, fmt.Errorf("%w: no mail came from %s", wire.ErrNotFound, p.Label())
	}
	return p.Peer, nil
}

// purge is [Boxes.Purge].
func (c *clearing) purge(ctx context.Context, name string, r wire.PurgeMail) (wire.PurgedMail, error) {
	p, k, err := c.places.existing(name)
	if err != nil {
		return wire.PurgedMail{}, err
	}
	if r.Limit < 0 {
		return wire.PurgedMail{}, invalid("limit %d: must not be negative", r.Limit)
	}
	if err := checkReason(r.Reason); err != nil {
		return wire.PurgedMail{}, err
	}
	limit := cmp.Or(r.Limit, box.MaxMails)
	if k.HandoverOf(p.name).IsLeaving() {
		return wire.PurgedMail{}, fmt.Errorf("%w: %s is on its way to another home", wire.ErrRefused, p.text)
	}
	if r.DryRun {
		n, err := c.purgeable(ctx, k, p)
		return wire.PurgedMail{Mails: min(limit, n), DryRun: true}, failure(p, "", err)
	}
	n, err := k.Purge(ctx, p.name, limit, cutReason(r.Reason))
	if err != nil {
		return wire.PurgedMail{}, failure(p, "", err)
	}
	return wire.PurgedMail{Mails: n}, c.audit(ctx, p.kind+".purge", fmt.Sprintf("%s: %d mails", p.text, n))
}

// purgeable returns how many mails of a box wait and are not leased.
func (c *clearing) purgeable(ctx context.Context, k *mail.Broker, p place) (n int, err error) {
	err = viewBox(ctx, k, p.name, func(s *box.State, id box.BoxID) {
		info, _ := s.Info(id)
		leased := map[uint64]bool{}
		for _, sub := range info.Subs {
			for m := range s.Mails(id, sub, 0) {
				if m.State == box.Leased {
					leased[m.Seq] = true
				}
			}
		}
		n = info.Waiting - len(leased)
	})
	return n, err
}
