package mailbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Receipts returns the receipt of a mail that asked for one, if there is one: of a mail in a box of
// this node it is signed now, of a mail for another node it was signed there. While the mail is on
// its way it waits for that, as long as it may.
func (b *Boxes) Receipts(ctx context.Context, id string, wait time.Duration) ([]wire.MailReceipt, error) {
	if wait < 0 || wait > maxWait {
		return nil, invalid("wait %s: must be from 0 to 10 minutes", wire.Duration(wait))
	}
	waiting, stop := context.WithTimeout(ctx, wait)
	defer stop()
	for {
		now := b.newestEvent()
		s, err := b.search(ctx, id)
		if err != nil {
			return nil, err
		}
		if s.found.State == "PENDING" && b.awaitEnd(waiting, s.found.ID, now) == nil {
			continue
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r, err := b.receiptOf(ctx, s)
		if err != nil || r == nil {
			return []wire.MailReceipt{}, err
		}
		return []wire.MailReceipt{*r}, nil
	}
}

// newestEvent returns the number of the newest event of mail.
func (b *Boxes) newestEvent() (number uint64) {
	if k := b.ledger.broker(); k != nil {
		_, number, _, _ = k.Events(0, 1, func(*mail.Event) bool { return false })
	}
	return number
}

// awaitEnd waits until a mail leaves its spool, which it did not before an event. The error is that
// of ctx.
func (b *Boxes) awaitEnd(ctx context.Context, id string, after uint64) error {
	ends := []string{mail.EventDone, mail.EventDead, mail.EventExpired, mail.EventCancelled}
	for ctx.Err() == nil {
		list, next, _, more := b.ledger.broker().Events(after, maxEvents, func(e *mail.Event) bool {
			return slices.Contains(ends, e.Kind) && strings.HasPrefix(e.Box, box.SpoolPrefix)
		})
		if slices.ContainsFunc(list, func(e mail.Event) bool { return e.ID.String() == id }) {
			return nil
		}
		if after = next; len(list) > 0 {
			continue
		}
		select {
		case <-more:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// receiptOf returns the receipt of a mail that was found; nil: there is none.
func (b *Boxes) receiptOf(ctx context.Context, s *search) (*wire.MailReceipt, error) {
	var rec box.Kept
	var proof []byte
	k, place := b.ledger.broker(), s.sub.place
	if err := k.View(ctx, func(st *box.State) {
		id, _ := st.Find(place.name)
		rec, _ = st.Record(id, s.seq)
		proof, _ = st.Receipt(id, s.seq)
	}); err != nil {
		return nil, failure(place, "", err)
	}
	if rec.Length == 0 || place.spool() && len(proof) == 0 {
		return nil, nil // it has ended meanwhile, or nobody has signed
	}
	m, from, err := k.MailOf(ctx, rec)
	if err != nil || !box.WantsReceipt(m.Letter) {
		return nil, err
	}
	if !place.spool() {
		return b.viewReceipt(b.signReceipt(&m, from, place.name), m.Letter), nil
	}
	r, err := proto.ParseMailReceipt(proof)
	if err != nil {
		return nil, err
	}
	return b.viewReceipt(r, m.Letter), nil
}

// signReceipt signs that this node has a mail, which is in a box here.
func (b *Boxes) signReceipt(m *box.Mail, from proto.PeerID, name string) proto.MailReceipt {
	s := proto.MailStatement{
		Mesh: b.cfg.Mesh, Mail: proto.LetterID(m.Letter), Home: b.cfg.Self, Origin: cmp.Or(from, b.cfg.Self), Time: m.At,
		Class: m.Chain, Number: m.Number, Digest: sha256.Sum256(m.Letter), Box: name,
	}
	return proto.MailReceipt{Statement: s, Signature: [64]byte(b.cfg.Keys.SignMail([]proto.MailStatement{s}))}
}

// viewReceipt verifies a receipt, and returns it in the form of the API.
func (b *Boxes) viewReceipt(r proto.MailReceipt, letter []byte) *wire.MailReceipt {
	s := &r.Statement
	v := &wire.MailReceipt{
		Mail: s.Mail.String(), Box: b.places.text(s.Box), Digest: "sha256:" + hex.EncodeToString(s.Digest[:]),
		Origin: b.parts.Book.NameOf(s.Origin), OriginID: s.Origin.String(), Node: b.parts.Book.NameOf(s.Home), NodeID: s.Home.String(),
		Time: time.UnixMilli(s.Time).UTC(), Proof: base64.StdEncoding.EncodeToString(r.Append(nil)), Letter: letter,
	}
	if s.Class != proto.ClassUnspecified {
		v.Number = fmt.Sprintf("%s.%s", s.Class.Name(), s.Number)
	}
	err := identity.VerifyMailReceipt(b.cfg.Verifier, &r)
	if err == nil && s.Digest != sha256.Sum256(letter) {
		err = errors.New("it is about another letter")
	}
	if v.Verified = err == nil; err != nil {
		v.Problem = err.Error()
	}
	return v
}

// unproven reports that a node has mails and did not sign that, though it was asked to.
func (b *Boxes) unproven(name string, home proto.PeerID, mails int, why error) {
	b.cfg.Event(wire.EventMailUnproven, home, map[string]string{"box": b.places.text(name), "count": fmt.Sprint(mails), "why": why.Error()})
}
