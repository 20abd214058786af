package mailbox

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// receipts signs and checks the receipts of mails. It keeps nothing: those of other nodes are in
// the ledger.
type receipts struct {
	mesh     proto.MeshID
	self     proto.PeerID
	keys     *identity.Keys     // of this node
	verifier *identity.Verifier // of those of other nodes
	event    func(kind string, p proto.PeerID, fields map[string]string)
	book     *addressbook.Book
	ledger   *ledgerOpener
	places   *places
}

// of returns the receipt of a mail that was found; nil: there is none.
func (t *receipts) of(ctx context.Context, s *search) (*wire.MailReceipt, error) {
	var rec box.Kept
	var proof []byte
	k, place := t.ledger.broker(), s.sub.place
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
		return t.view(t.sign(&m, from, place.name), m.Letter), nil
	}
	r, err := proto.ParseMailReceipt(proof)
	if err != nil {
		return nil, err
	}
	return t.view(r, m.Letter), nil
}

// sign signs that this node has a mail, which is in a box here.
func (t *receipts) sign(m *box.Mail, from proto.PeerID, name string) proto.MailReceipt {
	s := proto.MailStatement{
		Mesh: t.mesh, Mail: proto.LetterID(m.Letter), Home: t.self, Origin: cmp.Or(from, t.self), Time: m.At,
		Class: m.Chain, Number: m.Number, Digest: sha256.Sum256(m.Letter), Box: name,
	}
	return proto.MailReceipt{Statement: s, Signature: [64]byte(t.keys.SignMail([]proto.MailStatement{s}))}
}

// view verifies a receipt, and returns it in the form of the API.
func (t *receipts) view(r proto.MailReceipt, letter []byte) *wire.MailReceipt {
	s := &r.Statement
	v := &wire.MailReceipt{
		Mail: s.Mail.String(), Box: t.places.text(s.Box), Digest: "sha256:" + hex.EncodeToString(s.Digest[:]),
		Origin: t.book.NameOf(s.Origin), OriginID: s.Origin.String(), Node: t.book.NameOf(s.Home), NodeID: s.Home.String(),
		Time: proto.Time(s.Time), Proof: base64.StdEncoding.EncodeToString(r.Append(nil)), Letter: letter,
	}
	if s.Class != proto.ClassUnspecified {
		v.Number = fmt.Sprintf("%s.%s", s.Class.Name(), s.Number)
	}
	switch {
	case identity.VerifyMailReceipt(t.verifier, &r) != nil:
		v.Problem = &wire.Note{Code: wire.ReceiptUnsigned}
	case s.Digest != sha256.Sum256(letter):
		v.Problem = &wire.Note{Code: wire.ReceiptOtherLetter, NoteArgs: wire.NoteArgs{Detail: v.Digest}}
	}
	v.Verified = v.Problem == nil
	return v
}

// unproven reports that a node has mails and did not sign that, though it was asked to.
func (t *receipts) unproven(name string, home proto.PeerID, mails int, why error) {
	cause := wire.ReceiptUnsigned
	if errors.Is(why, mail.ErrUnsigned) {
		cause = wire.ReceiptNone
	}
	t.event(wire.EventMailUnproven, home, map[string]string{"box": t.places.text(name), "count": fmt.Sprint(mails), "cause": string(cause)})
}
