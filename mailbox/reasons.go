package mailbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// reasons explains what mails and boxes wait for. It keeps nothing.
type reasons struct {
	self     proto.PeerID
	clock    clock.Clock
	book     *addressbook.Book
	ledger   *ledgerOpener
	places   *places
	runners  *runners
	lookup   *lookup
	receipts *receipts
}

// An explanation is what is known about a mail or a box, with its one cause.
type explanation struct {
	wire.Blocker
	now     time.Time
	runners *runners
	problem *wire.Note // why that of the box does not run
}

func (w *reasons) explain(subject, state string) *explanation {
	return &explanation{Blocker: wire.Blocker{Subject: subject, State: state, Steps: []wire.Note{}}, now: w.clock.Now(), runners: w.runners}
}

func (e *explanation) step(code wire.NoteCode, a wire.NoteArgs) {
	e.Steps = append(e.Steps, wire.Note{Code: code, NoteArgs: a})
}

func (e *explanation) cause(code wire.NoteCode, a wire.NoteArgs) {
	e.Cause = wire.Note{Code: code, NoteArgs: a}
}

// next sets when something happens by itself, if that is in the future.
func (e *explanation) next(at time.Time) {
	if at = at.UTC(); at.After(e.now) {
		e.Next = &at
	}
}

// ago returns for how many seconds something has been so; 0 if it is not known.
func (e *explanation) ago(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return max(e.now.Sub(at).Seconds(), 0)
}

// mail is [Boxes.WhyMail].
func (w *reasons) mail(ctx context.Context, id string) (_ wire.Blocker, home proto.PeerID, err error) {
	s, err := w.lookup.search(ctx, id)
	if errors.Is(err, wire.ErrNotFound) {
		return w.ended(id, err)
	}
	if err != nil {
		return wire.Blocker{}, home, err
	}
	m, path := s.found, s.sub.place.path(s.sub.name)
	e := w.explain(m.ID, m.State)
	e.step(wire.StepMail, wire.NoteArgs{Box: path, State: m.State, Key: m.Key, Attempts: m.Attempts, Abandons: m.Abandons, Seconds: e.ago(m.Accepted), Time: &m.NotAfter})
	if m.Restored {
		w.restored(e, path)
	}
	switch m.State {
	case "DONE", "ACCEPTED": // and kept
		if ended, _, err := w.ended(m.ID, wire.ErrNotFound); err == nil {
			return ended, home, nil
		}
		a := wire.NoteArgs{Box: path, State: m.State, Task: m.ID}
		if m.State == "DONE" {
			e.cause(wire.NoteMailEnded, a)
			break
		}
		if to, err := w.places.findTarget(strings.TrimPrefix(s.sub.place.name, box.SpoolPrefix)); err == nil {
			a.Peer = w.book.NameOf(to.home)
		}
		if r, err := w.receipts.of(ctx, s); err == nil && r != nil {
			a.Peer, a.Seconds = r.Node, e.ago(r.Time)
		}
		e.cause(wire.NoteMailTaken, a)
	case "PENDING":
		home, err = w.spooled(ctx, e, strings.TrimPrefix(s.sub.place.name, box.SpoolPrefix), func(c proto.Class) bool { return m.Key != "" || c.Name() == m.Class })
	case "DEAD":
		dead := wire.NoteArgs{Box: path, State: m.Cause, Detail: m.Reason}
		if m.Died != nil {
			dead.Seconds = e.ago(*m.Died)
		}
		if m.Redriven {
			dead.Count = 1
		}
		e.cause(wire.NoteMailDead, dead)
	default:
		err = w.waiting(ctx, e, s, path)
	}
	return e.Blocker, home, err
}

// restored adds that this node was restored from an older copy.
func (w *reasons) restored(e *explanation, path string) {
	at := time.UnixMilli(w.lookup.restored).UTC()
	e.step(wire.StepBoxRestored, wire.NoteArgs{Box: path, Time: &at})
}

// spooled explains why the home of a box does not have what waits for it here: of the
// chains that are meant, the newest stop. Without one it is on its way, if there is a path.
func (w *reasons) spooled(ctx context.Context, e *explanation, name string, meant func(proto.Class) bool) (home proto.PeerID, err error) {
	all, err := w.ledger.broker().Spools(ctx)
	i := slices.IndexFunc(all, func(s mail.SpoolInfo) bool { return s.Box == name })
	if err != nil || i < 0 {
		return home, failure(place{}, "", err)
	}
	s := &all[i]
	to := wire.NoteArgs{Box: w.places.text(name), Peer: w.book.NameOf(s.Home)}
	spool := to
	spool.Count, spool.Seconds = s.Waiting, e.ago(s.Oldest)
	e.step(wire.StepSpool, spool)
	for _, stop := range s.Stops {
		if meant(stop.Class) {
			to.Refusal, to.Detail, to.Seconds, to.Self = stop.Code.Name(), stop.Detail, e.ago(stop.At), w.book.NameOf(w.self)
			e.cause(wire.NoteMailRefused, to)
			e.next(stop.Until)
			return s.Home, nil
		}
	}
	e.cause(wire.NoteMailSent, to)
	return s.Home, nil
}

// waiting explains why a mail in a box of this node is not delivered.
func (w *reasons) waiting(ctx context.Context, e *explanation, s *search, path string) error {
	var t box.Standing
	var head box.Kept
	k, found := w.ledger.broker(), false
	if err := k.View(ctx, func(st *box.State) {
		id, _ := st.Find(s.sub.place.name)
		sub, _ := st.FindSub(id, s.sub.name)
		if t, found = st.Standing(id, sub, s.seq); found {
			head, _ = st.Mail(id, t.Head)
		}
	}); err != nil {
		return failure(place{}, "", err)
	}
	a := wire.NoteArgs{Box: path, Key: s.found.Key, Count: t.Readers}
	switch due, later := time.UnixMilli(t.Due), time.UnixMilli(t.Later); {
	case !found:
		return noMail(s.id) // it ended meanwhile
	case t.State == box.Leased:
		a.Names = []string{t.Reader}
		e.next(e.now.Add(time.Duration(t.Until)*time.Millisecond - w.clock.Boot()))
		e.cause(wire.NoteMailLeased, a)
	case t.Paused:
		e.cause(wire.NoteMailPaused, a)
	case t.Blocked:
		e.cause(wire.NoteMailBlocked, a)
	case t.Head > 0:
		a.Task = idAt(ctx, k, head)
		e.cause(wire.NoteMailBehind, a)
	case later.After(e.now):
		e.next(later)
		e.cause(wire.NoteNotDue, wire.NoteArgs{})
	case t.State == box.Retrying && due.After(e.now):
		if n := len(t.Tries); n > 0 { // none: an earlier home of the box did not tell them
			last := t.Tries[n-1]
			if a.State, a.Detail = last.Cause.String(), last.Reason; last.Reader != "" {
				a.Names = []string{last.Reader}
			}
		}
		e.next(due)
		e.cause(wire.NoteMailRetries, a)
	case t.Readers == 0:
		e.problem = w.runners.problemOf(s.sub.place.name, s.sub.name)
		e.unread(a)
	case t.Leaving == t.Readers:
		e.cause(wire.NoteReadersLeft, a)
	case t.Credit == 0:
		e.cause(wire.NoteReadersBusy, a)
	default:
		e.cause(wire.NoteMailNext, a)
	}
	return nil
}

// idAt returns the id of the mail with a record, or "".
func idAt(ctx context.Context, k *mail.Broker, r box.Kept) string {
	if m, _, err := k.MailOf(ctx, r); err == nil {
		if l, err := proto.ParseLetter(m.Letter); err == nil {
			return l.ID.String()
		}
	}
	return ""
}

// ended explains how a mail ended that is not here any more, if that is among the newest
// events. Otherwise the error is unknown.
func (w *reasons) ended(id string, unknown error) (_ wire.Blocker, home proto.PeerID, err error) {
	k := w.ledger.broker()
	if k == nil {
		return wire.Blocker{}, home, unknown
	}
	ends := []string{mail.EventDone, mail.EventDead, mail.EventExpired, mail.EventCancelled, mail.EventDropped, mail.EventRefused}
	list, _, _, _ := k.Events(0, mail.MaxEvents, func(e *mail.Event) bool { return slices.Contains(ends, e.Kind) })
	for _, v := range slices.Backward(list) {
		if v.ID.IsZero() || !strings.HasPrefix(v.ID.String(), strings.ToLower(id)) {
			continue
		}
		e := w.explain(v.ID.String(), strings.ToUpper(v.Kind))
		p := place{name: v.Box, text: w.places.boxText(v.Box)}
		a := wire.NoteArgs{Box: p.path(v.Sub), State: e.State, Detail: v.Text, Seconds: e.ago(v.At), Task: e.Subject}
		switch {
		case v.Kind == mail.EventRefused:
			a.Peer = w.book.NameOf(v.Peer)
			e.cause(wire.NoteMailTurnedAway, a)
		case p.spool() && v.Kind == mail.EventDone:
			e.State = "ACCEPTED"
			if to, err := w.places.findTarget(strings.TrimPrefix(v.Box, box.SpoolPrefix)); err == nil {
				a.Peer = w.book.NameOf(to.home)
			}
			e.cause(wire.NoteMailTaken, a)
		default:
			e.cause(wire.NoteMailEnded, a)
		}
		return e.Blocker, home, nil
	}
	return wire.Blocker{}, home, unknown
}

// box is [Boxes.WhyBox].
func (w *reasons) box(ctx context.Context, name string) (_ wire.Blocker, home proto.PeerID, err error) {
	name, sub, _ := strings.Cut(name, "/")
	p, err := w.places.find(name)
	if err != nil {
		return wire.Blocker{}, home, err
	}
	e := w.explain(p.path(sub), "OPEN")
	e.step(wire.StepBox, wire.NoteArgs{Box: p.text, Peer: w.book.NameOf(p.home), Generation: p.generation})
	k := w.ledger.broker()
	if p.home != w.self {
		e.State = "ELSEWHERE"
		if k != nil {
			_, err = w.spooled(ctx, e, p.name, func(proto.Class) bool { return true })
		}
		if e.Cause.Code == "" || e.Cause.Code == wire.NoteMailSent && e.Steps[len(e.Steps)-1].Count == 0 {
			e.cause(wire.NoteBoxElsewhere, wire.NoteArgs{Box: p.text, Peer: w.book.NameOf(p.home)})
		}
		return e.Blocker, p.home, err
	}
	if k == nil {
		return wire.Blocker{}, home, noBox(p, sub)
	}
	found, oldest := false, int64(0)
	if err = k.View(ctx, func(s *box.State) {
		found = e.box(s, p, sub)
		id, _ := s.Find(p.name)
		i, _ := s.Info(id)
		oldest = i.Oldest
	}); err == nil && !found {
		err = noBox(p, sub)
	}
	if oldest > 0 && oldest <= w.lookup.restored {
		w.restored(e, p.text)
	}
	w.refusedSenders(e, k, p)
	return e.Blocker, home, failure(p, sub, err)
}

// box explains the state of a box, and reports whether it is there.
func (e *explanation) box(s *box.State, p place, only string) bool {
	id, _ := s.Find(p.name)
	i, ok := s.Info(id)
	if !ok {
		return false
	}
	limit := *boxSettings(i.Settings).Mails
	mails := wire.NoteArgs{Box: p.text, Count: i.Waiting, Of: limit}
	if i.Oldest > 0 {
		mails.Seconds = e.ago(time.UnixMilli(i.Oldest))
	}
	e.step(wire.StepBoxMails, mails)
	found := only == ""
	for _, sub := range i.Subs {
		if u, _ := s.SubInfo(id, sub); only == "" || u.Settings.Name == only {
			found, e.problem = true, e.runners.problemOf(p.name, u.Settings.Name)
			e.sub(s, id, sub, p.path(u.Settings.Name), u)
		}
	}
	keeps := i.Settings.Kind == box.Mailbox || i.Settings.Interest
	switch {
	case i.Settings.Draining:
		e.State = "DRAINING"
		e.cause(wire.NoteBoxDraining, mails)
	case keeps && (i.Waiting >= limit || i.Bytes >= *boxSettings(i.Settings).Bytes):
		e.State = "FULL"
		mails.Detail, mails.Refusal = string(e.Cause.Code), proto.CodeFull.Name()
		e.cause(wire.NoteBoxFull, mails)
	case e.Cause.Code == "":
		e.cause(wire.NoteNothingWaits, wire.NoteArgs{})
	}
	return found
}

// sub explains a subscription; its cause counts if none before had one.
func (e *explanation) sub(s *box.State, id box.BoxID, sub box.SubID, path string, u box.SubInfo) {
	var classes [4]int
	waiting, first := 0, e.Cause.Code == ""
	for m := range s.Mails(id, sub, 0) {
		classes[m.Class]++
		waiting++
	}
	a := wire.NoteArgs{Box: path, Count: waiting}
	for c, n := range classes {
		if n > 0 {
			a.Names = append(a.Names, fmt.Sprintf("%d %s", n, (proto.Critical+proto.Class(c)).Name()))
		}
	}
	e.step(wire.StepBoxClasses, a)
	readers := wire.NoteArgs{Box: path, Names: u.Readers, Count: len(u.Readers), Held: u.Leased}
	e.step(wire.StepBoxReaders, readers)
	if u.Blocked > 0 {
		e.step(wire.StepBoxBlocked, wire.NoteArgs{Box: path, Count: u.Blocked, Of: u.Dead})
	}
	switch {
	case !first:
	case u.Settings.Paused:
		e.State = "PAUSED"
		e.cause(wire.NoteMailPaused, a)
	case waiting == 0:
	case len(u.Readers) == 0:
		e.unread(a)
	case u.Leaving == len(u.Readers) && u.Settings.Mode != box.Exclusive:
		e.cause(wire.NoteReadersLeft, readers)
	case s.Credit(id, sub) == 0:
		e.cause(wire.NoteReadersBusy, readers)
	case u.Blocked > 0:
		e.cause(wire.NoteKeysBlocked, wire.NoteArgs{Box: path, Count: u.Blocked})
	default:
		e.cause(wire.NoteBoxDelivers, readers)
	}
}

// unread explains mail that nobody reads.
func (e *explanation) unread(a wire.NoteArgs) {
	if e.problem == nil {
		e.cause(wire.NoteNoReader, a)
		return
	}
	code := wire.NoteHandlerStopped
	if strings.HasPrefix(a.Box, proto.TopicPrefix) {
		code = wire.NoteForwardStopped
	}
	why := e.problem.NoteArgs
	why.Box, why.Cause = a.Box, string(e.problem.Code)
	e.cause(code, why)
}

// maxRefused is how many senders are named whose mail a box refused.
const maxRefused = 10

// refusedSenders adds the nodes whose mail the box refused last.
func (w *reasons) refusedSenders(e *explanation, k *mail.Broker, p place) {
	list, _, _, _ := k.Events(0, mail.MaxEvents, func(v *mail.Event) bool { return v.Kind == mail.EventRefused && v.Box == p.name })
	told := map[proto.PeerID]bool{}
	for _, v := range slices.Backward(list) {
		if !told[v.Peer] && len(told) < maxRefused {
			told[v.Peer] = true
			e.step(wire.StepBoxRefused, wire.NoteArgs{Box: p.text, Peer: w.book.NameOf(v.Peer), Detail: v.Text, Seconds: e.ago(v.At)})
		}
	}
}
