package box

import (
	"errors"
	"fmt"
	"slices"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// A sub is a subscription. That of a mailbox has neither floor nor done set: what has
// ended there is gone.
type sub struct {
	id       SubID
	box      *box
	settings SubSettings
	floor    uint64            // of a topic: it has read or passed all before this
	done     seqSet            // of a topic: what it has read from the floor on
	ended    seqSet            // what ended without DONE; older than known: forgotten
	known    uint64            // ended is complete from here on
	retries  map[uint64]*retry // pending mails that were given back
	dead     []DeadLetter      // ascending by sequence
	blocked  map[[16]byte]bool // lanes that a dead letter blocks

	queue // in memory only
}

// A queue is what a subscription has in memory for its sessions.
type queue struct {
	cursor     uint64                // mails before this were entered
	ready      [fair.Classes]seqHeap // candidates, some of them stale
	lanes      map[uint32]*lane      // by number of the key
	deliveries map[uint64]*delivery  // of this start, of pending mails
	sessions   []*Session            // the oldest first
	picker     fair.Picker
	archiving  map[uint64]bool       // dead letters that were handed out for the archive
	repeated   *delivery             // the newest one of a repeated suspect
	aside      [fair.Classes]seqHeap // candidates that wait for its end, some of them stale
}

// A Session is one reader of a subscription.
type Session struct {
	Reader   string // for people
	priority int
	sub      *sub // nil: it has ended
	credit   int  // deliveries that it takes
	held     int  // deliveries that it has
	waking   bool // it is in Output.Ready
	leaving  bool // it ends with its last delivery

	given   uint64    // number of the newest delivery; 0: none
	since   uint64    // the newest delivery before Attach: those up to it give no credit back
	last    *delivery // the newest one since Attach
	stalled uint64    // a suspect that waits for the session; since last
}

// A delivery is a mail that was leased in this start of the home, or one of an earlier start that is
// acknowledged.
type delivery struct {
	boot, n uint64   // of its handle
	session *Session // while it is live
	until   int64    // Now.Mono at which the lease runs out
	first   int64    // Now.Mono of the delivery
	timer   int64    // the one of its timers that counts
	state   deliveryState
	suspect bool // the session is given nothing else: see [Session.alone]
}

func (d *delivery) handle(seq uint64) Handle { return Handle{seq, d.boot, d.n} }

type deliveryState uint8

const (
	live     deliveryState = iota // leased
	acked                         // an ACK was made
	nacked                        // a NACK was made
	ended                         // an END was made
	returned                      // the session has it no more; the handle is still the newest
)

// ErrTooManySessions is returned by Attach for one session more than MaxSessions.
var ErrTooManySessions = errors.New("box: too many sessions")

// ErrNotFound is returned for a box or subscription that does not exist.
var ErrNotFound = errors.New("box: not found")

// A HeldError says who reads an exclusive subscription.
type HeldError struct{ Reader string }

func (e *HeldError) Error() string { return fmt.Sprintf("box: held by %q", e.Reader) }

func newSub(b *box, id SubID, settings SubSettings) *sub {
	u := &sub{id: id, box: b, settings: settings, retries: map[uint64]*retry{}, blocked: map[[16]byte]bool{}}
	u.queue.reset()
	return u
}

func (q *queue) reset() {
	*q = queue{lanes: map[uint32]*lane{}, deliveries: map[uint64]*delivery{}, sessions: q.sessions, archiving: map[uint64]bool{}}
}

// pending reports whether a mail waits, is leased or is to be retried here.
func (u *sub) pending(seq uint64) bool {
	m := u.box.mails.get(seq)
	return m != nil && u.wants(seq, m)
}

// wants is pending for a mail that is there.
func (u *sub) wants(seq uint64, m *mail) bool {
	if u.box.settings.Kind == Mailbox {
		return true
	}
	return seq >= u.floor && proto.MatchSubject(u.settings.Filter, u.box.subjects.value(m.subject)) && !u.done.has(seq)
}

// settle moves the floor of a topic's subscription up to what it has not read.
func (u *sub) settle() {
	if u.box.settings.Kind == Mailbox {
		return
	}
	for {
		seq, m := u.box.mails.next(u.floor)
		if m == nil {
			u.floor = u.box.next
			break
		}
		if u.wants(seq, m) {
			u.floor = seq
			break
		}
		u.floor = seq + 1
	}
	u.done.cut(u.floor)
}

// leave forgets what is known about a pending mail that ends in state.
func (u *sub) leave(seq uint64, m *mail, state MailState) {
	delete(u.retries, seq)
	if d := u.deliveries[seq]; d != nil {
		d.release()
		delete(u.deliveries, seq)
	}
	if state != Done {
		u.ended.add(seq, seq+1)
		if len(u.ended) > maxEnded {
			u.known = u.ended[0].end
			u.ended = slices.Delete(u.ended, 0, 1)
		}
	}
	if l := u.lanes[m.key]; m.key != 0 && l != nil && seq < u.cursor {
		before := l.class()
		l.remove(seq, m.class())
		if len(l.seqs) == 0 {
			delete(u.lanes, m.key)
		} else if l.seqs[0] > seq || l.class() != before {
			u.offer(l.seqs[0])
		}
	}
}

// release gives the credit of a live delivery back to its session.
func (d *delivery) release() {
	if x := d.session; x != nil {
		x.held--
		if d.n > x.since {
			x.credit++
		}
		d.session = nil
		x.leave()
	}
}

// leave ends a session that is leaving if it has no delivery.
func (x *Session) leave() {
	if u := x.sub; u != nil && x.leaving && x.held == 0 {
		x.sub = nil
		u.sessions = slices.DeleteFunc(u.sessions, func(y *Session) bool { return x == y })
	}
}

// A lane is the pending mails of one key, in order.
type lane struct {
	seqs   []uint64
	counts [fair.Classes]uint32
}

// class returns the highest class that waits in the lane.
func (l *lane) class() int {
	for c, n := range l.counts {
		if n > 0 {
			return c
		}
	}
	return fair.Low
}

func (l *lane) add(seq uint64, class int) {
	l.seqs = append(l.seqs, seq)
	l.counts[class]++
}

func (l *lane) remove(seq uint64, class int) {
	i, ok := slices.BinarySearch(l.seqs, seq)
	switch {
	case !ok:
		return
	case i == 0:
		l.seqs = l.seqs[1:]
	default:
		l.seqs = slices.Delete(l.seqs, i, i+1)
	}
	l.counts[class]--
}

// enter makes a pending mail a candidate, or lets it stand in its lane.
func (u *sub) enter(seq uint64, m *mail) {
	if m.key == 0 {
		u.ready[m.class()].push(seq)
		return
	}
	l := u.lanes[m.key]
	if l == nil {
		l = new(lane)
		u.lanes[m.key] = l
	}
	before := l.class()
	l.add(seq, m.class())
	if len(l.seqs) == 1 || l.class() != before {
		u.ready[l.class()].push(l.seqs[0])
	}
}

// fill enters what has come since: all of a mailbox; of a topic some, at least all up to a
// sequence.
func (u *sub) fill(until uint64) {
	for u.box.settings.Kind == Mailbox || u.candidates() < maxAhead || u.cursor <= until {
		seq, m := u.box.mails.next(u.cursor)
		if m == nil {
			u.cursor = u.box.next
			return
		}
		u.cursor = seq + 1
		if u.wants(seq, m) {
			u.enter(seq, m)
		}
	}
}

func (u *sub) candidates() (n int) {
	for _, h := range u.ready {
		n += len(h)
	}
	return n
}

// offer makes a mail that was entered a candidate again, if it is first in its lane.
func (u *sub) offer(seq uint64) {
	m := u.box.mails.get(seq)
	if m == nil || seq >= u.cursor {
		return
	}
	c := m.class()
	if l := u.lanes[m.key]; m.key != 0 {
		if l == nil || l.seqs[0] != seq {
			return
		}
		c = l.class()
	}
	u.line(&u.ready[c], seq)
}

// line adds a mail to a line of candidates, and removes stale ones when half of them are such.
func (u *sub) line(h *seqHeap, seq uint64) {
	if h.push(seq); len(*h) > 2*u.box.mails.count+chunkSize {
		*h = slices.DeleteFunc(*h, func(seq uint64) bool { return !u.pending(seq) })
		slices.Sort(*h)
		*h = slices.Compact(*h)
	}
}

// top removes what is not ready from the front of the candidates of a class, and reports
// whether one is left. If one has to wait for another mail, the end of that readmits it.
func (u *sub) top(s *State, c int, now Now, out *Output) bool {
	for h := &u.ready[c]; u.readmit(c); h.pop() {
		seq := (*h)[0]
		m := u.box.mails.get(seq)
		if m == nil || !u.wants(seq, m) {
			continue
		}
		if m.key != 0 {
			l := u.lanes[m.key]
			if l == nil || l.seqs[0] != seq || l.class() != c || u.blocked[u.box.keys.value(m.key)] {
				continue
			}
		} else if m.class() != c {
			continue
		}
		if u.deliverable(s, seq, m, now, out) && !u.setAside(seq, c) {
			return true
		}
	}
	return false
}

// deliverable reports whether a candidate may be leased now. If it is not due yet, a timer
// offers it again; if it is past its not_after, it ends.
func (u *sub) deliverable(s *State, seq uint64, m *mail, now Now, out *Output) bool {
	if d := u.deliveries[seq]; d != nil && d.state != returned || u.box.ending[seq] {
		return false
	}
	wait := int64(0)
	switch {
	case expired(m, now) && !u.box.leased(seq):
		u.box.endAll(now, []uint64{seq}, Expired, CauseExpired, "", out)
		return false
	case expired(m, now): // another subscription has it
		wait = 1000
	}
	if r := u.retries[seq]; r != nil {
		if !r.scheduled {
			left := r.due - r.at
			if r.at > 0 { // else the clock was doubted
				left = min(max(r.due-now.Wall, 0), left)
			}
			r.scheduled, r.until = true, now.Mono+left
		}
		wait = max(wait, r.until-now.Mono)
	}
	if at := u.box.later[seq]; at > now.Wall {
		wait = max(wait, min(at-now.Wall, 60_000)) // then look at the wall clock again
	}
	if wait > 0 {
		s.timers.push(timer{now.Mono + wait, u, seq, 0})
		return false
	}
	return true
}

// expired reports whether a mail is past its not_after.
func expired(m *mail, now Now) bool { return now.Wall >= int64(m.expiry)*1000 }

// wake puts sessions into out.Ready that take mail of the box.
func (b *box) wake(out *Output) {
	for _, u := range b.subs {
		u.wake(out)
	}
}

// stopped reports whether nobody is given mail of the subscription.
func (u *sub) stopped() bool { return u.settings.Paused || u.box.settings.Closed || u.box.quiet() }

func (u *sub) wake(out *Output) {
	if u.stopped() {
		return
	}
	for _, x := range u.sessions {
		if u.settings.Mode != Failover || x == u.active() {
			x.wake(out)
		}
	}
}

// wake puts the session into out.Ready if it takes mail.
func (x *Session) wake(out *Output) {
	if x != nil && x.takes() && !x.waking {
		x.waking = true
		out.Ready = append(out.Ready, x)
	}
}

// takes reports whether the session has credit and stays.
func (x *Session) takes() bool { return x.credit > 0 && !x.leaving }

// active returns the session that a failover subscription serves, or nil.
func (u *sub) active() (best *Session) {
	for _, x := range u.sessions {
		if best == nil || x.priority > best.priority {
			best = x
		}
	}
	return best
}

// Attach begins a session of a subscription, or continues one of the same reader that is
// leaving. It returns a *HeldError if the subscription is exclusive and has a reader,
// ErrNotFound or ErrTooManySessions.
func (s *State) Attach(id BoxID, subID SubID, reader string, priority, credit int) (*Session, error) {
	u := s.find(id, subID)
	if u == nil {
		return nil, ErrNotFound
	}
	reader = reader[:min(len(reader), MaxReader)]
	for _, x := range u.sessions {
		if x.leaving && x.Reader == reader {
			x.leaving, x.waking, x.priority, x.credit = false, false, priority, max(credit, 0)
			x.since, x.last, x.stalled = s.given, nil, 0
			return x, nil
		}
	}
	switch {
	case u.settings.Mode == Exclusive && len(u.sessions) > 0:
		return nil, &HeldError{u.sessions[0].Reader}
	case len(u.sessions) >= MaxSessions:
		return nil, ErrTooManySessions
	}
	x := &Session{Reader: reader, priority: priority, sub: u, credit: max(credit, 0)}
	u.sessions = append(u.sessions, x)
	return x, nil
}

// Leave ends a session as soon as its last delivery is settled or lapses. Until then it is
// given nothing more, and counts as a reader.
func (s *State) Leave(x *Session, out *Output) {
	x.leaving = true
	if x.waking && x.sub != nil {
		x.sub.wake(out) // the next mail may be for another one now
	}
	x.leave()
}

// AddCredit lets a session take n more deliveries.
func (s *State) AddCredit(x *Session, n int, out *Output) {
	x.credit = min(x.credit+max(n, 0), 1<<30)
	if x.sub != nil {
		x.sub.wake(out)
	}
}
