package mailbox

import (
	"context"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// serveForward is one session of the runner of a subscription that delivers into a box: it sends
// one mail after the other on, so that they keep their order, and when one cannot be sent now,
// those behind it wait. It returns why no other session should begin at once.
func (h *handlers) serveForward(_, leasing context.Context, r *runner) error {
	if err := h.canForward(leasing, r); err != nil {
		return err
	}
	p, k, err := h.places.subscribed(r.name, r.sub)
	if err != nil {
		return err
	}
	reader, err := k.Read(leasing, mail.Reading{Box: p.name, Subscription: r.sub, Reader: "to " + r.settings.Forward, Credit: 1})
	if err != nil {
		return unread(p, r.sub, err)
	}
	defer h.leaveRunner(leasing, reader, p.path(r.sub))
	for {
		given, err := reader.Next(leasing, 1)
		for _, d := range given {
			if err := (work{h: h, r: r, place: p, Delivery: d}).forward(leasing); err != nil {
				return err
			}
			r.setProblem(nil)
		}
		if err != nil {
			return failure(p, r.sub, err)
		}
	}
}

// forward acknowledges the delivery and sends the mail into the box of its subscription, with the
// same append. The error says why that cannot be now; then the mail waits, and nothing is spent.
func (w work) forward(ctx context.Context) error {
	l, err := proto.ParseLetter(w.Letter)
	if err != nil {
		return err // a bug: the ledger has no letter there
	}
	to, err := w.h.places.findTarget(w.r.settings.Forward)
	if err != nil {
		w.settle(ctx, mail.Settlement{Op: box.Return})
		return stopped(wire.ProblemForwardUnknown, wire.NoteArgs{Other: w.r.settings.Forward, Detail: err.Error()})
	}
	next := w.successor(l, l.Body)
	next.Object = l.Object
	letter, err := proto.AppendLetter(nil, next)
	if err != nil {
		w.settle(ctx, mail.Settlement{Op: box.Final, Reason: cutReason("forward: " + err.Error())})
		return nil
	}
	sent, err := w.pass(ctx, to, letter, 0)
	switch {
	case err != nil:
		w.settle(ctx, mail.Settlement{Op: box.Return}) // if it is acknowledged all the same, this does not count
		return stopped(wire.ProblemForwardFailed, wire.NoteArgs{Other: to.text, Refusal: string(wire.CodeOf(failure(to, "", err))), Detail: err.Error()})
	case sent.Code == proto.CodeOK || sent.Code == proto.CodeStale || sent.ForGood:
		return nil // sent, taken from this session, or a dead letter
	}
	return refusedForward(to, sent.Code, sent.Detail)
}
