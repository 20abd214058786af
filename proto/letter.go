package proto

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A MailID is the UUIDv7 (RFC 9562) of a mail.
type MailID [16]byte

// NewMailID returns a new id for a mail created at now.
func NewMailID(now time.Time) MailID { return MailID(NewTaskID(now)) }

// ParseMailID reads the form that String writes, in either case.
func ParseMailID(s string) (MailID, error) {
	id, err := ParseTaskID(s)
	return MailID(id), err
}

// String returns the usual form, 36 characters.
func (id MailID) String() string { return TaskID(id).String() }

// IsZero reports whether id was never set.
func (id MailID) IsZero() bool { return id == MailID{} }

// LetterFlags are what the sender of a letter asks for.
type LetterFlags uint16

// The flags of a letter. A letter with any other flag is of a newer version.
const (
	LetterRelaxed LetterFlags = 1 << iota // an answer may leave before the letter is fsynced
	LetterReceipt                         // the sender wants the home to sign that it has it
	LetterTellEnd                         // the sender wants to know when it is DONE, too

	letterFlags = LetterRelaxed | LetterReceipt | LetterTellEnd
)

// NotifyDone is the word with which a sender asks to be told that its mail is DONE.
const NotifyDone = "done"

// ParseLetterFlags returns the flags for what the sender of a mail asks for. Notify is empty or
// [NotifyDone].
func ParseLetterFlags(relaxed, receipt bool, notify string) (f LetterFlags, err error) {
	if relaxed {
		f |= LetterRelaxed
	}
	if receipt {
		f |= LetterReceipt
	}
	switch notify {
	case "":
	case NotifyDone:
		f |= LetterTellEnd
	default:
		err = fmt.Errorf("%w: notify %.20q: must be %s", ErrBadLetter, notify, NotifyDone)
	}
	return f, err
}

// Limits of a letter, in bytes unless stated otherwise.
const (
	LetterFixed     = 52      // the part before the entries
	MaxLetterTLVs   = 4 << 10 // all entries with their heads
	MaxLetter       = LetterFixed + MaxLetterTLVs + MaxInlineBody
	MaxLabels       = 32 // labels of a letter
	MaxLabelName    = 64
	MaxLabelValue   = 256
	MaxSubject      = 256
	MaxAddress      = 256 // where replies and bounces go
	MaxCorrelation  = 256
	MaxLetterType   = 128 // the type and the content type, each
	MaxSender       = 128
	traceparentSize = 55                       // W3C trace context, version 00
	objectSize      = 32 + 8 + 32 + 32 + 1 + 1 // name | size | SHA-256 | key | suite | packed
	producedSize    = 16 + 8                   // producer | number
	tlvsAt          = 46                       // where the fixed part has the size of the entries
)

// The tags of the entries of a letter. The top bit is the critical bit: a receiver refuses
// a letter with an unknown critical entry, and keeps any other unknown one as it is.
const (
	letterSubject = 1 + iota
	letterKey
	letterDedupe
	letterReplyTo
	letterCorrelation
	letterType
	letterContentType
	letterTraceparent
	letterSender
	letterLabel
	letterRedriveOf
	letterFirstID
	letterBounceOf
	letterBounceTo
	letterProduced
	letterKnown // the first tag that this version does not know

	letterCritical = 0x80
	letterObject   = letterCritical | 2 // 1 was without key, and no node ever wrote it
)

// A Letter is the bytes of a mail: the same on disk, between nodes and in the binary API.
// Fields of bytes that ParseLetter sets are views of its input. An empty field is absent.
//
//	version 1 | class 1 | flags 2 | id 16 | created 8 | not_after 8 | not_before 8 |
//	hops 1 | zero 1 | TLV length 2 | body length 4 | TLVs | body
//
// Numbers are big endian, times Unix milliseconds. Each TLV is tag 1 | length 2 | value,
// ascending by tag; only labels repeat, ascending by name. A letter has one encoding.
type Letter struct {
	Class     Class // not ClassUnspecified
	Flags     LetterFlags
	ID        MailID
	Created   int64 // at its origin
	NotAfter  int64 // it is not delivered after this; at most Created + MaxTTL
	NotBefore int64 // it is not delivered before this; 0: at once
	Hops      uint8 // letters that caused this one, one by one

	Subject     []byte // of a mail to a topic: see ValidSubject
	Key         []byte // mails of one key are handled in order; at most MaxKey
	Dedupe      []byte // the producer's name for it: a second one is not taken; at most MaxKey
	ReplyTo     []byte // the box for replies
	Correlation []byte // what it replies to, in the requester's words
	Type        []byte // what it is about, for programs
	ContentType []byte // media type of the body
	Traceparent []byte // W3C trace context
	Sender      []byte // the agent that sent it, in the words of its node
	BounceTo    []byte // the box that is told of its end; default: ReplyTo, then Sender
	Labels      Labels
	RedriveOf   MailID // the dead letter of which this is another try
	FirstID     MailID // the first letter of such a series
	BounceOf    MailID // the mail whose end it tells
	Produced    Produced

	Later  []byte       // entries of a later version, encoded
	Object LetterObject // the body, if it is too large to be inline
	Body   []byte       // at most MaxInlineBody
}

// A LetterObject says which body object is the body of a letter, and how it is opened. The
// zero value is none.
type LetterObject struct {
	Name   [32]byte // SHA-256 of its manifest
	Size   uint64   // bytes of the body, more than 0
	SHA256 [32]byte // of the body
	Key    [32]byte // of this object alone
	Suite  byte     // of its sealing
	Packed bool     // the body was compressed before
}

// IsZero reports whether there is none: the body is inline.
func (o *LetterObject) IsZero() bool { return o.Size == 0 }

// File returns the name of the file with the body, empty if there is none.
func (o *LetterObject) File() string {
	if o.IsZero() {
		return ""
	}
	return ObjectFile(o.Name)
}

// Digest returns the digest of the body, sha256:HEX, empty if there is none.
func (o *LetterObject) Digest() string {
	if o.IsZero() {
		return ""
	}
	return "sha256:" + hex.EncodeToString(o.SHA256[:])
}

// Body returns the reference in the form that the store of bodies reads.
func (o *LetterObject) Body() *BodyRef {
	return &BodyRef{Name: o.Name[:], Key: o.Key[:], Suite: uint32(o.Suite), Packed: o.Packed}
}

// A ProducerID is the random name of a program, or of a part of it, that numbers its mails.
type ProducerID [16]byte

// A Produced is the number that a producer gave to a mail, from 1. The node of the producer
// takes each number once; other nodes ignore it. The zero value is none.
type Produced struct {
	Producer ProducerID
	Number   uint64 // less than 2^63
}

// ParseProduced reads the form of the API: 32 hexadecimal digits in lower case, and a number.
func ParseProduced(producer string, number uint64) (Produced, error) {
	p := Produced{Number: number}
	raw, err := hex.DecodeString(producer)
	switch {
	case err != nil || len(raw) != len(p.Producer) || strings.ToLower(producer) != producer || ProducerID(raw) == ProducerID{}:
		return Produced{}, fmt.Errorf("%w: producer %.64q: must be 32 hexadecimal digits in lower case", ErrBadLetter, producer)
	case number == 0 || number >= 1<<63:
		return Produced{}, fmt.Errorf("%w: number %d: a producer counts its mails from 1", ErrBadLetter, number)
	}
	p.Producer = ProducerID(raw)
	return p, nil
}

// ProducerWindow is how many numbers of a producer, up to the highest one that was taken, its
// node knows one by one. A producer has fewer mails than that without an answer.
const ProducerWindow = 4096

// Labels are the labels of a letter in their encoding: see [MakeLabels].
type Labels []byte

// ErrBadLetter is returned for bytes that are not a letter, or not its one encoding.
var ErrBadLetter = errors.New("proto: bad letter")

// ErrNewLetter is returned for a letter of a later version, with an unknown flag or an
// unknown critical entry: a newer node may have made it, so it is no reason to end it.
var ErrNewLetter = errors.New("proto: letter of a newer version")

// MakeLabels returns the encoding of labels, or ErrBadLetter if there are more than
// MaxLabels or a name or value is outside the limits. A name is a word without '='.
func MakeLabels(labels map[string]string) (Labels, error) {
	var l Labels
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if strings.Contains(name, "=") || len(labels[name]) > MaxLabelValue {
			return nil, fmt.Errorf("%w: label %.64q", ErrBadLetter, name)
		}
		l = appendTLV(l, letterLabel, []byte(name+"="+labels[name]))
	}
	var x Letter
	if err := x.parseTLVs(l); err != nil {
		return nil, err
	}
	return l, nil
}

// All returns the labels by name, ascending. It stops at bytes that are not labels.
func (l Labels) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for r := []byte(l); len(r) > 0; {
			_, v, rest, ok := cutTLV(r)
			name, value, found := bytes.Cut(v, []byte("="))
			if !ok || !found || !yield(name, value) {
				return
			}
			r = rest
		}
	}
}

// AppendLetter appends the encoding of l to dst. It returns the error with which
// ParseLetter would refuse it.
func AppendLetter(dst []byte, l *Letter) ([]byte, error) {
	if l.Class < Critical || l.Class > Low {
		return dst, fmt.Errorf("%w: class %d", ErrBadLetter, l.Class)
	}
	start := len(dst)
	dst = append(dst, Version, byte(l.Class))
	dst = binary.BigEndian.AppendUint16(dst, uint16(l.Flags))
	dst = append(dst, l.ID[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(l.Created))
	dst = binary.BigEndian.AppendUint64(dst, uint64(l.NotAfter))
	dst = binary.BigEndian.AppendUint64(dst, uint64(l.NotBefore))
	dst = append(dst, l.Hops, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(min(len(l.Body), MaxFrame)))
	for tag := byte(letterSubject); tag < letterKnown; tag++ {
		switch tag {
		case letterLabel:
			dst = append(dst, l.Labels...)
		case letterRedriveOf:
			dst = appendMailID(dst, tag, l.RedriveOf)
		case letterFirstID:
			dst = appendMailID(dst, tag, l.FirstID)
		case letterBounceOf:
			dst = appendMailID(dst, tag, l.BounceOf)
		case letterProduced:
			if l.Produced != (Produced{}) {
				dst = append(append(dst, tag, 0, producedSize), l.Produced.Producer[:]...)
				dst = binary.BigEndian.AppendUint64(dst, l.Produced.Number)
			}
		default:
			v, limit := l.text(tag)
			if len(*v) > limit {
				return dst[:start], fmt.Errorf("%w: entry %#x of %d bytes", ErrBadLetter, tag, len(*v))
			}
			if len(*v) > 0 {
				dst = appendTLV(dst, tag, *v)
			}
		}
	}
	dst = append(dst, l.Later...)
	if l.Object != (LetterObject{}) {
		dst = appendTLV(dst, letterObject, l.Object.append(make([]byte, 0, objectSize)))
	}
	n := len(dst) - start - LetterFixed
	if n > MaxLetterTLVs || len(l.Body) > MaxInlineBody {
		return dst[:start], fmt.Errorf("%w: %d bytes of entries such as labels, at most %d; %d of body, at most %d", ErrBadLetter, n, MaxLetterTLVs, len(l.Body), MaxInlineBody)
	}
	binary.BigEndian.PutUint16(dst[start+tlvsAt:], uint16(n))
	dst = append(dst, l.Body...)
	if _, err := ParseLetter(dst[start:]); err != nil {
		return dst[:start], err
	}
	return dst, nil
}

// LetterID returns the id of a letter, which was parsed before.
func LetterID(letter []byte) MailID { return MailID(letter[4:]) }

// SetNumber changes the number that its producer gave to a letter, which has one.
func SetNumber(letter []byte, n uint64) {
	for r := letter[LetterFixed:]; len(r) > 0; {
		tag, v, rest, _ := cutTLV(r)
		if tag == letterProduced {
			binary.BigEndian.PutUint64(v[16:], n)
			return
		}
		r = rest
	}
}

// text returns the field of an entry that is text, and its limit; nil if tag is another.
func (l *Letter) text(tag byte) (field *[]byte, limit int) {
	switch tag {
	case letterSubject:
		return &l.Subject, MaxSubject
	case letterKey:
		return &l.Key, MaxKey
	case letterDedupe:
		return &l.Dedupe, MaxKey
	case letterReplyTo:
		return &l.ReplyTo, MaxAddress
	case letterCorrelation:
		return &l.Correlation, MaxCorrelation
	case letterType:
		return &l.Type, MaxLetterType
	case letterContentType:
		return &l.ContentType, MaxLetterType
	case letterTraceparent:
		return &l.Traceparent, traceparentSize
	case letterSender:
		return &l.Sender, MaxSender
	case letterBounceTo:
		return &l.BounceTo, MaxAddress
	}
	return nil, 0
}

// ParseLetter reads exactly the encoding of AppendLetter: one letter has one encoding. The
// letter refers to b, and nothing is allocated. It returns ErrBadLetter or ErrNewLetter.
func ParseLetter(b []byte) (Letter, error) {
	var l Letter
	if len(b) > 0 && b[0] > Version {
		return l, fmt.Errorf("%w: version %d", ErrNewLetter, b[0])
	}
	if len(b) < LetterFixed || len(b) > MaxLetter || b[0] != Version || b[45] != 0 {
		return l, fmt.Errorf("%w: %d bytes", ErrBadLetter, len(b))
	}
	l.Class = Class(b[1])
	l.Flags = LetterFlags(binary.BigEndian.Uint16(b[2:]))
	l.ID = MailID(b[4:20])
	l.Created = int64(binary.BigEndian.Uint64(b[20:]))
	l.NotAfter = int64(binary.BigEndian.Uint64(b[28:]))
	l.NotBefore = int64(binary.BigEndian.Uint64(b[36:]))
	l.Hops = b[44]
	tlvs, body := int(binary.BigEndian.Uint16(b[tlvsAt:])), int64(binary.BigEndian.Uint32(b[48:]))
	switch {
	case l.Flags&^letterFlags != 0:
		return l, fmt.Errorf("%w: flags %#x", ErrNewLetter, uint16(l.Flags))
	case tlvs > MaxLetterTLVs || body > MaxInlineBody || int64(len(b)) != LetterFixed+int64(tlvs)+body:
		return l, fmt.Errorf("%w: %d bytes with %d of entries and %d of body", ErrBadLetter, len(b), tlvs, body)
	case l.Class < Critical || l.Class > Low:
		return l, fmt.Errorf("%w: class %d", ErrBadLetter, l.Class)
	case l.ID.IsZero():
		return l, fmt.Errorf("%w: no id", ErrBadLetter)
	case l.Created < 0 || l.NotAfter < l.Created || l.NotAfter-l.Created > MaxTTL.Milliseconds():
		return l, fmt.Errorf("%w: made at %d, ends at %d", ErrBadLetter, l.Created, l.NotAfter)
	case l.NotBefore != 0 && (l.NotBefore < l.Created || l.NotBefore > l.NotAfter):
		return l, fmt.Errorf("%w: it is due at %d", ErrBadLetter, l.NotBefore)
	}
	if body > 0 {
		l.Body = b[LetterFixed+tlvs:]
	}
	err := l.parseTLVs(b[LetterFixed : LetterFixed+tlvs])
	if err == nil && l.Object.Size > 0 && body > 0 {
		err = fmt.Errorf("%w: its body is inline and an object", ErrBadLetter)
	}
	return l, err
}

// parseTLVs reads the entries.
func (l *Letter) parseTLVs(r []byte) error {
	var last byte
	var name []byte // of the last label
	labels := 0
	for len(r) > 0 {
		tag, v, rest, ok := cutTLV(r)
		switch {
		case !ok || tag < last || tag == last && tag != letterLabel || tag&^letterCritical == 0:
			return fmt.Errorf("%w: entry %#x", ErrBadLetter, tag)
		case tag == letterObject:
			ok = l.setObject(v)
		case tag > letterCritical:
			return fmt.Errorf("%w: critical entry %#x", ErrNewLetter, tag)
		case tag == letterLabel:
			labels++
			next, value, found := bytes.Cut(v, []byte("="))
			ok = labels <= MaxLabels && found && validWord(next, MaxLabelName) && len(value) <= MaxLabelValue && validText(value) && bytes.Compare(name, next) < 0
			name = next
			l.Labels = extend(l.Labels, r[:len(r)-len(rest)])
		case tag >= letterKnown:
			l.Later = extend(l.Later, r[:len(r)-len(rest)])
		default:
			ok = l.set(tag, v)
		}
		if !ok {
			return fmt.Errorf("%w: entry %#x of %d bytes", ErrBadLetter, tag, len(v))
		}
		r, last = rest, tag
	}
	return nil
}

// extend returns the view a and the view b behind it as one; a may be empty.
func extend(a, b []byte) []byte {
	if len(a) == 0 {
		return b
	}
	return a[:len(a)+len(b)]
}

// set takes the value of an entry that does not repeat, and reports whether it is valid.
func (l *Letter) set(tag byte, v []byte) bool {
	switch tag {
	case letterRedriveOf:
		return setMailID(&l.RedriveOf, v)
	case letterFirstID:
		return setMailID(&l.FirstID, v)
	case letterBounceOf:
		return setMailID(&l.BounceOf, v)
	case letterProduced:
		if len(v) != producedSize {
			return false
		}
		l.Produced = Produced{ProducerID(v), binary.BigEndian.Uint64(v[16:])}
		return l.Produced.Producer != ProducerID{} && l.Produced.Number > 0 && l.Produced.Number < 1<<63
	}
	field, limit := l.text(tag)
	*field = v
	switch tag {
	case letterSubject:
		return ValidSubject(v)
	case letterTraceparent:
		return ValidTraceparent(v)
	}
	return 0 < len(v) && len(v) <= limit && validText(v)
}

func (o *LetterObject) append(v []byte) []byte {
	v = binary.BigEndian.AppendUint64(append(v, o.Name[:]...), o.Size)
	v = append(append(append(v, o.SHA256[:]...), o.Key[:]...), o.Suite, 0)
	if o.Packed {
		v[len(v)-1] = 1
	}
	return v
}

func (l *Letter) setObject(v []byte) bool {
	if len(v) != objectSize || v[objectSize-1] > 1 {
		return false
	}
	l.Object = LetterObject{
		Name: [32]byte(v), Size: binary.BigEndian.Uint64(v[32:]), SHA256: [32]byte(v[40:]), Key: [32]byte(v[72:]), Suite: v[104], Packed: v[105] == 1,
	}
	return l.Object.Size > 0 && l.Object.Size <= MaxChunks*ChunkSize
}

func setMailID(id *MailID, v []byte) bool {
	if len(v) != len(id) {
		return false
	}
	*id = MailID(v)
	return !id.IsZero()
}

func appendMailID(dst []byte, tag byte, id MailID) []byte {
	if id.IsZero() {
		return dst
	}
	return appendTLV(dst, tag, id[:])
}

func appendTLV(dst []byte, tag byte, v []byte) []byte {
	dst = append(dst, tag)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(v)))
	return append(dst, v...)
}

// cutTLV takes the first entry off r.
func cutTLV(r []byte) (tag byte, v, rest []byte, ok bool) {
	if len(r) < 3 {
		return 0, nil, nil, false
	}
	n := int(binary.BigEndian.Uint16(r[1:]))
	if n > len(r)-3 {
		return r[0], nil, nil, false
	}
	return r[0], r[3 : 3+n], r[3+n:], true
}

// validText reports whether v is UTF-8 without control characters.
func validText(v []byte) bool {
	for _, c := range v {
		if c < ' ' || c == 0x7f {
			return false
		}
	}
	return utf8.Valid(v)
}

// validWord reports whether v is 1 to limit bytes of text without spaces.
func validWord(v []byte, limit int) bool {
	return 0 < len(v) && len(v) <= limit && validText(v) && bytes.IndexByte(v, ' ') < 0
}

// ValidTraceparent reports whether v has the form of version 00 of W3C trace context:
// 00-trace id-parent id-flags, in lower-case hexadecimal.
func ValidTraceparent(v []byte) bool {
	if len(v) != traceparentSize || v[0] != '0' || v[1] != '0' {
		return false
	}
	for i, c := range v {
		dash := i == 2 || i == 35 || i == 52
		hex := '0' <= c && c <= '9' || 'a' <= c && c <= 'f'
		if dash != (c == '-') || !dash && !hex {
			return false
		}
	}
	return true
}
