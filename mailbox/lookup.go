package mailbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// lookup finds mails in the boxes and spools of this node, and reads them. It keeps nothing.
type lookup struct {
	restored int64 // until when the ledger lacks what happened: see [mail.Config]
	ledger   *ledgerOpener
	places   *places
	bodies   *letterBodies
	views    *views
	receipts *receipts
}

// A found mail is one that a query may select.
type found struct {
	place place
	box   box.BoxID
	info  box.MailInfo
	dead  *box.DeadLetter
}

// kept returns the record of f.
func (f *found) kept() box.Kept {
	return box.Kept{Box: f.box, Seq: f.info.Seq, Place: f.info.Place, Length: f.info.Length, Size: f.info.Size}
}

// scanned is how many mails are looked at before those are read that a query may select.
const scanned = 4096

// listed finds what a query is about: a subscription, or a box with all that it keeps.
func (x *lookup) listed(name, sub, state string) (place, *mail.Broker, error) {
	if state == stateKept && sub == "" {
		return x.places.existing(name)
	}
	return x.places.subscribed(name, sub)
}

// stateKept selects all that a box keeps.
const stateKept = "KEPT"

// mails is [Boxes.Mails].
func (x *lookup) mails(ctx context.Context, name, sub string, q wire.MailQuery) ([]wire.BoxedMail, string, error) {
	p, k, err := x.listed(name, sub, q.State)
	if err != nil {
		return nil, "", err
	}
	limit, err := wire.PageSize(q.Limit)
	if err != nil {
		return nil, "", err
	}
	from, match, err := selection(q)
	if err != nil {
		return nil, "", err
	}
	out := []wire.BoxedMail{}
	for {
		some, next, err := x.scan(ctx, k, p, sub, q, from)
		if err != nil {
			return nil, "", failure(p, sub, err)
		}
		for _, f := range some {
			m, err := x.mailAt(ctx, k, f)
			switch {
			case errors.Is(err, store.ErrNotFound):
				continue // it ended meanwhile
			case mail.IsDamage(err):
				m = withoutLetter(f)
			case err != nil:
				return nil, "", err
			}
			switch {
			case !match(&m):
				continue
			case len(out) == limit:
				return out, strconv.FormatUint(f.info.Seq, 10), nil
			}
			out = append(out, m)
		}
		if from = next; from == 0 {
			return out, "", nil
		}
	}
}

// selection returns where a query begins and whether it selects a mail.
func selection(q wire.MailQuery) (from uint64, match func(*wire.BoxedMail) bool, err error) {
	if q.Cursor != "" {
		if from, err = strconv.ParseUint(q.Cursor, 10, 64); err != nil {
			return 0, nil, invalid("cursor %.64q: must be that of a page before", q.Cursor)
		}
	}
	if q.Class != "" {
		if _, err := proto.ParseClass(q.Class); err != nil {
			return 0, nil, invalid("%v", err)
		}
	}
	if q.Subject != "" && !proto.ValidFilter([]byte(q.Subject)) {
		return 0, nil, invalid("subject %.64q: use words with dots between them; * is one word, > at the end the rest", q.Subject)
	}
	switch q.State {
	case "", "WAITING", "LEASED", "RETRYING", "DEAD", stateKept:
	default:
		return 0, nil, invalid("state %.20q: must be WAITING, LEASED, RETRYING, DEAD or KEPT", q.State)
	}
	return from, func(m *wire.BoxedMail) bool {
		return (q.Class == "" || q.Class == m.Class) && (q.Key == "" || q.Key == m.Key) && (q.Subject == "" || proto.MatchSubject(q.Subject, m.Subject)) &&
			(q.State == "" || q.State == stateKept || q.State == m.State) && (q.Since.IsZero() || !m.Accepted.Before(q.Since)) && (q.Until.IsZero() || m.Accepted.Before(q.Until))
	}, nil
}

// scan returns at most scanned mails from a sequence on, and where to go on; 0: nowhere.
func (x *lookup) scan(ctx context.Context, k *mail.Broker, p place, sub string, q wire.MailQuery, from uint64) (some []found, next uint64, err error) {
	missing := false
	err = k.View(ctx, func(s *box.State) {
		id, ok := s.Find(p.name)
		subID, is := s.FindSub(id, sub)
		kept := q.State == stateKept
		if missing = !ok || !is && !p.spool() && !(kept && sub == ""); missing {
			return
		}
		if kept {
			some, next = scanKept(s, p, id, from)
			return
		}
		some, next = scanSub(s, p, id, subID, q.State == "DEAD", from)
	})
	if err == nil && missing {
		err = box.ErrNotFound
	}
	return some, next, err
}

func scanSub(s *box.State, p place, id box.BoxID, sub box.SubID, dead bool, from uint64) (some []found, next uint64) {
	if dead {
		for d := range s.DeadLetters(id, sub, from) {
			if len(some) == scanned {
				return some, d.Seq
			}
			info := box.MailInfo{Seq: d.Seq, Place: d.Place, Length: d.Length, Size: d.Size, Class: d.Class, State: box.Dead, Attempts: d.Attempts, Abandons: d.Abandons, Tries: d.Tries}
			some = append(some, found{place: p, box: id, info: info, dead: &d})
		}
		return some, 0
	}
	for i := range s.Mails(id, sub, from) {
		if len(some) == scanned {
			return some, i.Seq
		}
		some = append(some, found{place: p, box: id, info: i})
	}
	return some, 0
}

// scanKept returns what a box keeps, the newest first.
func scanKept(s *box.State, p place, id box.BoxID, from uint64) (some []found, next uint64) {
	for i := range s.Kept(id, from) {
		if len(some) == scanned {
			return some, i.Seq
		}
		f := found{place: p, box: id, info: i}
		if i.State == box.Dead {
			for d := range s.DeadLetters(id, boxSub(s, id), i.Seq) {
				f.dead = &d
				break
			}
		}
		some = append(some, f)
	}
	return some, 0
}

// boxSub returns the only subscription of a mailbox.
func boxSub(s *box.State, id box.BoxID) box.SubID {
	sub, _ := s.FindSub(id, "")
	return sub
}

// mailAt reads the letter of a mail.
func (x *lookup) mailAt(ctx context.Context, k *mail.Broker, f found) (m wire.BoxedMail, err error) {
	kept, from, err := k.MailOf(ctx, f.kept())
	if err != nil {
		return m, err
	}
	if m.ReceivedMail, err = x.views.received(f.place, f.info.Seq, from, kept.Letter); err != nil {
		return m, err
	}
	m.Accepted, m.Restored = time.UnixMilli(kept.At).UTC(), kept.At <= x.restored
	history(&m, &f.info, f.dead)
	if f.place.spool() {
		if m.State, m.Seq = "PENDING", 0; f.info.State == box.Done {
			m.State = "ACCEPTED"
		}
	}
	return m, nil
}

// withoutLetter is a mail whose record is damaged.
func withoutLetter(f found) wire.BoxedMail {
	m := wire.BoxedMail{ReceivedMail: wire.ReceivedMail{Seq: f.info.Seq, Box: f.place.text, Class: (proto.Critical + proto.Class(f.info.Class)).Name(), Size: f.info.Size}}
	if history(&m, &f.info, f.dead); m.Reason == "" {
		m.Reason = mail.RecordDamaged
	}
	return m
}

// history adds what became of a mail.
func history(m *wire.BoxedMail, info *box.MailInfo, dead *box.DeadLetter) {
	m.State, m.Attempts, m.Abandons, m.Due = info.State.String(), int(info.Attempts), int(info.Abandons), proto.TimeOrNil(info.Due)
	for _, t := range info.Tries {
		reason, _ := toldReason(t.Reason)
		m.Tries = append(m.Tries, wire.MailTry{At: time.UnixMilli(t.At).UTC(), Cause: t.Cause.String(), Reader: t.Reader, Reason: reason})
	}
	if dead != nil {
		m.Died, m.Cause, m.Redriven = proto.TimeOrNil(dead.At), dead.Cause.String(), dead.Redriven
		m.Reason, m.Stderr = toldReason(dead.Reason)
	}
}

// mail is [Boxes.Mail].
func (x *lookup) mail(ctx context.Context, id string) (wire.BoxedMail, error) {
	s, err := x.search(ctx, id)
	if err != nil {
		return wire.BoxedMail{}, err
	}
	m := *s.found
	if m.Receipt, err = x.receipts.of(ctx, s); m.Receipt != nil {
		m.Receipt.Letter = nil
	}
	return m, err
}

// search looks for a mail in all subscriptions and spools.
func (x *lookup) search(ctx context.Context, id string) (*search, error) {
	k := x.ledger.broker()
	if k == nil {
		return nil, noMail(id)
	}
	subs, err := x.subscriptions(ctx, k)
	if err != nil {
		return nil, err
	}
	s := &search{id: strings.ToLower(id)}
	for _, u := range subs {
		states := []string{"", "DEAD"}
		if u.name == "" { // of a mailbox, or a spool
			states = []string{stateKept}
		}
		for _, state := range states {
			if err := x.within(ctx, k, u, state, s); err != nil {
				return nil, err
			}
		}
	}
	if s.found == nil {
		return nil, noMail(id)
	}
	return s, nil
}

// A search looks for a mail by its id or the beginning of it.
type search struct {
	id    string
	found *wire.BoxedMail
	sub   subscription // where it was found
	seq   uint64       // there
}

// done reports whether no other mail can be meant.
func (s *search) done() bool { return s.found != nil && s.found.ID == s.id }

// A subscription is one of a box here, or a spool.
type subscription struct {
	place place
	name  string
}

// subscriptions returns all subscriptions of all boxes here, and the spools.
func (x *lookup) subscriptions(ctx context.Context, k *mail.Broker) (all []subscription, err error) {
	err = k.View(ctx, func(s *box.State) {
		for _, id := range s.Boxes() {
			i, _ := s.Info(id)
			if i.Settings.Handover.IsCopy() {
				continue
			}
			p := place{name: i.Settings.Name, text: x.places.boxText(i.Settings.Name)}
			if p.spool() {
				all = append(all, subscription{place: p})
			}
			for _, sub := range i.Subs {
				u, _ := s.SubInfo(id, sub)
				all = append(all, subscription{p, u.Settings.Name})
			}
		}
	})
	return all, failure(place{}, "", err)
}

// within looks for a mail among those of a subscription.
func (x *lookup) within(ctx context.Context, k *mail.Broker, u subscription, state string, s *search) error {
	for from := uint64(0); !s.done(); {
		some, next, err := x.scan(ctx, k, u.place, u.name, wire.MailQuery{State: state}, from)
		switch {
		case errors.Is(err, box.ErrNotFound): // it was removed meanwhile
			return nil
		case err != nil:
			return failure(u.place, u.name, err)
		}
		for _, f := range some {
			m, err := x.mailAt(ctx, k, f)
			switch {
			case err != nil || !strings.HasPrefix(m.ID, s.id):
			case s.found == nil:
				s.found, s.sub, s.seq = &m, u, f.info.Seq
			case s.found.ID != m.ID:
				return invalid("mail id %.64q: %s and %s begin with it: give more of it", s.id, min(s.found.ID, m.ID), max(s.found.ID, m.ID))
			}
		}
		if from = next; from == 0 {
			return nil
		}
	}
	return nil
}

func noMail(id string) error {
	return fmt.Errorf("%w: no mail %.64q is here: it has ended and is not kept, or it is on another node", wire.ErrNotFound, id)
}

// body is [Boxes.Body].
func (x *lookup) body(ctx context.Context, id string) (io.ReadCloser, wire.ReceivedMail, error) {
	s, err := x.search(ctx, id)
	if err != nil {
		return nil, wire.ReceivedMail{}, err
	}
	return x.open(ctx, x.ledger.broker(), s.sub.place, s.seq)
}

// open opens the body of a mail in a box or spool of this node. Each byte of it is
// authenticated; the end comes only if its size and digest are right.
func (x *lookup) open(ctx context.Context, k *mail.Broker, p place, seq uint64) (body io.ReadCloser, m wire.ReceivedMail, err error) {
	var r box.Kept
	if err := k.View(ctx, func(s *box.State) {
		id, _ := s.Find(p.name)
		r, _ = s.Record(id, seq)
	}); err != nil {
		return nil, m, failure(p, "", err)
	}
	if r.Length == 0 {
		return nil, m, fmt.Errorf("%w: mail %d of %s has ended", wire.ErrNotFound, seq, p.text)
	}
	kept, from, err := k.MailOf(ctx, r)
	if err != nil {
		return nil, m, err
	}
	if m, err = x.views.received(p, seq, from, kept.Letter); err != nil {
		return nil, m, err
	}
	l, err := proto.ParseLetter(kept.Letter)
	if err == nil {
		body, err = x.bodies.open(&l)
	}
	if isLost(err) {
		err = fmt.Errorf("%w: the body of mail %s is lost on this disk: %w", wire.ErrRefused, m.ID, err)
	}
	return body, m, err
}

// awaitReceipt is [Boxes.Receipts].
func (x *lookup) awaitReceipt(ctx context.Context, id string, wait time.Duration) ([]wire.MailReceipt, error) {
	if wait < 0 || wait > maxWait {
		return nil, invalid("wait %s: must be from 0 to 10 minutes", wire.Duration(wait))
	}
	waiting, stop := context.WithTimeout(ctx, wait)
	defer stop()
	for {
		now := x.newestEvent()
		s, err := x.search(ctx, id)
		if err != nil {
			return nil, err
		}
		if s.found.State == "PENDING" && x.awaitEnd(waiting, s.found.ID, now) == nil {
			continue
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r, err := x.receipts.of(ctx, s)
		if err != nil || r == nil {
			return []wire.MailReceipt{}, err
		}
		return []wire.MailReceipt{*r}, nil
	}
}

// newestEvent returns the number of the newest event of mail.
func (x *lookup) newestEvent() (number uint64) {
	if k := x.ledger.broker(); k != nil {
		_, number, _, _ = k.Events(0, 1, func(*mail.Event) bool { return false })
	}
	return number
}

// awaitEnd waits until a mail leaves its spool, which it did not before an event. The error is that
// of ctx.
func (x *lookup) awaitEnd(ctx context.Context, id string, after uint64) error {
	ends := []string{mail.EventDone, mail.EventDead, mail.EventExpired, mail.EventCancelled}
	for ctx.Err() == nil {
		list, next, _, more := x.ledger.broker().Events(after, maxEvents, func(e *mail.Event) bool {
			return slices.Contains(ends, e.Kind) && strings.HasPrefix(e.Box, box.SpoolPrefix)
		})
		if slices.ContainsFunc(list, func(e mail.Event) bool { return e.ID.String() == id }) {
			return nil
		}
		if after = next; len(list) > 0 {
			continue
		}
		select {
		case <-more:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}
