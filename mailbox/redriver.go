package mailbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

const (
	maxRedrive  = 1000 // dead letters in one call
	redriveRate = 50   // mails a second
	maxRate     = 10_000
)

// redriver sends dead letters again.
type redriver struct {
	clock  clock.Clock
	audit  func(ctx context.Context, action, what string) error
	places *places
	rules  *rules
	bodies *letterBodies
	mailer *mailer
	lookup *lookup
}

// redrive is [Boxes.Redrive].
func (x *redriver) redrive(ctx context.Context, name, sub string, r wire.RedriveMail) (out wire.RedrivenMail, err error) {
	p, k, err := x.places.subscribed(name, sub)
	if err != nil {
		return out, err
	}
	to := p
	if r.To != "" {
		if to, err = x.places.findTarget(r.To); err != nil {
			return out, err
		}
	}
	switch {
	case r.To == "" && p.kind == wire.BoxTopic:
		return out, invalid("a mail of a topic goes to every subscription: name the mailbox with to that is to get what is dead in %s", p.path(sub))
	case len(r.Seqs) > maxRedrive || r.Max < 0 || r.Max > maxRedrive:
		return out, invalid("at most %d dead letters at once", maxRedrive)
	case r.Rate < 0 || r.Rate > maxRate:
		return out, invalid("rate %d: must be from 1 to %d mails a second", r.Rate, maxRate)
	}
	out.Items = []wire.MailBatchItem{}
	due, more, err := x.due(ctx, k, p, sub, r)
	if err != nil {
		return out, failure(p, sub, err)
	}
	out.More = more
	pause := time.NewTicker(time.Second / time.Duration(cmp.Or(r.Rate, redriveRate)))
	defer pause.Stop()
	n := 0 // that were sent
	for _, f := range due {
		var sent wire.SentMail
		again := f.dead.Redriven
		if !again && n > 0 {
			err = wait(ctx, pause.C)
		}
		if !again && err == nil {
			sent, again, err = x.once(ctx, k, p, sub, f, to)
		}
		switch {
		case mail.IsDamage(err): // those behind it are not
			out.Items = append(out.Items, wire.MailBatchItem{Status: http.StatusInternalServerError, Problem: &wire.Problem{
				Status: http.StatusInternalServerError, Code: wire.CodeInternal, Detail: fmt.Sprintf("dead letter %d of %s cannot be sent again: %v", f.info.Seq, p.path(sub), err),
			}})
			err = nil
		case err != nil:
			err = fmt.Errorf("dead letter %d of %s, after %d were sent: %w", f.info.Seq, p.path(sub), n, failure(p, sub, err))
		case !again:
			n++
			out.Items = append(out.Items, wire.MailBatchItem{Status: http.StatusAccepted, Mail: &sent})
		case len(r.Seqs) > 0: // without them it was not asked for, and another call was faster
			out.Items = append(out.Items, wire.MailBatchItem{Status: http.StatusConflict, Problem: &wire.Problem{
				Status: http.StatusConflict, Code: wire.CodeRefused, Detail: fmt.Sprintf("%v: dead letter %d of %s was already sent again", wire.ErrRefused, f.info.Seq, p.path(sub)),
			}})
		}
		if err != nil {
			break
		}
	}
	if n > 0 {
		audited := x.audit(context.WithoutCancel(ctx), p.kind+".redrive", fmt.Sprintf("%s: %d mails to %s", p.path(sub), n, to.text))
		err = errors.Join(err, audited)
	}
	return out, err
}

// wait waits for a tick.
func wait(ctx context.Context, tick <-chan time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-tick:
		return nil
	}
}

// due returns the dead letters to send again, and whether there are more.
func (x *redriver) due(ctx context.Context, k *mail.Broker, p place, sub string, r wire.RedriveMail) (due []found, more bool, err error) {
	limit := cmp.Or(r.Max, maxRedrive)
	for from := uint64(0); ; {
		some, next, err := x.lookup.scan(ctx, k, p, sub, wire.MailQuery{State: "DEAD"}, from)
		if err != nil {
			return nil, false, err
		}
		for _, f := range some {
			switch {
			case len(r.Seqs) > 0 && !slices.Contains(r.Seqs, f.info.Seq) || len(r.Seqs) == 0 && f.dead.Redriven:
			case len(due) == limit:
				return due, true, nil
			default:
				due = append(due, f)
			}
		}
		if from = next; from == 0 {
			return due, false, missing(r.Seqs, due)
		}
	}
}

// missing returns an error that names a dead letter that was asked for and does not exist.
func missing(seqs []uint64, due []found) error {
	for _, seq := range seqs {
		if !slices.ContainsFunc(due, func(f found) bool { return f.info.Seq == seq }) {
			return fmt.Errorf("%w: there is no dead letter %d", wire.ErrNotFound, seq)
		}
	}
	return nil
}

// once sends a dead letter again and marks it, unless another call has done so: then again
// is true. The box does not leave between the two.
func (x *redriver) once(ctx context.Context, k *mail.Broker, p place, sub string, f found, to place) (sent wire.SentMail, again bool, err error) {
	x.rules.changing.Lock()
	defer x.rules.changing.Unlock()
	if k.HandoverOf(p.name).IsLeaving() {
		return sent, false, fmt.Errorf("%w: %s is on its way to another home: try again when it is there", wire.ErrRefused, p.text)
	}
	isHere := false
	if err := k.View(ctx, func(s *box.State) {
		subID, _ := s.FindSub(f.box, sub)
		for d := range s.DeadLetters(f.box, subID, f.info.Seq) {
			if isHere = d.Seq == f.info.Seq; d.Seq >= f.info.Seq {
				again = isHere && d.Redriven
				return
			}
		}
	}); err != nil || again {
		return sent, again, err
	}
	if !isHere {
		return sent, false, fmt.Errorf("%w: there is no such dead letter any more", wire.ErrNotFound)
	}
	ctx = context.WithoutCancel(ctx) // a caller that leaves does not come between the mail and the mark
	if sent, err = x.sendAgain(ctx, k, f, to); err == nil {
		err = k.Redriven(ctx, p.name, sub, []uint64{f.info.Seq})
	}
	return sent, false, err
}

func (x *redriver) sendAgain(ctx context.Context, k *mail.Broker, f found, to place) (wire.SentMail, error) {
	kept, from, err := k.MailOf(ctx, f.kept())
	if err != nil {
		return wire.SentMail{}, err
	}
	l, err := proto.ParseLetter(kept.Letter)
	if err != nil {
		return wire.SentMail{}, err
	}
	now := x.clock.Now()
	if l.Flags &= proto.LetterTellEnd; l.Flags != 0 {
		x.places.tellFirstSender(from, &l)
	}
	if l.RedriveOf = l.ID; l.FirstID.IsZero() {
		l.FirstID = l.ID
	}
	life := l.NotAfter - l.Created
	l.ID, l.Created, l.NotBefore, l.Dedupe = proto.NewMailID(now), now.UnixMilli(), 0, fmt.Appendf(nil, "redrive:%s:%d:%d", l.RedriveOf, f.box, f.info.Seq)
	l.NotAfter, l.Produced = l.Created+life, proto.Produced{}
	letter, err := proto.AppendLetter(nil, &l)
	if err != nil {
		return wire.SentMail{}, err
	}
	if name := l.Object.File(); name != "" && !x.bodies.store.Pin(name) {
		return wire.SentMail{}, fmt.Errorf("%w: the body is no longer stored: send the mail again", wire.ErrRefused)
	}
	sent, err := x.mailer.deliver(ctx, []place{to}, [][]byte{letter}, false, nil)
	if x.bodies.unpin(l.Object, err); err != nil {
		return wire.SentMail{}, err
	}
	return x.mailer.sentMail(to, sent[0], false)
}
