package box

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/balefire/balefire/fair"
)

// A Handle names a delivery: the mail, the start of the home, and which delivery of that
// start it is.
type Handle struct {
	Seq, Boot, N uint64
}

// String returns the handle as SEQ.BOOT.N.
func (h Handle) String() string { return fmt.Sprintf("%d.%d.%d", h.Seq, h.Boot, h.N) }

// ParseHandle reads what String writes.
func ParseHandle(text string) (h Handle, err error) {
	parts := strings.Split(text, ".")
	if len(parts) == 3 {
		for i, p := range []*uint64{&h.Seq, &h.Boot, &h.N} {
			if *p, err = strconv.ParseUint(parts[i], 10, 64); err != nil {
				break
			}
		}
	}
	if len(parts) != 3 || err != nil || h.String() != text {
		return Handle{}, fmt.Errorf("%w: handle %.64q", ErrBadRecord, text)
	}
	return h, nil
}

// A Delivery is a mail that was leased to a session.
type Delivery struct {
	Handle      Handle
	Place       Place
	Length      int   // of the record at Place
	Attempt     uint8 // 1 for the first
	Redelivered bool  // somebody was given it before
	Older       bool  // it was here before this start of the home, which does not know who was given it then
	Until       int64 // Now.Mono at which the lease runs out
}

// Deliver leases mail to a session: at most max mails, at most its credit, and only what the
// subscription's strategy has for it; if the next mail is for another session, that one is woken.
// It appends the deliveries to dst, and to out the records that end what is past its not_after.
func (s *State) Deliver(now Now, to *Session, max int, dst []Delivery, out *Output) []Delivery {
	to.waking = false
	u := to.sub
	if u == nil || to.leaving || u.stopped() || u.settings.Mode == Failover && to != u.active() || to.alone(now) {
		return dst
	}
	start := len(dst)
	for end := start + max; len(dst) < end && to.credit > 0; {
		u.fill(0)
		var waits [fair.Classes]bool
		for c := range waits {
			waits[c] = u.top(s, c, now, out)
		}
		c := u.picker.Next(waits)
		if c < 0 {
			break
		}
		seq := u.ready[c][0]
		deaths := u.deaths(seq)
		if x := u.choose(now, to, deaths > 0); x != to {
			x.wake(out)
			break
		}
		if deaths > 0 && !to.empty(now) {
			s.stall(to, seq)
			break
		}
		u.ready[c].pop()
		dst = append(dst, s.lease(now, to, seq))
		if u.picker.Took(c, waits) {
			out.Events = append(out.Events, Event{Kind: EventRescued, Box: u.box.id, Sub: u.id, Seq: seq})
		}
		if deaths > 0 {
			s.isolate(to, seq, deaths, out)
			break
		}
		dst = s.leaseBatch(now, to, seq, end, dst, out)
	}
	if len(dst) > start && u.settings.Strategy != Ordered {
		u.choose(now, nil, false).wake(out) // it was not asked yet
	}
	return dst
}

// leaseBatch leases what follows the head of a lane, up to the subscription's key batch or
// a suspect.
func (s *State) leaseBatch(now Now, to *Session, seq uint64, end int, dst []Delivery, out *Output) []Delivery {
	u := to.sub
	batch, key := int(u.settings.KeyBatch), u.box.mails.get(seq).key
	if batch < 2 || key == 0 {
		return dst
	}
	l := u.lanes[key]
	for i := 1; i < min(batch, len(l.seqs)) && len(dst) < end && to.credit > 0; i++ {
		if u.deaths(l.seqs[i]) > 0 || !u.deliverable(s, l.seqs[i], u.box.mails.get(l.seqs[i]), now, out) {
			break
		}
		dst = append(dst, s.lease(now, to, l.seqs[i]))
	}
	return dst
}

// lease gives a mail to a session.
func (s *State) lease(now Now, to *Session, seq uint64) Delivery {
	u := to.sub
	m := u.box.mails.get(seq)
	s.given++
	old := u.deliveries[seq]
	d := &delivery{boot: s.boot, n: s.given, session: to, first: now.Mono, until: now.Mono + u.leaseOf(m).Milliseconds()}
	u.deliveries[seq] = d
	to.last, to.given, to.stalled = d, d.n, 0
	to.credit--
	to.held++
	s.watch(u, seq, d)
	x := Delivery{Handle: d.handle(seq), Place: m.place, Length: m.length(), Attempt: 1, Redelivered: old != nil, Older: seq < u.box.newest().first, Until: d.until}
	if r := u.retries[seq]; r != nil {
		x.Attempt, x.Redelivered = r.attempts+1, true
	}
	return x
}

// watch has Tick look at a delivery when its lease runs out, and no more at the time before.
func (s *State) watch(u *sub, seq uint64, d *delivery) {
	d.timer = d.until
	s.lapses.push(timer{d.timer, u, seq, d.n})
}

// leaseOf returns how long a session may have a mail.
func (u *sub) leaseOf(m *mail) time.Duration {
	return or(u.settings.Lease, leases[m.class()])
}

// A timer is a time at which a mail of a subscription is looked at.
type timer struct {
	at  int64 // Now.Mono
	sub *sub
	seq uint64
	n   uint64 // of the delivery; 0: none
}

// timers are a heap of timers, the next one first. Timers that nobody waits for any more
// are removed when half of them may be such.
type timers struct {
	list  []timer
	prune int // length at which to look for them
}

func (h *timers) push(t timer) {
	if len(h.list) >= max(h.prune, 1024) {
		h.list = slices.DeleteFunc(h.list, func(t timer) bool { return !t.wanted() })
		slices.SortFunc(h.list, compareTimers)
		h.list = slices.Compact(h.list)
		h.prune = 2 * len(h.list)
	}
	h.list = append(h.list, t)
	i := len(h.list) - 1
	for ; i > 0 && compareTimers(h.list[(i-1)/2], t) > 0; i = (i - 1) / 2 {
		h.list[i] = h.list[(i-1)/2]
	}
	h.list[i] = t
}

// due removes and returns the next timer, if its time has come.
func (h *timers) due(now int64) (next timer, ok bool) {
	if len(h.list) == 0 || h.list[0].at > now {
		return timer{}, false
	}
	last := len(h.list) - 1
	next, t := h.list[0], h.list[last]
	h.list[last] = timer{}
	h.list = h.list[:last]
	i := 0
	for {
		c := 2*i + 1
		if c >= last {
			break
		}
		if c+1 < last && compareTimers(h.list[c+1], h.list[c]) < 0 {
			c++
		}
		if compareTimers(t, h.list[c]) <= 0 {
			break
		}
		h.list[i] = h.list[c]
		i = c
	}
	if last > 0 {
		h.list[i] = t
	}
	return next, true
}

// compareTimers orders timers by time, then by delivery.
func compareTimers(a, b timer) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.n, b.n)) }

// wanted reports whether somebody still waits for the timer.
func (t timer) wanted() bool {
	if t.n == 0 {
		return t.sub.pending(t.seq)
	}
	d := t.sub.deliveries[t.seq]
	return d != nil && d.n == t.n && d.state == live && d.timer == t.at
}
