package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// MailFrames is the WebSocket subprotocol of the stream of mail in frames. A message has one
// or more of them, one behind the other:
//
//	length 4 of what follows | op 1 | ref 4 | body
//
// Numbers are big endian. Ref is the number of a request, or of a session: see [MailFrame].
const MailFrames = "balefire.mail.v1"

// MailDocuments is the subprotocol of the same in JSON, one document a message.
const MailDocuments = "balefire.mail.v1+json"

// MaxMailMessage is the size of the largest message of the stream of mail: 1 MiB of mail, and
// what is around it.
const MaxMailMessage = 1<<20 + 1<<17

// Limits of the stream of mail.
const (
	MaxMailCredit   = 1 << 16 // of a session
	MaxMailSessions = 64      // of a connection
	MaxMailRequests = 64      // of a connection that wait for their replies
)

// The ops of frames. Those of the node have the top bit.
const (
	OpSend    = 0x01
	OpRead    = 0x02
	OpSettle  = 0x03
	OpCredit  = 0x04
	OpStop    = 0x05
	OpPing    = 0x06
	OpRequest = 0x07

	OpSent      = 0x80 | OpSend
	OpDelivered = 0x80 | OpRead
	OpSettled   = 0x80 | OpSettle
	OpEnd       = 0x80 | OpStop
	OpPong      = 0x80 | OpPing
	OpReplied   = 0x80 | OpRequest
)

// ErrBadFrame is returned for bytes that are not a frame.
var ErrBadFrame = errors.New("bad frame")

const frameHead = 9

// A MailFrame is one frame.
//
//	op            ref      body
//	send          request  count 2 | (to: length 1, text; none: as before | letter: length 4, bytes)…
//	read          session  credit 8 | priority 4 | box, sub, reader: each length 1, text
//	settle        request  session 4 | count 2 | (op 1 | seq 8 | boot 8 | n 8 | ms 4 | reason: length 2, text)…
//	credit        session  add 8
//	stop          session
//	ping, pong    request
//	request       request  ms 4 | count 1 | (who may reply: length 1, text)… | to: length 1, text | letter: length 4, bytes
//	sent          request  count 2 | (id 16 | seq 8 | flags 1 | code: length 1, text | detail: length 2, text)…
//	delivered     session  count 2 | (seq 8 | boot 8 | n 8 | attempt 2 | flags 1 | ms 4 | from 32 | letter: length 4, bytes)…
//	settled       request  count 2 | (index 2 | code 1 | ms 4)… | code: length 1, text | detail: length 2, text
//	end           session  code: length 1, text | detail: length 2, text
//	replied       request  id 16 | flags 1 | code: length 1, text | detail: length 2, text | from 32 | letter: length 4, bytes
type MailFrame struct {
	Op   byte
	Ref  uint32
	Body []byte
}

// CutMailFrame takes the first frame off a message.
func CutMailFrame(msg []byte) (f MailFrame, rest []byte, err error) {
	if len(msg) < frameHead {
		return f, nil, fmt.Errorf("%w: %d bytes, at least %d", ErrBadFrame, len(msg), frameHead)
	}
	n := binary.BigEndian.Uint32(msg)
	if n < frameHead-4 || int64(n) > int64(len(msg)-4) {
		return f, nil, fmt.Errorf("%w: a length of %d in %d bytes", ErrBadFrame, n, len(msg))
	}
	return MailFrame{Op: msg[4], Ref: binary.BigEndian.Uint32(msg[5:]), Body: msg[frameHead : 4+n]}, msg[4+n:], nil
}

// AppendMailFrame appends a frame to dst whose body is what the encoder appends.
func AppendMailFrame(dst []byte, op byte, ref uint32, body func([]byte) []byte) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0, op)
	dst = binary.BigEndian.AppendUint32(dst, ref)
	if body != nil {
		dst = body(dst)
	}
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	return dst
}

// A FramedMail is a mail to send.
type FramedMail struct{ To, Letter []byte }

// AppendSend appends the body of a send.
func AppendSend(dst []byte, mails []FramedMail) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(mails)))
	for i, m := range mails {
		to := m.To
		if i > 0 && string(to) == string(mails[i-1].To) {
			to = nil
		}
		dst = append(append(dst, byte(len(to))), to...)
		dst = append(binary.BigEndian.AppendUint32(dst, uint32(len(m.Letter))), m.Letter...)
	}
	return dst
}

// Mails reads the body of a send, and appends its mails to dst.
func (f MailFrame) Mails(dst []FramedMail) ([]FramedMail, error) {
	d := decoder{b: f.Body}
	n := d.count()
	var to []byte
	for range n {
		if next := d.text8(); len(next) > 0 {
			to = next
		}
		dst = append(dst, FramedMail{to, d.bytes(int64(d.u32()))})
		d.check(len(to) > 0)
	}
	d.check(n > 0)
	return dst, d.end("send")
}

// A ReadMail begins a session.
type ReadMail struct {
	Box          string
	Subscription string // of a topic
	Reader       string // who reads, for people and for exclusive subscriptions
	Priority     int32  // of a failover subscription: the reader with the highest one has all; with the strategy priority it is first
	Credit       uint64 // mails that may be unsettled at once
}

// Append appends the body of a read.
func (r *ReadMail) Append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, r.Credit)
	dst = binary.BigEndian.AppendUint32(dst, uint32(r.Priority))
	for _, text := range []string{r.Box, r.Subscription, r.Reader} {
		dst = appendText8(dst, text)
	}
	return dst
}

// Read reads the body of a read frame.
func (f MailFrame) Read() (ReadMail, error) {
	d := decoder{b: f.Body}
	r := ReadMail{Credit: d.u64(), Priority: int32(d.u32())}
	r.Box, r.Subscription, r.Reader = string(d.text8()), string(d.text8()), string(d.text8())
	return r, d.end("read")
}

// A FramedLease names a delivery: SEQ.BOOT.N.
type FramedLease struct{ Seq, Boot, N uint64 }

// Operations on a delivery, as encoded in frames.
const (
	FrameAck    = 1
	FrameNack   = 2
	FrameFinal  = 3 // it can never succeed
	FrameDefer  = 4
	FrameExtend = 5
	FrameBounce = 6
)

// A FramedSettlement is what a reader did with one delivery.
type FramedSettlement struct {
	Op     byte
	Lease  FramedLease
	Ms     uint32 // until the next delivery, or the end of an extended lease
	Reason []byte
}

// AppendSettle appends the body of a settle frame.
func AppendSettle(dst []byte, session uint32, what []FramedSettlement) []byte {
	dst = binary.BigEndian.AppendUint32(dst, session)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(what)))
	for i := range what {
		w := &what[i]
		dst = appendLease(append(dst, w.Op), w.Lease)
		dst = appendText16(binary.BigEndian.AppendUint32(dst, w.Ms), string(w.Reason))
	}
	return dst
}

// Settle reads the body of a settle, and appends what it settles to dst.
func (f MailFrame) Settle(dst []FramedSettlement) (session uint32, _ []FramedSettlement, err error) {
	d := decoder{b: f.Body}
	session = d.u32()
	n := d.count()
	for range n {
		w := FramedSettlement{Op: d.u8(), Lease: d.lease(), Ms: d.u32(), Reason: d.text16()}
		d.check(w.Op >= FrameAck && w.Op <= FrameBounce)
		dst = append(dst, w)
	}
	d.check(n > 0)
	return session, dst, d.end("settle")
}

// AppendCredit appends the body of a credit.
func AppendCredit(dst []byte, add uint64) []byte { return binary.BigEndian.AppendUint64(dst, add) }

// Credit reads the body of a credit.
func (f MailFrame) Credit() (uint64, error) {
	d := decoder{b: f.Body}
	return d.u64(), d.end("credit")
}

// Empty checks that the frame has no body.
func (f MailFrame) Empty() error {
	d := decoder{b: f.Body}
	return d.end(fmt.Sprintf("op %#x", f.Op))
}

// A FramedResult is what became of a mail that was sent: it was refused if it has a code.
type FramedResult struct {
	ID     [16]byte
	Seq    uint64 // in its box; 0: the box is on another node, or Known by its number
	Known  bool   // the dedupe key or the number was used before; this is the first mail with it
	Code   Code
	Detail string
}

// AppendResult appends one result to the body of a sent, which begins with their count.
func AppendResult(dst []byte, r *FramedResult) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, r.ID[:]...), r.Seq)
	return appendProblem(appendFlag(dst, r.Known), r.Code, r.Detail)
}

// Results reads the body of a sent, and appends its results to dst.
func (f MailFrame) Results(dst []FramedResult) ([]FramedResult, error) {
	d := decoder{b: f.Body}
	for range d.count() {
		r := FramedResult{ID: d.array16(), Seq: d.u64(), Known: d.flag()}
		r.Code, r.Detail = d.problem()
		dst = append(dst, r)
	}
	return dst, d.end("sent")
}

// A FramedDelivery is a mail that was leased to a session.
type FramedDelivery struct {
	Lease       FramedLease
	Attempt     uint16
	Redelivered bool
	Ms          uint32   // of the lease, from now
	From        [32]byte // the node that it came from; zero: this one
	Letter      []byte
}

// AppendDelivery appends one delivery to the body of a delivered, which begins with their
// count.
func AppendDelivery(dst []byte, x *FramedDelivery) []byte {
	dst = binary.BigEndian.AppendUint16(appendLease(dst, x.Lease), x.Attempt)
	dst = binary.BigEndian.AppendUint32(appendFlag(dst, x.Redelivered), x.Ms)
	dst = binary.BigEndian.AppendUint32(append(dst, x.From[:]...), uint32(len(x.Letter)))
	return append(dst, x.Letter...)
}

// Deliveries reads the body of a delivered, and appends its deliveries to dst.
func (f MailFrame) Deliveries(dst []FramedDelivery) ([]FramedDelivery, error) {
	d := decoder{b: f.Body}
	for range d.count() {
		x := FramedDelivery{Lease: d.lease(), Attempt: d.u16(), Redelivered: d.flag(), Ms: d.u32(), From: d.array32()}
		x.Letter = d.bytes(int64(d.u32()))
		dst = append(dst, x)
	}
	return dst, d.end("delivered")
}

// Results of settling a delivery, in frames.
var framedCodes = [...]string{SettledOK, SettledStale, SettledOutOfOrder, SettledUnknown}

// A FramedSettled is the result for the delivery at an index of a settle.
type FramedSettled struct {
	Index uint16
	Code  string // one of those of a [SettledItem]
	Ms    uint32 // of an extended lease
}

// AppendSettled appends the body of a settled: what did not count, or was extended, and why
// all of it did not count, if it has a code. A word that is none of theirs is SettledUnknown.
func AppendSettled(dst []byte, what []FramedSettled, code Code, detail string) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(what)))
	for _, w := range what {
		at := len(framedCodes) - 1
		for i, word := range framedCodes {
			if word == w.Code {
				at = i
			}
		}
		dst = binary.BigEndian.AppendUint32(append(binary.BigEndian.AppendUint16(dst, w.Index), byte(at)), w.Ms)
	}
	return appendProblem(dst, code, detail)
}

// Settled reads the body of a settled.
func (f MailFrame) Settled() (what []FramedSettled, code Code, detail string, err error) {
	d := decoder{b: f.Body}
	for range d.count() {
		w := FramedSettled{Index: d.u16()}
		at := d.u8()
		if d.check(int(at) < len(framedCodes)); d.err == nil {
			w.Code = framedCodes[at]
		}
		w.Ms = d.u32()
		what = append(what, w)
	}
	code, detail = d.problem()
	return what, code, detail, d.end("settled")
}

// AppendEnd appends the body of an end.
func AppendEnd(dst []byte, code Code, detail, home string) []byte {
	return appendText8(appendProblem(dst, code, detail), home)
}

// End reads the body of an end.
func (f MailFrame) End() (code Code, detail, home string, err error) {
	d := decoder{b: f.Body}
	code, detail = d.problem()
	home = string(d.text8())
	return code, detail, home, d.end("end")
}

func appendText8(dst []byte, text string) []byte {
	text = text[:min(len(text), 255)]
	return append(append(dst, byte(len(text))), text...)
}

func appendText16(dst []byte, text string) []byte {
	text = text[:min(len(text), 1<<10)]
	return append(binary.BigEndian.AppendUint16(dst, uint16(len(text))), text...)
}

func appendProblem(dst []byte, code Code, detail string) []byte {
	return appendText16(appendText8(dst, string(code)), detail)
}

func appendFlag(dst []byte, on bool) []byte {
	if on {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func appendLease(dst []byte, l FramedLease) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(dst, l.Seq), l.Boot), l.N)
}

// A decoder reads a body. After the first mistake all it reads is zero.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) check(ok bool) {
	if !ok && d.err == nil {
		d.err = ErrBadFrame
	}
}

// bytes returns the next n bytes, nil if there are not as many.
func (d *decoder) bytes(n int64) []byte {
	d.check(n <= int64(len(d.b)))
	if d.err != nil {
		return nil
	}
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out
}

func (d *decoder) u8() byte {
	if b := d.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) u16() uint16 {
	if b := d.bytes(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if b := d.bytes(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if b := d.bytes(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) flag() bool {
	v := d.u8()
	d.check(v <= 1)
	return v == 1
}

// count reads a count of at most MaxMailBatch; 0 after a mistake.
func (d *decoder) count() int {
	n := int(d.u16())
	if d.check(n <= MaxMailBatch); d.err != nil {
		return 0
	}
	return n
}

func (d *decoder) array16() (v [16]byte) { copy(v[:], d.bytes(16)); return v }
func (d *decoder) array32() (v [32]byte) { copy(v[:], d.bytes(32)); return v }
func (d *decoder) text8() []byte         { return d.bytes(int64(d.u8())) }
func (d *decoder) text16() []byte        { return d.bytes(int64(d.u16())) }
func (d *decoder) lease() FramedLease    { return FramedLease{d.u64(), d.u64(), d.u64()} }

func (d *decoder) problem() (Code, string) { return Code(d.text8()), string(d.text16()) }

// end returns the first mistake; bytes that are left are one.
func (d *decoder) end(what string) error {
	if d.check(len(d.b) == 0); d.err != nil {
		return fmt.Errorf("%w: %s", d.err, what)
	}
	return nil
}
