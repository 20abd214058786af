package wire

import "encoding/binary"

// A FramedRequest is a mail to send whose sender waits for the reply.
type FramedRequest struct {
	Ms        uint32   // how long
	ReplyFrom []string // as of a [MailRequest]
	FramedMail
}

// AppendRequest appends the body of a request.
func AppendRequest(dst []byte, r *FramedRequest) []byte {
	dst = append(binary.BigEndian.AppendUint32(dst, r.Ms), byte(len(r.ReplyFrom)))
	for _, who := range r.ReplyFrom {
		dst = appendText8(dst, who)
	}
	dst = appendText8(dst, string(r.To))
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(r.Letter))), r.Letter...)
}

// Request reads the body of a request.
func (f MailFrame) Request() (r FramedRequest, err error) {
	d := decoder{b: f.Body}
	r.Ms = d.u32()
	for range d.u8() {
		r.ReplyFrom = append(r.ReplyFrom, string(d.text8()))
	}
	r.To, r.Letter = d.text8(), d.bytes(int64(d.u32()))
	d.check(len(r.To) > 0)
	return r, d.end("request")
}

// A FramedReply is what became of a request: it was refused, or bounced, if it has a code.
type FramedReply struct {
	ID     [16]byte
	Known  bool // it was sent before
	Code   Code
	Detail string
	From   [32]byte // the node that the reply came from; zero: this one
	Letter []byte   // the reply; empty: none has come yet
}

// AppendReply appends the body of a replied frame.
func AppendReply(dst []byte, r *FramedReply) []byte {
	dst = appendProblem(appendFlag(append(dst, r.ID[:]...), r.Known), r.Code, r.Detail)
	dst = binary.BigEndian.AppendUint32(append(dst, r.From[:]...), uint32(len(r.Letter)))
	return append(dst, r.Letter...)
}

// Reply reads the body of a replied.
func (f MailFrame) Reply() (r FramedReply, err error) {
	d := decoder{b: f.Body}
	r.ID, r.Known = d.array16(), d.flag()
	r.Code, r.Detail = d.problem()
	r.From, r.Letter = d.array32(), d.bytes(int64(d.u32()))
	return r, d.end("replied")
}
