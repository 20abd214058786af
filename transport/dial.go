package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
)

// An attempt to reach a peer, without the hello, is limited. Most attempts are short,
// because a handshake that starts during an outage retransmits late. Every third one is
// long, for slow paths. The first one to a peer that has named no relay lasts longer too: a handshake
// fills a narrow link, and one that is given up is repeated while the answers to it still come.
const (
	shortDial = 2 * time.Second
	longDial  = 6 * time.Second
	freshDial = 4 * time.Second
	maxDial   = 15 * time.Second // for an explicit request
)

// timeout returns the limit of the next attempt.
func (d redialState) timeout() time.Duration {
	if d.tries%3 == 2 {
		return longDial
	}
	return shortDial
}

// newcomerFirst is how long a node with many connections waits, at least, for a member that
// it has just heard of to dial it: if all did at once, a narrow link could not take it.
const newcomerFirst = 30 * time.Second

// returnFirst is the same for one that was connected before, and returnEvery the time
// between two attempts because others say that it is back, once two have failed.
const (
	returnFirst = 5 * time.Second
	returnEvery = time.Minute
)

// cutEvery is the minimum time between two attempts that are ended because work arrives.
const cutEvery = 30 * time.Second

// scanEvery is how often the directory is checked for new contacts.
const scanEvery = 5 * time.Second

// A redialState determines when a peer is dialed next.
type redialState struct {
	due     time.Duration // monotonic
	started time.Duration // start of the last attempt
	lostAt  time.Duration // when the connection was lost
	asked   time.Duration // last DHT query for it; 0: none
	tries   int           // consecutive failures
	busy    bool          // an attempt is running, or waits for its turn
	waiting bool          // it waits for its turn
	urgent  bool          // work wants the next one
	wanted  bool          // work, or another address, arrived during the attempt
	failed  bool          // an attempt has failed
	untried bool          // no attempt has failed, and the network has not changed, since the peer is known
	blind   bool          // the last attempt had no relay to go through
	cut     time.Duration // when work, or a new relay, last ended an attempt; 0: never
	missing time.Duration // since when, if an attempt has failed while others were heard; 0: none has
}

// absentAfter is how long a peer must have been missing until attempts to reach it delay only
// those to others that are.
const absentAfter = 2 * time.Minute

// absent reports whether the peer has been missing for long.
func (d redialState) absent(now time.Duration) bool {
	return d.missing > 0 && now-d.missing >= absentAfter
}

// ended reports whether work, or a new relay, has ended the last attempt.
func (d redialState) ended() bool { return d.cut > 0 && d.cut >= d.started }

// firstDial returns the state of a peer whose connection was just lost. Even the first
// attempt is delayed randomly, so that fifty nodes that lost the same link return one by
// one (S46). r is random in [0, 1).
func (t Timing) firstDial(now time.Duration, r float64) redialState {
	return redialState{due: now + time.Duration(r*float64(t.Redial)), lostAt: now, started: now - t.Redial}
}

// afterFailure returns the state after an attempt failed at now. The delay grows with the
// absence, not only with the attempts: a link that was down for 40 seconds is back within
// two (S07), one that was down for days costs an attempt per minute.
//
// A node with many connections is patient: where its connection to one peer is lost, that
// peer has most likely lost others too. It dials all of them, at its own pace, and could
// not take dials by all.
func (t Timing) afterFailure(d redialState, now time.Duration, patient bool, r float64) redialState {
	d.tries++
	d.busy, d.failed, d.untried = false, true, false
	pause := min(t.MaxRedial, t.Redial<<min(d.tries-1, 16))
	if !patient {
		pause = min(pause, max(t.Redial, (now-d.lostAt)/30))
	}
	if d.wanted { // there is work, or another address
		d.wanted, d.tries, pause = false, 0, max(0, d.started+t.Redial-now)
	}
	if d.ended() {
		pause = 0
	}
	d.due = now + time.Duration((0.5+r)/1.5*float64(pause))
	return d
}

// wake makes the next attempt due at once, but not within Redial of the last one. end: the
// one that is running is to be ended. It has lasted so long that, if the peer is back by
// now, it may notice seconds later. A handshake over a slow path must be able to end,
// though, however often there is work.
func (t Timing) wake(d redialState, now time.Duration) (_ redialState, end bool) {
	d.due = min(d.due, max(now, d.started+t.Redial))
	running := d.busy && !d.waiting
	d.wanted, d.urgent = running, true
	if end = running && now-d.started >= shortDial && (d.cut == 0 || now-d.cut >= cutEvery); end {
		d.cut = now
	}
	return d, end
}

// meetRelay returns the state of a peer when this node has a new relay. An attempt that had none to go
// through is worth no more waiting: if it is running it is to be ended, for another one at once, but
// not more often than for work; if it has failed the next one follows within Redial. r is random
// in [0, 1).
func (t Timing) meetRelay(d redialState, now time.Duration, r float64) (_ redialState, end bool) {
	switch {
	case !d.blind || d.waiting:
	case !d.busy:
		d.due = min(d.due, now+time.Duration(r*float64(t.Redial)))
	case d.cut == 0 || now-d.cut >= cutEvery:
		d.wanted, d.urgent, d.cut, end = true, true, now, true
	}
	d.blind = false
	return d, end
}

// A redialer keeps every contact of the directory connected. The state of each is in the
// table of peers.
type redialer struct {
	self    proto.PeerID
	cfg     Config
	log     *slog.Logger
	peers   *peerTable
	members *members
	dialer  *dialer
	find    func(context.Context, proto.PeerID) ([]string, error) // asks the DHT for addresses
	wake    chan struct{}
}

// run keeps every contact of the directory connected until ctx is done.
func (r *redialer) run(ctx context.Context) {
	if r.members.dir == nil {
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := newDialTurns()
	for {
		due, pause := r.due(r.members.contacts())
		for _, c := range due {
			wg.Go(func() { r.redial(ctx, c, slots) })
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-r.wake:
			timer.Stop()
		}
	}
}

// A dialSlots bounds the attempts of the redial loop that run at once and for which there
// is no work: while none is answered fewer, down to one, which lasts longer, and each answer
// lets twice as many run. Over a narrow link many handshakes at once, each of some
// kilobytes, would not end in time, and begin again; and after an outage all that wait for
// their turn would begin with the first answer. For the same reason each that has waited
// begins at a moment of its own.
type dialSlots struct {
	mu      sync.Mutex
	most    int
	running int
	firsts  int           // attempts that wait and are the first to their peer: they begin before all others
	changed chan struct{} // closed when another one may begin; nil: none waits
}

// dialTurns has the slots for absent peers, and those for the others: an address book keeps
// the machines that are gone, and attempts to reach them last longest.
type dialTurns struct{ present, absent dialSlots }

func newDialTurns() *dialTurns {
	return &dialTurns{
		present: dialSlots{most: maxDials},
		absent:  dialSlots{most: 1},
	}
}

func (t *dialTurns) of(absent bool) *dialSlots {
	if absent {
		return &t.absent
	}
	return &t.present
}

// take waits for a slot, until there is work for the peer or ctx is done. It returns how
// long the attempt lasts at least, and whether it holds a slot. first: it is the first one to its peer.
func (s *dialSlots) take(ctx context.Context, first bool, work <-chan struct{}) (least time.Duration, taken bool) {
	least, busy := s.tryTake(first)
	if busy == nil {
		return least, true
	}
	if first {
		s.addFirst(1)
	}
wait:
	for busy != nil {
		select {
		case <-ctx.Done():
			break wait
		case <-work:
			break wait
		case <-busy:
			least, busy = s.tryTake(first)
		}
	}
	if first {
		s.addFirst(-1)
	}
	if busy != nil {
		return least, false
	}
	select {
	case <-ctx.Done():
	case <-work:
	case <-time.After(rand.N(dialSpread)):
	}
	return least, true
}

// tryTake takes a slot, or returns a channel that is closed when there may be one.
func (s *dialSlots) tryTake(first bool) (least time.Duration, busy <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running >= s.most || !first && s.firsts > 0 {
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		return shortDial, s.changed
	}
	s.running++
	if s.most == 1 {
		return longDial, nil
	}
	return shortDial, nil
}

// addFirst changes the number of first attempts that wait.
func (s *dialSlots) addFirst(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.firsts += n
	s.change()
}

// change wakes those that wait. The caller holds mu.
func (s *dialSlots) change() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// put returns a slot.
func (s *dialSlots) put() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.change()
}

// use makes an attempt and records its outcome. Its turn, if it has one, ends with it, or after turn
// if that is not zero.
func (s *dialSlots) use(taken bool, turn time.Duration, attempt func() error) {
	end := func(err error) {
		s.answered(err)
		if taken {
			s.put()
		}
	}
	var over *time.Timer
	if turn > 0 {
		over = time.AfterFunc(turn, func() { end(context.DeadlineExceeded) })
	}
	if err := attempt(); over == nil || over.Stop() {
		end(err)
	} else if err == nil {
		s.answered(nil)
	}
}

// answered records the outcome of an attempt.
func (s *dialSlots) answered(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.most = min(2*s.most, maxDials)
	case errors.Is(err, context.DeadlineExceeded):
		s.most = max(1, s.most-1)
	}
	s.change()
}

// due returns the contacts to dial now, marked busy, and the time until the next
// one is due.
func (r *redialer) due(contacts []proto.Contact) (due []proto.Contact, pause time.Duration) {
	expelled := r.members.selfRevoked()
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	now := r.cfg.Clock.Mono()
	pause = scanEvery
	for _, c := range contacts {
		n := r.peers.get(c.Peer)
		if c.Peer == r.self || len(n.conns) > 0 || n.dial.busy || len(c.Addrs)+len(c.Relays) == 0 {
			continue
		}
		if n.dial == (redialState{}) {
			n.dial = r.cfg.Timing.firstDial(now, rand.Float64())
			n.dial.untried = true
			if len(r.peers.conns) >= maxDials {
				n.dial.due += newcomerFirst + rand.N(newcomerFirst) // it dials, at its own pace
			}
		}
		wait := n.dial.due - now
		if expelled && n.dial.tries > 0 {
			wait = max(wait, n.dial.started+revokedRedial-now)
		}
		if wait > 0 {
			pause = min(pause, wait)
			continue
		}
		due = append(due, c)
		n.dial.busy, n.dial.waiting = true, true
	}
	return due, pause
}

// A redialAttempt is an attempt of the redial loop that is running, or waits for its turn.
type redialAttempt struct {
	cancel context.CancelFunc
	work   chan struct{} // there is work: it does not wait any longer
	ended  chan struct{}
}

// end ends the attempt of the redial loop to reach p, whose next packet may
// be seconds away: a new dial starts at once.
func (r *redialer) end(ctx context.Context, p proto.PeerID) {
	r.peers.mu.Lock()
	a := r.peers.get(p).redial
	r.peers.mu.Unlock()
	if a == nil {
		return
	}
	a.cancel()
	select {
	case <-a.ended:
	case <-ctx.Done():
	}
}

// redial makes one attempt to reach c, in its turn or, if there is work for c, at once. The turn
// of the first one to c ends before the attempt: those that wait are not delayed by it.
func (r *redialer) redial(ctx context.Context, c proto.Contact, turns *dialTurns) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	attempt := &redialAttempt{cancel, make(chan struct{}, 1), make(chan struct{})}
	defer close(attempt.ended)
	r.peers.mu.Lock()
	n := r.peers.get(c.Peer)
	n.redial = attempt
	urgent, first, slots := n.dial.urgent, n.dial.untried, turns.of(n.dial.absent(r.cfg.Clock.Mono()))
	r.peers.mu.Unlock()
	least, taken := shortDial, false
	if !urgent {
		least, taken = slots.take(ctx, first, attempt.work)
	}
	var turn time.Duration
	if first {
		turn = shortDial
	}
	slots.use(taken, turn, func() error { return r.dial(ctx, c, least) })
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	if n.redial == attempt {
		n.redial = nil
	}
}

// dial dials c, for at least so long if it is not answered. It returns nil if there
// is a connection afterwards.
func (r *redialer) dial(ctx context.Context, c proto.Contact, least time.Duration) error {
	r.peers.mu.Lock()
	n := r.peers.get(c.Peer)
	if !n.dial.waiting { // it connected meanwhile
		r.peers.mu.Unlock()
		return context.Canceled
	}
	n.dial.waiting, n.dial.urgent, n.dial.started = false, false, r.cfg.Clock.Mono()
	last, asks := n.dial, n.dial.shouldAskDHT(r.cfg.Clock.Mono())
	switch {
	case last.tries > 0 && len(r.peers.conns) >= maxDials: // few, but long ones
		least = longDial
	case last.untried && len(c.Relays) == 0:
		least = max(least, freshDial)
	}
	if asks {
		n.dial.asked = r.cfg.Clock.Mono()
	}
	r.peers.mu.Unlock()
	c.Addrs = r.freshAddrs(ctx, c, asks)
	r.setBlind(c.Peer, true) // before it is looked for relays: none that comes is missed
	circuits := r.dialer.relays.circuitsTo(c, last.failed)
	r.setBlind(c.Peer, len(circuits) == 0)
	dialing, cancel := context.WithTimeout(ctx, max(least, last.timeout()))
	err := r.dialer.connectThrough(dialing, c, circuits, last.failed)
	late := dialing.Err()
	cancel()
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	n = r.peers.get(c.Peer)
	n.dial.busy = false
	if err == nil || len(n.conns) > 0 {
		return nil
	}
	n.lastErr, n.failedAt = err, r.cfg.Clock.Now()
	if n.dial.missing == 0 && !n.dial.ended() && r.peers.heardSince(n.dial.started) {
		n.dial.missing = max(n.dial.lostAt, 1)
	}
	n.dial = r.cfg.Timing.afterFailure(n.dial, r.cfg.Clock.Mono(), len(r.peers.conns) >= maxDials, rand.Float64())
	r.log.Debug("dial failed", "peer", c.Peer, "tries", n.dial.tries, "why", err)
	notify(r.wake)
	return cmp.Or(late, err)
}

// Want requests a connection to p, for which there is work: it is dialed at once if it is
// not connected.
func (t *Transport) Want(p proto.PeerID) { t.redialer.want(p) }

// want is [Transport.Want].
func (r *redialer) want(p proto.PeerID) {
	r.peers.mu.Lock()
	n := r.peers.get(p)
	was := n.dial
	wake := len(n.conns) == 0
	if wake {
		if was == (redialState{}) {
			n.dial = r.cfg.Timing.firstDial(r.cfg.Clock.Mono(), 1)
			n.dial.untried = true
		}
		var end bool
		n.dial, end = r.cfg.Timing.wake(n.dial, r.cfg.Clock.Mono())
		switch {
		case n.redial == nil:
		case end:
			n.redial.cancel()
		case n.dial.waiting:
			notify(n.redial.work)
		}
		wake = n.dial.due != was.due // otherwise the next attempt is already scheduled
	}
	r.peers.mu.Unlock()
	if wake {
		notify(r.wake)
	}
}

// MayReturn reports that p may be reachable again, or at another address: other members
// say so. It is dialed soon if it is not connected. A node with many connections first
// gives p time to dial: it hears the same as all others, and p could not take dials by all.
func (t *Transport) MayReturn(p proto.PeerID) { t.redialer.mayReturn(p) }

// mayReturn is [Transport.MayReturn].
func (r *redialer) mayReturn(p proto.PeerID) {
	r.peers.mu.Lock()
	n := r.peers.get(p)
	crowded := len(r.peers.conns) >= maxDials
	due := r.cfg.Clock.Mono() + returnFirst + rand.N(returnFirst)
	if n.dial.tries > 1 {
		due = max(due, n.dial.started+returnEvery)
	}
	if crowded && len(n.conns) == 0 && due < n.dial.due {
		n.dial.due = due
		notify(r.wake)
	}
	r.peers.mu.Unlock()
	if !crowded {
		r.want(p)
	}
}

// meetRelay dials the peers that were dialed without a relay: this node has a new one.
func (r *redialer) meetRelay() {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	now := r.cfg.Clock.Mono()
	for _, n := range r.peers.byID {
		var end bool
		if n.dial, end = r.cfg.Timing.meetRelay(n.dial, now, rand.Float64()); end && n.redial != nil {
			n.redial.cancel()
		}
	}
	notify(r.wake)
}

// setBlind notes whether the attempt to reach p that begins has no relay to go through.
func (r *redialer) setBlind(p proto.PeerID, blind bool) {
	r.peers.mu.Lock()
	defer r.peers.mu.Unlock()
	r.peers.get(p).dial.blind = blind
}

// Dial connects to p at one of addrs and returns after both hellos. It waits for Run. A
// refusal by p or of p is a RefusedError.
func (t *Transport) Dial(ctx context.Context, p proto.PeerID, addrs []string) error {
	c := t.members.contact(p)
	c.Addrs = addrs
	if err := t.dialer.connect(ctx, c, true); err != nil {
		return fmt.Errorf("dial %s: %w", p, err)
	}
	return nil
}

// freshAddrs returns the addresses to dial a contact at. After some failures at the known
// addresses it queries the DHT, as the peer may have moved.
func (r *redialer) freshAddrs(ctx context.Context, c proto.Contact, asks bool) []string {
	if !asks {
		return c.Addrs
	}
	ctx, cancel := context.WithTimeout(ctx, shortDial)
	defer cancel()
	found, err := r.find(ctx, c.Peer)
	if err != nil {
		return c.Addrs
	}
	addrs := slices.Clone(c.Addrs)
	for _, a := range found {
		if !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// shouldAskDHT reports whether to query the DHT at now for an unreachable peer: after two
// failures, then at each attempt, and less and less often the longer it is lost.
func (d redialState) shouldAskDHT(now time.Duration) bool {
	return d.tries >= 2 && (d.asked == 0 || now-d.asked >= min(maxAskPause, (now-d.lostAt)/4))
}
