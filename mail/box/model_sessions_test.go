package box

import (
	"cmp"
	"slices"
)

// A modelSession is a session with the deliveries that it takes.
type modelSession struct {
	x            *Session
	credit, held int
	alone        bool // it has a suspect
	recent       bool
	last         uint64
}

func (m *model) session(u *modelSub, x *Session, credit int, now Now) modelSession {
	s := modelSession{x: x, credit: credit}
	if last := m.last[x]; last != nil {
		s.recent, s.last = now.Mono-last.first < suspectAlone.Milliseconds(), last.n
	}
	for _, l := range u.leases {
		if l.session == x && l.state == live {
			s.held++
			s.alone = s.alone || s.recent && l == m.last[x] && l.deaths > 0
		}
	}
	return s
}

// chosen returns the session that the strategy gives the next mail, or nil. Readers are all
// sessions of the subscription, the oldest first.
func (m *model) chosen(u *modelSub, readers []*simReader, suspect bool, now Now) *Session {
	var all []modelSession
	for _, r := range readers {
		if s := m.session(u, r.x, r.credit, now); s.credit > s.held && !s.alone && !(suspect && s.held > 0 && s.recent) {
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		return nil
	}
	load := func(s modelSession) float64 { return float64(s.held) / float64(s.credit) }
	slices.SortStableFunc(all, func(x, y modelSession) int {
		switch u.settings.Strategy {
		case RoundRobin:
			return cmp.Compare(x.last, y.last)
		case Priority:
			return cmp.Or(-cmp.Compare(x.x.priority, y.x.priority), cmp.Compare(load(x), load(y)))
		case LeastLoaded:
			return cmp.Compare(load(x), load(y))
		}
		return 0
	})
	return all[0].x
}

// mayHaveGiven reports whether a start before this one may have made a delivery.
func (m *model) mayHaveGiven(b *modelBox, h Handle) bool {
	since := b.made
	switch {
	case h.Seq >= b.first:
		since = m.boot
	case b.mails[h.Seq] != nil:
		since = b.taken[h.Seq]
	}
	return m.boots[h.Boot] && h.Boot >= since && (h.Boot > b.made || h.N > b.given)
}
