package mail

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mail/chain"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// spools are the mails for boxes on other nodes. All of it follows from the state of the
// boxes, and from what the homes have answered since the start.
type spools struct {
	origin  *chain.Origin
	targets map[string]*target    // by box
	here    map[box.BoxID]*target // those whose boxes are on this node now
	lanes   map[proto.PeerID]*Lane
	expired int64 // box.Now.Mono when expired mail was looked for
	soonest int64 // box.Now.Mono before which no stop is over; 0: there is none
}

// A target is a box on another node, with its spool here.
type target struct {
	knownBox
	box        string
	chains     [fair.Classes]targetChain
	cause      uint32            // of the first mail that waits: as in a [box.Mail]
	unreadable []uint64          // mails that the start found damaged
	proofs     map[uint64][]byte // of mails that their home has and that want a receipt: what it signed; empty: nothing
}

// A targetChain is the mail of one class for a target.
type targetChain struct {
	offered  bool // it is among the candidates of its lane
	failures int  // answers in a row that took nothing
	stop     Stop // the last one since the home took something
	until    int64
	missing  bool // the home lacks the body of its first mail
	sending  bool // somebody sends it
}

// A Stop says why the home of a box took no more mail of a chain.
type Stop struct {
	Class  proto.Class
	Code   proto.Code
	Detail string
	At     time.Time // when it was said
	Until  time.Time // when the home is asked again
}

// Waits after a stop.
const (
	busyBackoff = 100 * time.Millisecond // after the first BUSY: something before it was lost
	stopBackoff = time.Second            // after the first stop with another code
	maxBackoff  = 5 * time.Minute

	expireEvery = time.Second
	maxDetail   = 256 // bytes of the detail of an answer
)

// all returns the targets by their names.
func (s *spools) all() iter.Seq[*target] {
	return func(yield func(*target) bool) {
		for _, name := range slices.Sorted(maps.Keys(s.targets)) {
			if !yield(s.targets[name]) {
				return
			}
		}
	}
}

func classOf(index int) proto.Class { return proto.Critical + proto.Class(index) }

// loadSpools tells the origin of all that is in the spools, but for what cannot be read: see
// [Broker.endUnreadable].
func (b *Broker) loadSpools() error {
	var rec []byte
	for t := range b.spools.all() {
		for i := range b.state.Mails(t.id, 0, 0) {
			var err error
			if rec, err = b.read(i.Place, i.Length, rec[:0]); err == nil {
				err = b.loadMail(t, i.Seq, rec)
			}
			switch {
			case err == nil:
			case IsDamage(err):
				b.cfg.Logger.Error("a mail that waits for another node cannot be read: it is not sent", "box", t.box, "seq", i.Seq, "why", err)
				t.unreadable = append(t.unreadable, i.Seq)
			default:
				return fmt.Errorf("mail %d for %s: %w", i.Seq, t.box, err)
			}
		}
		for c := range t.chains {
			b.offer(t, classOf(c))
		}
	}
	return nil
}

// IsDamage reports whether a record could not be read because it is not there as it was written. Of what
// [Broker.MailOf] returns, [store.ErrNotFound] may also mean that the mail has ended meanwhile.
func IsDamage(err error) bool {
	return errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrNotFound) || errors.Is(err, box.ErrBadRecord)
}

// RecordDamaged is the reason of the end of a mail whose record is damaged.
const RecordDamaged = "its record on this node is damaged"

// damaged returns how a mail of a spool ends whose record is damaged.
func damaged(unheard bool) box.SpoolEnd {
	if unheard {
		return box.SpoolEnd{State: box.Dead, Cause: box.CauseUnheard, Reason: "its record on this node is damaged: it may have been delivered"}
	}
	return box.SpoolEnd{State: box.Dead, Cause: box.CauseRefused, Reason: RecordDamaged}
}

// endUnreadable makes the records that end what could not be read.
func (b *Broker) endUnreadable(now box.Now) {
	for t := range b.spools.all() {
		for part := range slices.Chunk(t.unreadable, box.MaxSeqs) {
			e := damaged(false)
			e.At = now.Wall
			b.out.Records = append(b.out.Records, box.EncodeSpoolEnd(t.id, e, part))
		}
		t.unreadable = nil
	}
}

func (b *Broker) loadMail(t *target, seq uint64, rec []byte) error {
	m, err := box.MailOf(rec)
	if err != nil {
		return err
	}
	l, err := proto.ParseLetter(m.Letter)
	if err != nil {
		return err
	}
	if b.waitingIn(t) == 0 {
		t.cause = m.Cause
	}
	return b.spools.origin.Load(t.box, m.Chain, m.Number, chain.Mail{Ref: seq, Class: l.Class, Key: string(l.Key), NotAfter: l.NotAfter, Size: len(m.Letter)})
}

// syncSpools takes over what has changed about the spools in the state.
func (b *Broker) syncSpools(boxes map[string]knownBox) {
	for _, t := range b.spools.targets {
		if boxes[box.SpoolPrefix+t.box].id != t.id {
			b.spools.origin.Forget(t.box)
			delete(b.spools.targets, t.box)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(boxes)) {
		k := boxes[name]
		if !k.spool {
			continue
		}
		name = strings.TrimPrefix(name, box.SpoolPrefix)
		t := b.spools.targets[name]
		if t == nil {
			t = &target{box: name}
			b.spools.targets[name] = t
		}
		if t.knownBox == k {
			continue
		}
		t.knownBox, t.chains = k, [fair.Classes]targetChain{}
		b.spools.origin.SetHome(name, k.home, k.generation)
		for c := range t.chains {
			b.offer(t, classOf(c))
		}
	}
	clear(b.spools.here)
	for name, t := range b.spools.targets {
		if k, ok := boxes[name]; ok {
			b.spools.here[k.id] = t
		}
	}
}

// lineUp returns the spool that a mail of this node goes into, with a number, although its box is
// here: mail waits there that was sent before, when the box was elsewhere. Nil: it goes into its box.
func (b *Broker) lineUp(m *box.Mail) *target {
	t := b.spools.here[m.Box]
	if t == nil || b.waitingIn(t) == 0 {
		return nil
	}
	l, err := proto.ParseLetter(m.Letter)
	if err != nil {
		return nil // its box refuses it
	}
	b.number(t, m, chain.Mail{Class: l.Class, Key: string(l.Key), NotAfter: l.NotAfter, Size: len(m.Letter)})
	return t
}

// tickSpools looks for expired mail, and for stops that are over.
func (b *Broker) tickSpools(now box.Now) {
	if now.Mono-b.spools.expired >= expireEvery.Milliseconds() {
		b.spools.expired = now.Mono
		b.expireSpools(now, b.spools.origin.Expire(now.Wall))
		b.abandonSpools(now)
	}
	if b.spools.soonest == 0 || now.Mono < b.spools.soonest {
		return
	}
	b.spools.soonest = 0
	for t := range b.spools.all() {
		for c := range t.chains {
			switch until := t.chains[c].until; {
			case until == 0:
			case until <= now.Mono:
				b.resume(t, classOf(c))
			default:
				b.waitUntil(until)
			}
		}
	}
}

func (b *Broker) waitUntil(mono int64) {
	if b.spools.soonest == 0 || mono < b.spools.soonest {
		b.spools.soonest = mono
	}
}

// hold keeps a chain back for some time.
func (b *Broker) hold(now box.Now, t *target, class proto.Class, code proto.Code, detail string, after time.Duration) {
	c := &t.chains[class.Index()]
	c.failures++
	wait := spoolBackoff(code, c.failures, now.Rand)
	if after > 0 {
		wait = min(after, maxBackoff)
	}
	at := b.cfg.Clock.Now()
	c.stop = Stop{class, code, short(detail), at, at.Add(wait)}
	c.until = now.Mono + max(wait.Milliseconds(), 1)
	b.waitUntil(c.until)
	if code != proto.CodeBusy && code != proto.CodeNeedBody {
		b.note(t.id, 0, Event{Kind: EventRefused, Peer: t.home, Text: code.Name() + ": " + c.stop.Detail})
	}
}

// spoolBackoff returns the wait after some answers in a row that took nothing, and up to a
// quarter more at random.
func spoolBackoff(code proto.Code, failures int, random uint64) time.Duration {
	base := stopBackoff
	if code == proto.CodeBusy {
		base = busyBackoff
	}
	wait := min(maxBackoff, base<<min(failures-1, 12))
	return wait + time.Duration(random%uint64(wait.Milliseconds()/4+1))*time.Millisecond
}

// resume lets a chain go on.
func (b *Broker) resume(t *target, class proto.Class) {
	t.chains[class.Index()].until = 0
	b.spools.origin.Resume(t.box, class)
	b.offer(t, class)
}

// expireSpools ends what is past its time.
func (b *Broker) expireSpools(now box.Now, over []chain.Expiry) {
	b.endOver(now, over, func(unheard bool) box.SpoolEnd {
		if unheard {
			return box.SpoolEnd{State: box.Expired, Cause: box.CauseUnheard, Reason: "it may have been delivered"}
		}
		return box.SpoolEnd{State: box.Expired, Cause: box.CauseExpired}
	})
}

// abandonSpools ends what waits for homes that will never answer.
func (b *Broker) abandonSpools(now box.Now) {
	if b.cfg.Gone == nil {
		return
	}
	for t := range b.spools.all() {
		if t.home.IsZero() || b.waitingIn(t) == 0 || !b.cfg.Gone(t.box, t.home) {
			continue
		}
		b.endOver(now, b.spools.origin.Abandon(t.box), func(unheard bool) box.SpoolEnd {
			if unheard {
				return box.SpoolEnd{State: box.Dead, Cause: box.CauseUnheard, Reason: "the node of the box was revoked: it may have been delivered"}
			}
			return box.SpoolEnd{State: box.Dead, Cause: box.CauseRefused, Reason: "the node of the box was revoked"}
		})
	}
}

// endOver ends mails whose time is over. What their home has accepted is DONE.
func (b *Broker) endOver(now box.Now, over []chain.Expiry, as func(unheard bool) box.SpoolEnd) {
	type how struct {
		box               string
		unheard, accepted bool
	}
	ends := map[how][]chain.Expiry{}
	var order []how
	for _, x := range over {
		h := how{x.Box, x.Unheard, x.Accepted}
		if ends[h] == nil {
			order = append(order, h)
		}
		ends[h] = append(ends[h], x)
	}
	for _, h := range order {
		e := as(h.unheard)
		if e.At = now.Wall; h.accepted {
			e = box.SpoolEnd{State: box.Done, At: now.Wall}
		}
		b.endSpooled(b.spools.targets[h.box], ends[h], e, nil)
	}
}

// cancelUnsent ends at most limit mails of a spool that were never sent, the oldest first, and
// returns how many.
func (b *Broker) cancelUnsent(ctx context.Context, name string, limit int, reason string) (int, error) {
	var n int
	var err error
	done := make(chan struct{})
	if err := b.do(func(now box.Now) {
		held := b.spools.origin.HoldUnsent(name, limit)
		if n = len(held); n == 0 {
			close(done)
			return
		}
		e := box.SpoolEnd{State: box.Cancelled, Cause: box.CausePurged, At: now.Wall, Reason: reason}
		b.endSpooled(b.spools.targets[name], held, e, func(failed error) {
			_, err = outcome(box.Result{}, failed)
			close(done)
		})
	}); err != nil {
		return 0, err
	}
	select {
	case <-done:
		return n, err
	case <-ctx.Done():
		return 0, fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
	case <-b.ended:
		return 0, ErrUnknown
	}
}

// endSpooled makes the records that end mails of one spool. The mails stay in their chains
// until those are on disk; then last is called, if it is not nil.
func (b *Broker) endSpooled(t *target, list []chain.Expiry, e box.SpoolEnd, last func(error)) {
	b.propose(nil)
	left := len(list)
	for part := range slices.Chunk(list, box.MaxSeqs) {
		seqs := make([]uint64, len(part))
		for i, x := range part {
			seqs[i] = x.Ref
		}
		slices.Sort(seqs)
		if e.State == box.Done {
			b.out.Records = append(b.out.Records, t.doneRecords(seqs)...)
		} else {
			for _, seq := range seqs {
				delete(t.proofs, seq)
			}
			b.out.Records = append(b.out.Records, box.EncodeSpoolEnd(t.id, e, seqs))
		}
		b.propose(func(_ box.Result, err error) {
			if left -= len(part); left == 0 && last != nil {
				defer last(err)
			}
			if err != nil {
				return // unknown: they stay as they are until the next start
			}
			var ns [fair.Classes][]proto.Seq
			for _, x := range part {
				ns[x.Class.Index()] = append(ns[x.Class.Index()], x.N)
			}
			for c := range ns {
				b.spools.origin.End(t.box, classOf(c), ns[c]...)
				b.offer(t, classOf(c))
			}
		})
	}
}

// A SpoolInfo is what waits for one box on another node.
type SpoolInfo struct {
	Box     string
	Home    proto.PeerID // zero: not known
	Waiting int
	Bytes   int64
	Oldest  time.Time // when the oldest mail was taken; zero: none waits
	Stops   []Stop    // the newest first
}

// Spools returns what waits for boxes on other nodes, by their names.
func (b *Broker) Spools(ctx context.Context) (all []SpoolInfo, err error) {
	err = b.call(ctx, func(box.Now) {
		for t := range b.spools.all() {
			i, _ := b.state.Info(t.id)
			s := SpoolInfo{Box: t.box, Home: t.home, Waiting: b.waitingIn(t), Bytes: i.Bytes}
			if i.Oldest > 0 {
				s.Oldest = time.UnixMilli(i.Oldest)
			}
			for _, c := range t.chains {
				if c.stop.Code != proto.CodeOK {
					s.Stops = append(s.Stops, c.stop)
				}
			}
			sort.Slice(s.Stops, func(i, j int) bool { return s.Stops[i].At.After(s.Stops[j].At) })
			all = append(all, s)
		}
	})
	return all, err
}
