package box

import "cmp"

// choose returns the session that the subscription's strategy gives the next mail, or asking if
// there is no other, or the strategy is Ordered: the oldest session with credit asks first. A suspect is for a session that may be given one, if there is any.
// The choice depends on nothing but the state and now, so that the chosen session, when it asks
// in its turn, is chosen again.
func (u *sub) choose(now Now, asking *Session, suspect bool) *Session {
	if u.settings.Strategy == Ordered {
		return asking
	}
	var best *Session
	for _, x := range u.sessions {
		if !x.takes() || x.alone(now) || suspect && !x.empty(now) {
			continue
		}
		if best == nil || u.settings.Strategy.prefers(x, best) {
			best = x
		}
	}
	return or(best, asking)
}

// prefers reports whether x is to be given a mail rather than y, an older session.
func (s Strategy) prefers(x, y *Session) bool {
	switch s {
	case RoundRobin:
		return x.given < y.given
	case Priority:
		return cmp.Or(cmp.Compare(y.priority, x.priority), x.compareLoad(y)) < 0
	case LeastLoaded:
		return x.compareLoad(y) < 0
	}
	return false
}

// compareLoad compares the parts of their credit that two sessions use.
func (x *Session) compareLoad(y *Session) int {
	return cmp.Compare(int64(x.held)*int64(y.held+y.credit), int64(y.held)*int64(x.held+x.credit))
}
