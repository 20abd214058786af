package mail

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// TypeBounce is the type of a letter that tells a sender that its mail was not delivered.
const TypeBounce = "balefire.bounce"

const (
	bounceTTL  = 7 * 24 * time.Hour
	bounceBody = 1 << 10 // bytes of the body that a bounce repeats
)

// MaxBounce is more bytes than the body of any bounce has.
const MaxBounce = 8 << 10

// A Bounce is a letter to the sender of a mail that was not delivered.
type Bounce struct {
	Origin proto.PeerID // where the mail came from; zero: from this node
	To     string       // the box that the mail named, or the agent that sent it; "": it named none
	Loop   bool         // so many mails caused it that this letter must not be sent: it might cause another
	Letter []byte       // of type [TypeBounce], with a dedupe key
}

// An undelivered is the body of a bounce, JSON.
type undelivered struct {
	Box     string `json:"box,omitempty"` // empty: it is gone
	State   string `json:"state"`
	Cause   string `json:"cause"`
	Reason  string `json:"reason,omitempty"`
	ID      string `json:"id"`
	FirstID string `json:"first_id,omitempty"`
	Subject string `json:"subject,omitempty"`
	Key     string `json:"key,omitempty"`
	Type    string `json:"type,omitempty"`
	Body    []byte `json:"body,omitempty"` // its first KiB
}

// bounce tells the senders of mails that were not delivered. Until it has, no checkpoint is
// written, so that a start after a crash finds the ends again.
func (b *Broker) bounce(ctx context.Context, ends []box.End) {
	if b.cfg.Bounced == nil {
		return
	}
	var all []Bounce
	for _, e := range ends {
		rec, err := b.read(e.Place, e.Length, nil)
		var t Bounce
		var ok bool
		if err == nil {
			t, ok, err = b.bounceOf(e, rec)
		}
		switch {
		case err != nil:
			b.cfg.Logger.Warn("the sender of a mail cannot be told that it was not delivered", "seq", e.Seq, "why", err)
		case ok:
			all = append(all, t)
		}
	}
	if len(all) == 0 {
		return
	}
	b.reports.bouncing++
	b.waiting.Go(func() {
		for _, t := range all {
			b.cfg.Bounced(ctx, t)
		}
		b.do(func(box.Now) { b.reports.bouncing-- })
	})
}

// bounceOf makes the bounce of a mail; ok is false if there is nobody to tell.
func (b *Broker) bounceOf(e box.End, rec []byte) (t Bounce, ok bool, err error) {
	m, err := box.MailOf(rec)
	if err != nil {
		return t, false, err
	}
	l, err := proto.ParseLetter(m.Letter)
	if err != nil || string(l.Type) == TypeBounce {
		return t, false, err
	}
	now := b.cfg.Clock.Now()
	u := undelivered{
		State: e.State.String(), Cause: e.Cause.String(), Reason: firstLine(e.Reason), ID: l.ID.String(),
		Subject: string(l.Subject), Key: string(l.Key), Type: string(l.Type), Body: l.Body[:min(len(l.Body), bounceBody)],
	}
	if s, ok := b.state.Settings(e.Box); ok {
		u.Box = strings.TrimPrefix(s.Name, box.SpoolPrefix)
	}
	if !l.FirstID.IsZero() {
		u.FirstID = l.FirstID.String()
	}
	body, err := json.Marshal(u)
	if err != nil {
		return t, false, err
	}
	t.Loop = l.Hops >= box.MaxHops
	t.To = cmp.Or(string(l.BounceTo), string(l.ReplyTo), string(l.Sender))
	t.Letter, err = proto.AppendLetter(nil, &proto.Letter{
		Class: proto.High, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(bounceTTL).UnixMilli(), Hops: min(l.Hops, box.MaxHops) + 1,
		Type: []byte(TypeBounce), ContentType: []byte("application/json"), BounceOf: l.ID, Dedupe: fmt.Appendf(nil, "bounce:%s:%d:%d:%d", l.ID, e.Box, e.Seq, e.Sub),
		Correlation: l.Correlation, Traceparent: l.Traceparent, Body: body,
	})
	t.Origin = b.peer(m.Origin)
	return t, err == nil, err
}

// firstLine returns a reason without what a program wrote.
func firstLine(reason string) string {
	reason, _, _ = strings.Cut(reason, "\n")
	return reason
}

// A DeadLetter is a dead letter with its text.
type DeadLetter struct {
	Box, Subscription string
	box.DeadLetter
	From     proto.PeerID // where it came from; zero: from this node
	Accepted int64        // Unix milliseconds
	Letter   []byte       // nil: its record was damaged, see Damage
	Damage   error
}

// deadLetters are those that are too many or too old.
type deadLetters struct {
	waiting []box.Archive
	running bool  // the archive has the first of them
	at      int64 // when it is tried again, box.Now.Mono
}

const (
	archiveRetry = 10 * time.Second // the wait after the archive failed
	archiveBytes = 1 << 20          // bytes of letters after which the archive is given no more at once
)

// archiveDue hands the archive the next dead letters that are too many or too old, and
// forgets them when it has them.
func (b *Broker) archiveDue(ctx context.Context, now box.Now) {
	if len(b.dead.waiting) == 0 || b.dead.running || now.Mono < b.dead.at {
		return
	}
	a := b.nextArchive()
	if b.cfg.Archive == nil {
		b.forgetDead(a)
		return
	}
	letters, err := b.deadLetters(a)
	if err != nil || len(letters) == 0 {
		b.archived(now, a, err)
		return
	}
	b.dead.running = true
	b.waiting.Go(func() {
		err := b.cfg.Archive(ctx, letters)
		b.do(func(now box.Now) { b.archived(now, a, err) })
	})
}

// nextArchive returns the first of the dead letters that wait for the archive.
func (b *Broker) nextArchive() box.Archive {
	a := b.dead.waiting[0]
	n, size := 0, int64(0)
	for n < len(a.Letters) && size < archiveBytes {
		size += a.Letters[n].Size
		n++
	}
	a.Letters = a.Letters[:n]
	return a
}

// archived goes on after dead letters were given to the archive.
func (b *Broker) archived(now box.Now, a box.Archive, err error) {
	b.dead.running = false
	if err == nil {
		b.forgetDead(a)
		return
	}
	b.dead.at = now.Mono + archiveRetry.Milliseconds()
	b.cfg.Logger.Warn("dead letters are not archived, and stay", "count", len(a.Letters), "why", err)
}

// forgetDead forgets the first of the dead letters that wait for the archive.
func (b *Broker) forgetDead(a box.Archive) {
	if first := &b.dead.waiting[0]; len(first.Letters) > len(a.Letters) {
		first.Letters = first.Letters[len(a.Letters):]
	} else {
		b.dead.waiting = b.dead.waiting[1:]
	}
	seqs := make([]uint64, len(a.Letters))
	for i, d := range a.Letters {
		seqs[i] = d.Seq
	}
	b.queue(box.AppendArchived(nil, a.Box, a.Sub, seqs), false, false, nil)
}

// deadLetters adds the text to dead letters, except those of a box or subscription that was
// removed.
func (b *Broker) deadLetters(a box.Archive) (all []DeadLetter, err error) {
	info, ok := b.state.Info(a.Box)
	sub, is := b.state.SubInfo(a.Box, a.Sub)
	if !ok || !is {
		return nil, nil
	}
	for _, l := range a.Letters {
		for d := range b.state.DeadLetters(a.Box, a.Sub, l.Seq) { // as it is now
			if d.Seq != l.Seq {
				break
			}
			t := DeadLetter{Box: info.Settings.Name, Subscription: sub.Settings.Name, DeadLetter: d}
			m, from, err := b.mailAt(d.Place, d.Length)
			switch {
			case err == nil:
				t.From, t.Accepted, t.Letter = from, m.At, m.Letter
			case errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt) || errors.Is(err, box.ErrBadRecord):
				t.Damage = err
			default:
				return nil, err
			}
			all = append(all, t)
			break
		}
	}
	return all, nil
}
