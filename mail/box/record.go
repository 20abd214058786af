package box

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// A Place says where a record begins in the ledger; what is at a place is told with the
// length of the record. The package keeps places, it does not interpret them.
type Place uint64

// A BoxID numbers the boxes of a ledger, from 1. It is never used again.
type BoxID uint32

// A SubID numbers the subscriptions of a topic, from 1. That of a mailbox is 0.
type SubID uint16

// A Type is the type of a record.
type Type uint8

// The types of records. Types from 32 on belong to other packages: Apply skips them.
const (
	TypeMail    Type = 1 + iota // a mail arrived
	TypeAck                     // mails are done
	TypeNack                    // a delivery failed or was given back
	TypeEnd                     // mails ended otherwise
	TypeSkip                    // a mail of a chain was refused for good
	TypeBox                     // a box was made, changed or removed
	TypeSub                     // a subscription was made, changed or removed, or its dead letters
	TypePeer                    // the index of an origin
	TypeAge                     // the boot number and the running time
	TypeMove                    // a mail was copied to a new place
	TypeForward                 // a mail is done, and another one came of it
	TypeTold                    // the senders of mails know that they are done
	TypeTaken                   // of a spool: mails are done, and what their home signed
	TypePart                    // a part of a box that moves to another home

	typeKnown // the first type that this version does not know

	typeForeign Type = 32
)

// headSize is the size of what all records begin with, big endian:
//
//	length 4 | type 1 | flags 1 | subscription 2 | box 4
//
// The length is that of the whole record.
const headSize = 12

// flagWhole in an END ends the mail for all subscriptions of its topic; flagAdds in a MOVE adds the
// mail to a copy of a box; a MAIL with flagCaused says whose mail caused it.
const (
	flagWhole  = 1
	flagAdds   = 1
	flagCaused = 1
)

// mailSize is the size of a MAIL of a chain before its letter.
const mailSize = localSize + 4*8

// localSize is the size of a MAIL without a chain before its letter.
const localSize = headSize + 8 + 4 + 1

// causeSize is what a MAIL has more before its letter if it says whose mail caused it.
const causeSize = 4

// moveSize is the size of a MOVE or a FORWARD before its MAIL.
const moveSize = headSize + 8

// ErrBadRecord is returned for bytes that are not a record, or not its one encoding.
var ErrBadRecord = errors.New("box: bad record")

// A Cause says why a delivery failed, or why a mail ended.
type Cause uint8

// The causes.
const (
	CauseNone      Cause = iota
	CauseNacked          // its reader said that it failed
	CauseFinal           // its reader said that it can never succeed
	CauseLapsed          // the lease ran out
	CauseAbandoned       // the session broke
	CauseDeferred        // its reader wants it later; nothing is spent
	CauseBounced         // its reader sent it back
	CauseLoop            // more than MaxHops
	CauseExpired         // past its not_after
	CausePurged          // by a person
	CauseRemoved         // with its box or subscription
	CauseAge             // retention by age
	CauseFull            // retention by count or size
	CauseRefused         // of a spool: its home refused it for good
	CauseUnheard         // of a spool: past its not_after, sent and not answered, so it may have been delivered
	CauseNotJSON         // its body is not JSON, and the box takes no other
	causes
)

var causeNames = [causes]string{"", "nacked", "final", "lapsed", "abandoned", "deferred", "bounced", "loop", "expired", "purged", "removed", "age", "full", "refused", "unheard", "not_json"}

// String returns the cause as one word.
func (c Cause) String() string {
	if c < causes {
		return causeNames[c]
	}
	return fmt.Sprintf("cause %d", uint8(c))
}

// A MailState is the state of a mail in a subscription.
type MailState uint8

// The states of a mail.
const (
	Waiting MailState = 1 + iota
	Leased
	Retrying
	Done
	Dead
	Expired
	Cancelled
	Dropped
	mailStates
)

var stateNames = [mailStates]string{"", "WAITING", "LEASED", "RETRYING", "DONE", "DEAD", "EXPIRED", "CANCELLED", "DROPPED"}

// String returns the state in capitals.
func (m MailState) String() string {
	if m < mailStates {
		return stateNames[m]
	}
	return fmt.Sprintf("state %d", uint8(m))
}

// A Mail is a MAIL record: a letter that came to a box.
type Mail struct {
	Box    BoxID
	At     int64       // when the home took it, Unix milliseconds
	Origin uint32      // index of the node that it came from; 0: this node
	Chain  proto.Class // of its chain; 0: none; of mail from this node only in a spool
	Number proto.Seq   // in its chain
	Prev   proto.Seq   // the mail before it in its chain; zero: none
	Cause  uint32      // of mail from this node: index of the node whose mail caused it; 0: this node, or none
	Letter []byte
}

// A Skip is a SKIP record: a mail of a chain that was refused for good.
type Skip struct {
	Box      BoxID
	Origin   uint32
	Chain    proto.Class
	Number   proto.Seq
	Prev     proto.Seq
	NotAfter int64 // of the mail
	Code     proto.Code
}

// nack is a NACK record.
type nack struct {
	seq      uint64
	cause    Cause
	attempts uint8 // spent so far
	abandons uint8
	at       int64
	due      int64
	reader   []byte
	reason   []byte
}

// end is an END record. Its sequences end alike.
type end struct {
	state    MailState
	cause    Cause
	attempts uint8
	abandons uint8
	at       int64
	reader   []byte
	reason   []byte
	seqs     []uint64
}

// age is an AGE record.
type age struct {
	boot uint64 // of this start of the home
	ran  int64  // milliseconds since this start
	at   int64  // wall clock, Unix milliseconds; 0: it is doubted
}

// head is what all records begin with.
type head struct {
	typ   Type
	flags uint8
	sub   SubID
	box   BoxID
}

// appendHead begins a record at the end of dst; finish ends it.
func appendHead(dst []byte, h head) []byte {
	dst = append(dst, 0, 0, 0, 0, byte(h.typ), h.flags)
	dst = binary.BigEndian.AppendUint16(dst, uint16(h.sub))
	return appendU32(dst, uint32(h.box))
}

// finish sets the length of the record that begins at start.
func finish(dst []byte, start int) []byte {
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start))
	return dst
}

// parseHead reads the head of a record and returns what is behind it.
func parseHead(rec []byte) (head, decoder, error) {
	if len(rec) < headSize || len(rec) > MaxRecord || binary.BigEndian.Uint32(rec) != uint32(len(rec)) {
		return head{}, decoder{}, fmt.Errorf("%w: %d bytes", ErrBadRecord, len(rec))
	}
	h := head{Type(rec[4]), rec[5], SubID(binary.BigEndian.Uint16(rec[6:])), BoxID(binary.BigEndian.Uint32(rec[8:]))}
	known := h.typ != 0 && h.typ < typeKnown
	flagged := h.typ == TypeEnd && h.flags == flagWhole || h.typ == TypeMove && h.flags == flagAdds || h.typ == TypeMail && h.flags == flagCaused
	if known && h.flags != 0 && !flagged || !known && h.typ < typeForeign {
		return h, decoder{}, fmt.Errorf("%w: type %d with flags %#x", ErrBadRecord, h.typ, h.flags)
	}
	return h, decoder{b: rec[headSize:]}, nil
}

// TypeOf returns the type of a record.
func TypeOf(rec []byte) (Type, error) {
	h, _, err := parseHead(rec)
	return h.typ, err
}

// bad returns the error for a record of a type whose fields are wrong.
func bad(t Type) error { return fmt.Errorf("%w: fields of type %d", ErrBadRecord, t) }

// AppendMail appends a MAIL record to dst. Its letter is not checked: Apply does.
func AppendMail(dst []byte, m *Mail) []byte {
	start := len(dst)
	h := head{typ: TypeMail, box: m.Box}
	if m.Cause != 0 {
		h.flags = flagCaused
	}
	dst = appendTime(appendHead(dst, h), m.At)
	dst = appendU32(dst, m.Origin)
	dst = append(dst, byte(m.Chain))
	if m.Chain != 0 {
		dst = appendSeq(appendSeq(dst, m.Number), m.Prev)
	}
	if m.Cause != 0 {
		dst = appendU32(dst, m.Cause)
	}
	return finish(append(dst, m.Letter...), start)
}

// ParseMail reads a MAIL record. Its letter is a view of rec, and not parsed.
func ParseMail(rec []byte) (Mail, error) {
	h, d, err := parseHead(rec)
	if err != nil {
		return Mail{}, err
	}
	m := Mail{Box: h.box, At: d.time(), Origin: d.u32(), Chain: proto.Class(d.u8())}
	if m.Chain != 0 {
		m.Number, m.Prev = d.number(), d.number()
		d.check(m.Chain <= proto.Low && validNumber(m.Number) && (m.Prev == proto.Seq{} || m.Origin != 0 && validNumber(m.Prev) && m.Prev.Compare(m.Number) < 0))
	}
	if h.flags == flagCaused {
		m.Cause = d.u32()
		d.check(m.Cause != 0 && m.Origin == 0)
	}
	m.Letter = d.b
	if d.failed || h.typ != TypeMail || h.sub != 0 {
		return Mail{}, bad(TypeMail)
	}
	return m, nil
}

// spooled reports whether m has a number that this node gave it: it is for a spool.
func (m *Mail) spooled() bool { return m.Chain != 0 && m.Origin == 0 }

// Decided reports whether a record says what a state has decided. Until it is applied nobody is
// given its mails, and it may be applied late.
func Decided(rec []byte) bool {
	if len(rec) < headSize {
		return false
	}
	switch Type(rec[4]) {
	case TypeAck, TypeNack, TypeEnd, TypeAge, TypeTaken:
		return true
	default:
		return false
	}
}

// MailOf returns the mail of a MAIL, MOVE or FORWARD record. Its letter is a view of rec, and
// not parsed.
func MailOf(rec []byte) (Mail, error) {
	if len(rec) > headSize && Type(rec[4]) == TypeMove {
		_, mail, err := parseMove(rec)
		if err != nil {
			return Mail{}, err
		}
		rec = mail
	} else if len(rec) > headSize && Type(rec[4]) == TypeForward {
		_, _, mail, err := parseForward(rec)
		return mail, err
	}
	return ParseMail(rec)
}

// EncodeForward returns a FORWARD record: the mail seq of a subscription, or with sub 0 of
// a topic that of all, is done, and what came of it, a MAIL record of this node, is put into its box: both or neither.
func EncodeForward(box BoxID, sub SubID, seq uint64, mail []byte) []byte {
	rec := appendU64(appendHead(nil, head{typ: TypeForward, sub: sub, box: box}), seq)
	return finish(append(rec, mail...), 0)
}

// Unlinked returns a copy of a FORWARD record of which only the mail counts.
func Unlinked(rec []byte) []byte {
	rec = append([]byte(nil), rec...)
	clear(rec[headSize:moveSize])
	return rec
}

// parseForward reads a FORWARD record. With seq 0 only its mail counts.
func parseForward(rec []byte) (h head, seq uint64, m Mail, err error) {
	h, d, err := parseHead(rec)
	if err != nil {
		return h, 0, Mail{}, err
	}
	seq = d.u64()
	m, err = ParseMail(d.b)
	if d.failed || err != nil || h.typ != TypeForward || m.Origin != 0 {
		return h, 0, Mail{}, bad(TypeForward)
	}
	return h, seq, m, nil
}

// AppendMove appends a MOVE record to dst: a copy of the mail seq, which is that of a MAIL,
// MOVE or FORWARD record.
func AppendMove(dst []byte, seq uint64, rec []byte) ([]byte, error) {
	if t, _ := TypeOf(rec); (t == TypeMove || t == TypeForward) && len(rec) > moveSize {
		rec = rec[moveSize:]
	}
	m, err := ParseMail(rec)
	if err != nil {
		return dst, err
	}
	start := len(dst)
	dst = appendU64(appendHead(dst, head{typ: TypeMove, box: m.Box}), seq)
	return finish(append(dst, rec...), start), nil
}

// MoveOf returns of which mail of which box a MOVE record is, and whether it adds that to a copy.
func MoveOf(rec []byte) (id BoxID, seq uint64, adds bool, err error) {
	seq, mail, err := parseMove(rec)
	if err != nil {
		return 0, 0, false, err
	}
	m, err := ParseMail(mail)
	return m.Box, seq, rec[5] == flagAdds, err
}

func parseMove(rec []byte) (seq uint64, mail []byte, err error) {
	h, d, err := parseHead(rec)
	if err != nil {
		return 0, nil, err
	}
	seq, mail = d.u64(), d.b
	m, err := ParseMail(mail)
	if d.failed || err != nil || h.typ != TypeMove || h.sub != 0 || m.Box != h.box {
		return 0, nil, bad(TypeMove)
	}
	return seq, mail, nil
}

func appendSeq(dst []byte, n proto.Seq) []byte {
	return appendU64(appendU64(dst, n.Boot), n.Counter)
}

func (d *decoder) number() proto.Seq { return proto.Seq{Boot: d.u64(), Counter: d.u64()} }

// validNumber reports whether n can be the number of a mail.
func validNumber(n proto.Seq) bool { return n.Boot > 0 && n.Counter > 0 }

// AppendSkip appends a SKIP record to dst.
func AppendSkip(dst []byte, k *Skip) []byte {
	start := len(dst)
	dst = appendHead(dst, head{typ: TypeSkip, box: k.Box})
	dst = appendU32(dst, k.Origin)
	dst = append(dst, byte(k.Chain))
	dst = appendTime(appendSeq(appendSeq(dst, k.Number), k.Prev), k.NotAfter)
	return finish(binary.AppendUvarint(dst, uint64(k.Code)), start)
}

// ParseSkip reads a SKIP record.
func ParseSkip(rec []byte) (Skip, error) {
	h, d, err := parseHead(rec)
	if err != nil {
		return Skip{}, err
	}
	k := Skip{Box: h.box, Origin: d.u32(), Chain: proto.Class(d.u8()), Number: d.number(), Prev: d.number(), NotAfter: d.time(), Code: proto.Code(d.uvarint(1 << 16))}
	d.check(k.Chain >= proto.Critical && k.Chain <= proto.Low && k.Origin != 0 && validNumber(k.Number))
	d.check(k.Prev == proto.Seq{} || validNumber(k.Prev) && k.Prev.Compare(k.Number) < 0)
	if !d.done() || h.typ != TypeSkip || h.sub != 0 {
		return Skip{}, bad(TypeSkip)
	}
	return k, nil
}

// EncodePeer returns a PEER record: from now on index stands for peer.
func EncodePeer(index uint32, peer proto.PeerID) []byte {
	rec := appendU32(appendHead(nil, head{typ: TypePeer}), index)
	return finish(append(rec, peer[:]...), 0)
}

// EncodeSelf is [EncodePeer] for the node of this ledger: mail that it sent to a box which was
// elsewhere then, and is here now, is mail of its own.
func EncodeSelf(index uint32, self proto.PeerID) []byte {
	rec := appendU32(appendHead(nil, head{typ: TypePeer, sub: 1}), index)
	return finish(append(rec, self[:]...), 0)
}

// EncodeSpoolDone returns an ACK record: the home of a spool's box has these mails.
func EncodeSpoolDone(spool BoxID, seqs []uint64) []byte {
	return appendAck(nil, spool, 0, seqs)
}

// A SpoolEnd is how mails of a spool end that their home does not have.
type SpoolEnd struct {
	State  MailState // Dead, Expired or Cancelled
	Cause  Cause
	At     int64  // Unix milliseconds
	Reason string // cut to MaxReason bytes
}

// EncodeSpoolEnd returns an END record, for at most MaxSeqs mails.
func EncodeSpoolEnd(spool BoxID, e SpoolEnd, seqs []uint64) []byte {
	reason := e.Reason[:min(len(e.Reason), MaxReason)]
	return appendEnd(nil, head{flags: flagWhole, box: spool}, &end{state: e.State, cause: e.Cause, at: e.At, reason: []byte(reason), seqs: seqs})
}

func appendAck(dst []byte, box BoxID, sub SubID, seqs []uint64) []byte {
	start := len(dst)
	return finish(appendSeqs(appendHead(dst, head{TypeAck, 0, sub, box}), seqs), start)
}

func appendNack(dst []byte, box BoxID, sub SubID, n *nack) []byte {
	start := len(dst)
	dst = appendU64(appendHead(dst, head{TypeNack, 0, sub, box}), n.seq)
	dst = append(dst, byte(n.cause), n.attempts, n.abandons)
	dst = appendTime(appendTime(dst, n.at), n.due)
	return finish(appendText(appendText(dst, n.reader), n.reason), start)
}

func (d *decoder) nack() nack {
	n := nack{d.u64(), Cause(d.u8()), d.u8(), d.u8(), d.time(), d.time(), d.text(MaxReader), d.text(MaxReason)}
	d.check(n.cause > 0 && n.cause < causes && n.due >= n.at && n.due-n.at <= MaxDelay.Milliseconds())
	return n
}

func appendEnd(dst []byte, h head, e *end) []byte {
	start := len(dst)
	h.typ = TypeEnd
	dst = append(appendHead(dst, h), byte(e.state), byte(e.cause), e.attempts, e.abandons)
	dst = appendText(appendText(appendTime(dst, e.at), e.reader), e.reason)
	return finish(appendSeqs(dst, e.seqs), start)
}

func (d *decoder) end() end {
	e := end{MailState(d.u8()), Cause(d.u8()), d.u8(), d.u8(), d.time(), d.text(MaxReader), d.text(MaxDetail), d.seqs(nil)}
	d.check(e.state >= Dead && e.state < mailStates && e.cause > 0 && e.cause < causes)
	return e
}

func appendAge(dst []byte, a age) []byte {
	start := len(dst)
	dst = appendU64(appendHead(dst, head{typ: TypeAge}), a.boot)
	return finish(appendTime(appendTime(dst, a.ran), a.at), start)
}
