package api

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// binaryForm is the subprotocol of frames. Its fields are used again for each request.
type binaryForm struct {
	request streamRequest
	mails   []wire.FramedMail
	what    []wire.FramedSettlement
}

func (b *binaryForm) requests(msg []byte, do func(*streamRequest) error) error {
	for len(msg) > 0 {
		f, rest, err := wire.CutMailFrame(msg)
		if err != nil {
			return err
		}
		q, err := b.framed(f)
		if err == nil {
			err = do(q)
		}
		if err != nil {
			return err
		}
		msg = rest
	}
	return nil
}

func (b *binaryForm) framed(f wire.MailFrame) (q *streamRequest, err error) {
	q = &b.request
	*q = streamRequest{op: f.Op, ref: f.Ref, session: f.Ref, letters: q.letters[:0], settle: q.settle[:0]}
	switch f.Op {
	case wire.OpSend:
		b.mails, err = f.Mails(b.mails[:0])
		for _, m := range b.mails {
			q.letters = append(q.letters, mailbox.Letter(m))
		}
	case wire.OpRead:
		q.read, err = f.Read()
	case wire.OpSettle:
		if q.session, b.what, err = f.Settle(b.what[:0]); err == nil {
			q.settle, err = appendSettlements(q.settle, b.what)
		}
	case wire.OpRequest:
		var r wire.FramedRequest
		r, err = f.Request()
		q.ask = askFrame(r)
	case wire.OpCredit:
		q.credit, err = f.Credit()
	case wire.OpStop, wire.OpPing:
		err = f.Empty()
	default:
		err = fmt.Errorf("unknown op %#x", f.Op)
	}
	return q, err
}

var framedOps = [...]box.Op{wire.FrameAck: box.Ack, wire.FrameNack: box.Nack, wire.FrameFinal: box.Final, wire.FrameDefer: box.Defer, wire.FrameExtend: box.Extend, wire.FrameBounce: box.Bounce}

func appendSettlements(dst []mail.Settlement, what []wire.FramedSettlement) ([]mail.Settlement, error) {
	for _, w := range what {
		delay := time.Duration(w.Ms) * time.Millisecond
		if delay > box.MaxDelay || w.Op == wire.FrameExtend && delay == 0 {
			return dst, fmt.Errorf("a time of %s in a settle: must be at most 30 days, and more than 0 to extend", delay)
		}
		dst = append(dst, mail.Settlement{Handle: box.Handle(w.Lease), Op: framedOps[w.Op], Delay: delay, Reason: mailbox.ToldReason(string(w.Reason))})
	}
	return dst, nil
}

func (*binaryForm) appendAnswer(dst []byte, a *streamAnswer) []byte {
	return wire.AppendMailFrame(dst, a.op, a.ref, func(dst []byte) []byte {
		switch a.op {
		case wire.OpSent:
			dst = binary.BigEndian.AppendUint16(dst, uint16(len(a.outcomes)))
			for _, o := range a.outcomes {
				r := wire.FramedResult{ID: o.ID, Seq: o.Seq, Known: o.Known}
				r.Code, r.Detail = reasonOf(o.Err)
				dst = wire.AppendResult(dst, &r)
			}
		case wire.OpDelivered:
			dst = binary.BigEndian.AppendUint16(dst, uint16(len(a.given)))
			for i := range a.given {
				d := &a.given[i]
				dst = wire.AppendDelivery(dst, &wire.FramedDelivery{
					Lease: wire.FramedLease(d.Handle), Attempt: uint16(d.Attempt), Redelivered: d.Redelivered, Ms: leaseTime(d.Lease), From: d.From, Letter: d.Letter,
				})
			}
		case wire.OpSettled:
			var what []wire.FramedSettled
			for i, r := range a.settled {
				if extended := a.asked[i] == box.Extend; r.Code != proto.CodeOK || extended {
					w := wire.FramedSettled{Index: uint16(i), Code: mailbox.SettledCode(r.Code)}
					if extended && r.Code == proto.CodeOK {
						w.Ms = leaseTime(r.Lease)
					}
					what = append(what, w)
				}
			}
			code, detail := reasonOf(a.err)
			dst = wire.AppendSettled(dst, what, code, detail)
		case wire.OpReplied:
			dst = wire.AppendReply(dst, a.reply.framed(a.err))
		case wire.OpEnd:
			code, detail, home := endOf(a.err)
			dst = wire.AppendEnd(dst, code, detail, home)
		}
		return dst
	})
}

// reasonOf returns the code and the detail of an error, nothing for nil.
func reasonOf(err error) (code wire.Code, detail string) {
	code, detail, _ = endOf(err)
	return code, detail
}

// endOf is reasonOf with the node of the box, if the error tells it.
func endOf(err error) (code wire.Code, detail, home string) {
	if err == nil {
		return "", "", ""
	}
	p := ProblemOf(err)
	return p.Code, p.Detail, p.Home
}
