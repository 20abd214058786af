package mailbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

const (
	handlerTimeout = 10 * time.Minute // of one mail
	leastExtension = 10 * time.Second // of a lease while its program runs
	abandonDelay   = time.Second      // after a program was killed
	forwardRetry   = 30 * time.Second // after a box refused for now what came of a mail

	limitCheck = 500 * time.Millisecond // between two looks at the time of a run
)

// A work is one delivery to a handler.
type work struct {
	h       *handlers
	r       *runner
	handler handler.Handler
	place   place
	turn    *turn
	mail.Delivery
}

// do handles the delivery and settles it. The error says why nothing was started: it is not
// the mail's fault.
func (w work) do(ctx, leasing context.Context) error {
	if !w.await(leasing) {
		return nil
	}
	if !w.h.rules.allows(w.place.name, w.From) {
		w.settle(ctx, mail.Settlement{Op: box.Final, Reason: proto.CodeDenied.Name() + ": the mailbox does not allow mail from this node now, so nothing was started"})
		return nil
	}
	given, err := w.h.views.delivered(w.place, []mail.Delivery{w.Delivery})
	if err != nil {
		w.settle(ctx, mail.Settlement{Op: box.Return})
		return err // a bug: the ledger has no letter there
	}
	d := &given[0]
	l, err := proto.ParseLetter(w.Letter)
	if err != nil {
		return err
	}
	if len(w.r.settings.Exec) > 0 && w.h.programs.Interrupted(w.place.text, proto.TaskID(l.ID)) {
		w.settle(ctx, mail.Settlement{Op: box.Abandon, Delay: abandonDelay, Reason: "the node died while the program ran"})
		return nil
	}
	if err := w.h.canForward(ctx, w.r); err != nil {
		w.settle(ctx, mail.Settlement{Op: box.Return})
		return err
	}
	res := w.run(ctx, d, &l)
	switch res.Outcome {
	case handler.Success:
		w.succeed(ctx, res, l)
	case handler.Fail:
		w.settle(ctx, failed(box.Final, res))
	case handler.Crashed, handler.NoSpace:
		s := failed(box.Abandon, res)
		s.Delay = abandonDelay
		w.settle(ctx, s)
	case handler.Cancelled: // the node stops, or somebody else has the mail
		w.settle(ctx, mail.Settlement{Op: box.Return})
	case handler.Unready:
		w.settle(ctx, mail.Settlement{Op: box.Return})
		return stopped(wire.ProblemUnready, wire.NoteArgs{Detail: res.Reason})
	default:
		w.settle(ctx, failed(box.Nack, res))
	}
	return nil
}

// run calls the handler, and extends the lease until it returns.
func (w work) run(ctx context.Context, d *wire.DeliveredMail, l *proto.Letter) *handler.Result {
	ctx, stop := context.WithCancelCause(ctx)
	var extended sync.WaitGroup
	extended.Go(func() { w.extend(ctx, stop) })
	extended.Go(func() { w.limit(ctx, stop) })
	defer func() { stop(nil); extended.Wait() }()
	body, err := w.h.bodies.openChecked(ctx, l)
	if err != nil {
		return unreadable(ctx, err)
	}
	defer body.Close()
	origin := w.From
	if origin.IsZero() {
		origin = w.h.self
	}
	return handler.Call(ctx, w.handler, &handler.Run{
		ID: proto.TaskID(l.ID), Attempt: w.Attempt, Epoch: proto.Seq{Boot: w.Handle.Boot, Counter: w.Handle.N}, Origin: origin,
		Content: &proto.Content{Kind: w.place.text, ContentType: string(l.ContentType), Traceparent: string(l.Traceparent)}, Env: d.Env(),
		Body: body, BodySize: d.Mail.Size,
	})
}

// limit stops the run when it is out of time by the boot clock, which unlike timers counts
// suspended time (I14).
func (w work) limit(ctx context.Context, stop context.CancelCauseFunc) {
	end := w.h.clock.Boot() + cmp.Or(time.Duration(w.r.settings.Timeout), handlerTimeout)
	tick := time.NewTicker(limitCheck)
	defer tick.Stop()
	for w.h.clock.Boot() < end {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	stop(handler.ErrTimeout)
}

// unreadable returns the result for a body that cannot be read: now, or if it is lost for good.
func unreadable(ctx context.Context, err error) *handler.Result {
	res := &handler.Result{Outcome: handler.Retry, Reason: fmt.Sprintf("the body cannot be read: %v", err)}
	switch {
	case errors.Is(err, mail.ErrNoBody):
		res.Outcome = handler.Fail
	case ctx.Err() != nil:
		res.Outcome = handler.Stopped(context.Cause(ctx))
	}
	return res
}

// extend extends the lease until ctx is done. If it is lost, it stops the run.
func (w work) extend(ctx context.Context, stop context.CancelCauseFunc) {
	lease := max(w.Lease, leastExtension)
	tick := time.NewTicker(lease / 3)
	defer tick.Stop()
	for {
		if code := w.settle(ctx, mail.Settlement{Op: box.Extend, Delay: lease}); code == proto.CodeStale || code == proto.CodeNoHandler {
			stop(handler.ErrLeaseLost)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// settle settles the delivery and returns the code of the answer.
func (w work) settle(ctx context.Context, s mail.Settlement) proto.Code {
	ctx = context.WithoutCancel(ctx)
	s.Handle = w.Handle
	if s.Op != box.Extend {
		if err := w.h.fail(PointSettle); err != nil {
			return proto.CodeBusy
		}
		defer func() { _ = w.h.fail(PointSettled) }() // it is on disk: nothing can fail any more
	}
	settled, err := w.h.ledger.broker().Settle(ctx, w.place.name, w.r.sub, []mail.Settlement{s})
	if errors.Is(err, box.ErrNotFound) {
		return proto.CodeNoHandler
	}
	if err != nil {
		w.h.log.Warn("what a handler did with a mail may not be settled: it may be handled again", "box", w.place.text, "seq", w.Handle.Seq, "why", err)
		return proto.CodeBusy
	}
	if s.Op != box.Extend && settled[0].Code == proto.CodeOK && w.turn != nil {
		w.turn.settled = true
	}
	return settled[0].Code
}

// succeed acknowledges the mail, and forwards what came of it if the settings say so.
func (w work) succeed(ctx context.Context, res *handler.Result, l proto.Letter) {
	if w.r.settings.Forward == "" {
		w.settle(ctx, mail.Settlement{Op: box.Ack})
		return
	}
	to, err := w.h.places.findTarget(w.r.settings.Forward)
	if err != nil {
		w.settle(ctx, mail.Settlement{Op: box.Defer, Delay: handlerRetry, Reason: cutReason("forward: " + err.Error())})
		return
	}
	letter, err := proto.AppendLetter(nil, w.successor(l, res.Output))
	if err != nil {
		w.settle(ctx, mail.Settlement{Op: box.Final, Reason: cutReason("forward: " + err.Error())})
		return
	}
	sent, err := w.pass(ctx, to, letter, forwardRetry)
	w.turn.settled = err == nil
	switch {
	case err != nil: // if the mail is acknowledged all the same, this does not count
		w.settle(ctx, mail.Settlement{Op: box.Defer, Delay: handlerRetry, Reason: cutReason("forward to " + to.text + ": " + err.Error())})
		w.h.log.Warn("a mail may not be forwarded: then it is handled again", "box", w.place.text, "seq", w.Handle.Seq, "to", to.text, "why", err)
	case sent.Code != proto.CodeOK:
		w.h.log.Warn("a mail is not forwarded", "box", w.place.text, "seq", w.Handle.Seq, "to", to.text, "code", sent.Code.Name(), "why", sent.Detail)
	}
}

// pass acknowledges the delivery and sends what came of it with the same append. If that is
// refused for now, the mail is delivered again after a time.
func (w work) pass(ctx context.Context, to place, letter []byte, again time.Duration) (mail.Sent, error) {
	if err := w.h.fail(PointSettle); err != nil {
		return mail.Sent{}, err
	}
	out := mail.Outgoing{Box: to.name, Home: to.home, Generation: to.generation, Letter: letter}
	sent, err := w.h.ledger.broker().AckAndSend(context.WithoutCancel(ctx), w.place.name, w.r.sub, w.Handle, out, again)
	_ = w.h.fail(PointSettled) // it is on disk: nothing can fail any more
	switch {
	case err != nil:
	case sent.Code == proto.CodeFull:
		w.r.needs.Store(int64(len(letter)))
	case sent.Code == proto.CodeOK:
		w.r.needs.Store(0)
		if to.home != w.h.self {
			w.h.want(to.home)
		}
	}
	return sent, err
}

// canForward returns why a box, or the spool of one on another node, takes nothing now of what is
// forwarded, so that no program runs for nothing: it must have room for as much as it refused last.
func (h *handlers) canForward(ctx context.Context, r *runner) error {
	if r.settings.Forward == "" {
		return nil
	}
	to, err := h.places.findTarget(r.settings.Forward)
	if err != nil {
		return stopped(wire.ProblemForwardUnknown, wire.NoteArgs{Other: r.settings.Forward, Detail: err.Error()})
	}
	name, room := to.name, box.Result{Code: proto.CodeNoHandler}
	if to.home != h.self {
		name, room.Code = box.SpoolPrefix+name, proto.CodeOK // it is made for the first mail
	}
	if err := h.ledger.broker().View(ctx, func(s *box.State) {
		if id, ok := s.Find(name); ok {
			size := r.needs.Load()
			if limits, _ := s.Settings(id); limits.Bytes > 0 && size > int64(limits.Bytes) {
				size = 0 // since it was set: what is larger is refused for good
			}
			room = s.Room(&box.Mail{Box: id, Letter: make([]byte, size)})
		}
	}); err != nil {
		return failure(to, "", err)
	}
	if room.Code == proto.CodeOK {
		return nil
	}
	return refusedForward(to, room.Code, room.Detail)
}

// refusedForward returns the problem of a runner whose box takes nothing now.
func refusedForward(to place, code proto.Code, detail string) error {
	if code == proto.CodeNoHandler {
		return stopped(wire.ProblemForwardMissing, wire.NoteArgs{Other: to.text})
	}
	return stopped(wire.ProblemForwardRefused, wire.NoteArgs{Other: to.text, Refusal: code.Name(), Detail: detail})
}

// successor returns the mail that came of another one: it has its headers, and is one hop
// further. What came of a bounce is no bounce. Its end is told to the sender of the first.
func (w work) successor(l proto.Letter, body []byte) *proto.Letter {
	now := w.h.clock.Now()
	w.h.places.tellFirstSender(w.From, &l)
	l.ID, l.Created, l.NotBefore, l.Hops, l.Body = proto.NewMailID(now), now.UnixMilli(), 0, l.Hops+1, body
	l.Dedupe, l.RedriveOf, l.FirstID, l.Object = nil, proto.MailID{}, proto.MailID{}, proto.LetterObject{}
	l.Produced = proto.Produced{}
	if l.BounceOf = (proto.MailID{}); mail.IsBounce(&l) { // boxes take those from everybody
		l.Type = nil
	}
	l.Flags = 0 // its sender asked for the mail that it came of
	return &l
}

// failed returns the settlement for a run that failed: why, and behind a line break the last
// line of what the program wrote, which senders are not told.
func failed(op box.Op, res *handler.Result) mail.Settlement {
	reason, _, _ := strings.Cut(res.Reason, "\n")
	if last := lastLine(res.Stderr); last != "" {
		reason += "\n" + last
	}
	return mail.Settlement{Op: op, Reason: cutReason(reason), Stderr: res.Stderr}
}

// toldReason returns the reason of a try or of a dead letter for people on this node, with the
// last line of what its program wrote, and all that it wrote.
func toldReason(text string) (reason, stderr string) {
	reason, stderr, _ = strings.Cut(text, "\n")
	last, rest, ok := strings.Cut(stderr, "\n")
	if ok && strings.HasPrefix(lastLine(rest), last) {
		stderr = rest
	}
	if last != "" {
		reason += ": " + last
	}
	return reason, stderr
}

// lastLine returns the last line of a text that is not empty.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndex(text, "\n")+1:]
}
