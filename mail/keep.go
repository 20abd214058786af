package mail

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// TypeBounce is the type of a letter that tells a sender that its mail was not delivered.
const TypeBounce = "balefire.bounce"

const (
	bounceTTL  = 7 * 24 * time.Hour
	bounceBody = 1 << 10 // bytes of the body that a bounce repeats
)

// TypeDone is the type of a letter that tells a sender that its mail is DONE, as it asked for.
const TypeDone = "balefire.done"

// MaxBounce is more bytes than the body of any bounce has; one with more than maxBounceHeaders is made
// without the headers of the mail.
const (
	MaxBounce        = 8 << 10
	maxBounceHeaders = 4 << 10
)

// A Bounce is a letter to the sender of a mail that has ended.
type Bounce struct {
	Origin proto.PeerID // where the mail came from; zero: from this node
	To     string       // the box that the mail named, or the agent that sent it; "": it named none
	Loop   bool         // so many mails caused it that this letter must not be sent: it might cause another
	Letter []byte       // of type [TypeBounce] or [TypeDone], with a dedupe key
	cause  uint32       // index of the node whose mail has ended; 0: this one
}

// IsBounce reports whether a letter tells of the end of a mail. Its own end is told nobody.
func IsBounce(l *proto.Letter) bool {
	return string(l.Type) == TypeBounce || string(l.Type) == TypeDone
}

// An ended is the body of a bounce, JSON.
type ended struct {
	Box     string `json:"box,omitempty"` // empty: it is gone
	State   string `json:"state"`
	Cause   string `json:"cause,omitempty"` // empty: it is DONE
	Reason  string `json:"reason,omitempty"`
	ID      string `json:"id"`
	FirstID string `json:"first_id,omitempty"`
	Subject string `json:"subject,omitempty"`
	Key     string `json:"key,omitempty"`
	Type    string `json:"type,omitempty"`
	Body    []byte `json:"body,omitempty"` // its first KiB, if it is not DONE
	*headers
}

// headers are what else the letter of a mail had that was not delivered, if there is room for it.
type headers struct {
	Class       string            `json:"class,omitempty"`
	Sender      string            `json:"sender,omitempty"`
	ReplyTo     string            `json:"reply_to,omitempty"`
	Dedupe      string            `json:"dedupe,omitempty"`
	ContentType string            `json:"content_type,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
}

func headersOf(l *proto.Letter) *headers {
	h := &headers{Class: l.Class.Name(), Sender: string(l.Sender), ReplyTo: string(l.ReplyTo), Dedupe: string(l.Dedupe), ContentType: string(l.ContentType), Labels: map[string]string{}}
	for name, value := range l.Labels.All() {
		h.Labels[string(name)] = string(value)
	}
	return h
}

// bounce tells the senders of mails that were not delivered. Until it has, no checkpoint with
// these ends is on disk, so that a start after a crash finds them again.
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
			t, ok, err = b.bounceOf(b.nameOf(e.Box), e, rec)
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
	told := b.reports.bouncing
	told.Add(1)
	b.waiting.Go(func() {
		defer told.Done()
		for _, t := range all {
			b.cfg.Bounced(ctx, t)
		}
	})
}

// nameOf returns the name of a box, or of that of a spool, as a bounce has it; "": it is gone.
func (b *Broker) nameOf(id box.BoxID) string {
	name, _ := b.state.Path(id, 0)
	return strings.TrimPrefix(name, box.SpoolPrefix)
}

// bounceOf makes the letter about the end of a mail of a box; ok is false if there is nobody to tell.
func (b *Broker) bounceOf(name string, e box.End, rec []byte) (t Bounce, ok bool, err error) {
	m, err := box.MailOf(rec)
	if err != nil {
		return t, false, err
	}
	l, err := proto.ParseLetter(m.Letter)
	if err != nil || IsBounce(&l) {
		return t, false, err
	}
	now := b.cfg.Clock.Now()
	id, dedupe := proto.NewMailID(now), fmt.Appendf(nil, "bounce:%s:%d:%d:%d", l.ID, e.Box, e.Seq, e.Sub)
	u, typ := ended{
		Box: name, State: e.State.String(), Cause: e.Cause.String(), Reason: firstLine(e.Reason), ID: l.ID.String(),
		Subject: string(l.Subject), Key: string(l.Key), Type: string(l.Type),
	}, TypeBounce
	if e.State == box.Done {
		typ, dedupe = TypeDone, fmt.Appendf(nil, "done:%s:%d:%d", l.ID, e.Box, e.Seq)
		id = idNamed(l.Created, string(b.cfg.Self[:])+string(dedupe))
	} else {
		u.Body, u.headers = l.Body[:min(len(l.Body), bounceBody)], headersOf(&l)
	}
	if !l.FirstID.IsZero() {
		u.FirstID = l.FirstID.String()
	}
	body, err := json.Marshal(u)
	if len(body) > maxBounceHeaders {
		u.headers = nil
		body, err = json.Marshal(u)
	}
	if err != nil {
		return t, false, err
	}
	t.Loop = l.Hops >= box.MaxHops
	t.To = cmp.Or(string(l.BounceTo), string(l.ReplyTo), string(l.Sender))
	t.Letter, err = proto.AppendLetter(nil, &proto.Letter{
		Class: proto.High, ID: id, Created: now.UnixMilli(), NotAfter: now.Add(bounceTTL).UnixMilli(), Hops: min(l.Hops, box.MaxHops) + 1,
		Type: []byte(typ), ContentType: []byte("application/json"), BounceOf: l.ID, Dedupe: dedupe,
		Correlation: l.Correlation, Traceparent: l.Traceparent, Body: body,
	})
	t.Origin, t.cause = b.peer(m.Origin), b.causeOf(&m)
	return t, err == nil, err
}

// causeOf returns the index of the node whose mail a mail is, or came of; 0: this one.
func (b *Broker) causeOf(m *box.Mail) uint32 {
	if m.Origin != 0 && b.peer(m.Origin) != b.cfg.Self {
		return m.Origin
	}
	return m.Cause
}

// idNamed returns the id of a mail that is the same whenever a letter of this name is made.
func idNamed(ms int64, name string) proto.MailID {
	id, sum := proto.NewMailID(time.UnixMilli(ms)), sha256.Sum256([]byte(name))
	copy(id[6:], sum[:])
	id[6], id[8] = id[6]&0x0f|0x70, id[8]&0x3f|0x80 // RFC 9562: version 7
	return id
}

// Those that asked for it are told that their mails are done, tellLimit mails at a time, of which
// tellAtOnce share an fsync. After a full disk it is tried again.
const (
	tellLimit  = 512
	tellAtOnce = 32
	tellRetry  = time.Second
)

// telling is what tells senders that their mails are done.
type telling struct {
	running bool
	at      int64 // not before, box.Now.Mono
}

// tellDone tells the senders of mails that are done, and notes that on disk: after a crash in between
// they are told again, by letters with the same ids.
func (b *Broker) tellDone(ctx context.Context, now box.Now) {
	t := &b.reports.telling
	if b.cfg.Bounced == nil || t.running || now.Mono < t.at {
		return
	}
	list := b.state.Untold(tellLimit)
	if len(list) == 0 {
		return
	}
	t.running = true
	names := map[box.BoxID]string{}
	for _, k := range list {
		names[k.Box] = b.nameOf(k.Box)
	}
	b.waiting.Go(func() {
		for part := range slices.Chunk(list, tellAtOnce) {
			var all sync.WaitGroup
			for _, k := range part {
				all.Go(func() { b.tell(ctx, names[k.Box], k) })
			}
			all.Wait()
		}
		if ctx.Err() == nil {
			_ = b.do(func(box.Now) { b.told(list) }) // a broker that has stopped tells them again
		}
	})
}

// tell tells the sender of a mail that it is done.
func (b *Broker) tell(ctx context.Context, name string, k box.Kept) {
	rec, err := b.readMail(ctx, k, nil)
	var t Bounce
	var ok bool
	if err == nil {
		t, ok, err = b.bounceOf(name, box.End{Box: k.Box, Seq: k.Seq, State: box.Done}, rec)
	}
	switch {
	case ok:
		b.cfg.Bounced(ctx, t)
	case err != nil && ctx.Err() == nil:
		b.cfg.Logger.Warn("the sender of a mail cannot be told that it is done", "box", name, "seq", k.Seq, "why", err)
	}
}

// told notes that the senders of mails were told.
func (b *Broker) told(list []box.Kept) {
	for len(list) > 0 {
		id, seqs := list[0].Box, []uint64(nil)
		for len(list) > 0 && list[0].Box == id {
			seqs, list = append(seqs, list[0].Seq), list[1:]
		}
		b.queue(box.EncodeTold(id, seqs), false, true, nil)
	}
	b.queued.last().done = func(_ box.Result, err error) {
		t := &b.reports.telling
		if t.running = false; err != nil {
			t.at = b.now().Mono + tellRetry.Milliseconds()
		}
	}
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
	b.queue(box.EncodeArchived(a.Box, a.Sub, seqs), false, false, nil)
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
			case IsDamage(err):
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
