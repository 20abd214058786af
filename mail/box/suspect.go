package box

// A mail whose last delivery ended with its reader, because the session broke or the lease
// lapsed, is a suspect: it may be what killed the reader. It is leased alone, so that the
// mails that were leased with it are cleared and it kills no more of them:
//
//   - A session is leased a suspect only when it holds nothing, and then nothing else until
//     that has ended. Either lasts a minute at most: then what the session holds, or the
//     suspect, is taken for long work.
//   - Of the repeated suspects of a subscription, of which the last two readers died or more,
//     one is leased at a time, because several sessions may be one program.
//
// A nack and a defer clear a mail: its reader lived. Order and class of a suspect stay what
// they were: a session that comes to one takes nothing behind it.

// repeatedDeaths are the deaths that make a repeated suspect.
const repeatedDeaths = 2

// deaths returns with how many readers in a row the newest deliveries of a mail ended.
func (u *sub) deaths(seq uint64) (n int) {
	r := u.retries[seq]
	if r == nil {
		return 0
	}
	for i := len(r.tries) - 1; i >= 0 && (r.tries[i].Cause == CauseAbandoned || r.tries[i].Cause == CauseLapsed); i-- {
		n++
	}
	return n
}

// recent reports whether the newest delivery of a session is less than a minute old.
func (x *Session) recent(now Now) bool {
	return x.last != nil && now.Mono < x.last.first+suspectAlone.Milliseconds()
}

// alone reports whether a session has a suspect, and may be leased nothing else.
func (x *Session) alone(now Now) bool {
	return x.last != nil && x.last.suspect && x.last.session == x && x.recent(now)
}

// empty reports whether a session may be leased a suspect.
func (x *Session) empty(now Now) bool { return x.held == 0 || !x.recent(now) }

// stall lets a suspect wait until the session is empty. The sessions are woken by what ends
// a delivery, and here by time.
func (s *State) stall(x *Session, seq uint64) {
	if x.stalled != seq {
		x.stalled = seq
		s.timers.push(timer{x.last.first + suspectAlone.Milliseconds(), x.sub, seq, 0})
	}
}

// isolate notes that the newest delivery of a session is a suspect. Those that stopped
// before it are woken.
func (s *State) isolate(x *Session, seq uint64, deaths int, out *Output) {
	u := x.sub
	x.last.suspect = true
	if deaths >= repeatedDeaths {
		u.repeated = x.last
	}
	s.timers.push(timer{x.last.first + suspectAlone.Milliseconds(), u, seq, 0})
	u.wake(out)
}

// setAside reports whether a candidate of a class that could be leased has to wait for the end
// of another repeated suspect.
func (u *sub) setAside(seq uint64, c int) bool {
	if !u.dangerous() || u.deaths(seq) < repeatedDeaths {
		return false
	}
	u.line(&u.aside[c], seq)
	return true
}

// readmit makes the first mail of a class that was set aside a candidate, if it comes before
// the others and waits for nothing now. It reports whether the class has candidates.
func (u *sub) readmit(c int) bool {
	ready, aside := &u.ready[c], &u.aside[c]
	if len(*aside) > 0 && !u.dangerous() && (len(*ready) == 0 || (*aside)[0] < (*ready)[0]) {
		ready.push(aside.pop())
	}
	return len(*ready) > 0
}

// dangerous reports whether a session has a repeated suspect.
func (u *sub) dangerous() bool { return u.repeated != nil && u.repeated.session != nil }
