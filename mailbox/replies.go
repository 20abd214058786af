package mailbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// A reply box is a mailbox of this node for the replies to one request, or to those of one
// program. Its name is a secret of 128 random bits: who was given a request can reply to it,
// and nobody else.
//
//	Request ─▶ reply box ─▶ mail with reply_to ─▶ its box ─▶ reader ─┐
//	        ◀── reply, or bounce ◀── reply box ◀─────────── reply ◀──┘
//
// It is removed when nobody has read it for long, with what nobody took.
const (
	MaxReplyBoxes = 512             // of a node
	replyKept     = time.Hour       // without a reader
	replyGiven    = 5 * time.Minute // after its reply was given to a requester, who may ask again
	replySweep    = time.Minute     // how often that is looked at
	givenKept     = 24 * time.Hour  // such a reply is kept at most, however often it is asked for
	givenWait     = time.Second     // until it is on disk that it was given; it is given all the same
	replyMails    = 10_000          // that wait in one
	replyBytes    = 64 << 20
)

// replies are the reply boxes of a node: the boxes are in the ledger, and who was given what in
// their settings too.
type replies struct {
	self   proto.PeerID
	clock  clock.Clock
	log    *slog.Logger
	ledger *ledgerOpener
	places *places
	rules  *rules

	mu    sync.Mutex
	given map[string]givenReply    // to their requesters since the start
	read  map[string]time.Duration // monotonic times when somebody asked for what is in them last
	turns map[string]chan struct{} // full while somebody waits for the reply to a request
}

// A givenReply is the reply to a request that its requester was given.
type givenReply struct {
	at     time.Duration // monotonic time; 0: before the start
	handle box.Handle
}

func (r *replies) newPlace() place {
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // it never fails
	return r.places.mailbox(wire.ReplyBoxName(secret), r.self)
}

// make makes the box for replies p, unless the request of the notes has one already, and
// returns the name of the box in the ledger.
func (r *replies) make(ctx context.Context, p place, n notes) (string, error) {
	if len(n.Allow) == 0 {
		n.Allow = []string{"*"}
	}
	if len(n.Allow) > maxAllow {
		return "", invalid("reply_from has %d entries with the node of the box, the limit is %d", len(n.Allow), maxAllow)
	}
	if err := inbox.CheckAllow(n.Allow); err != nil {
		return "", invalid("reply_from: %v", err)
	}
	k, err := r.ledger.open()
	if err != nil {
		return "", err
	}
	r.rules.changing.Lock()
	defer r.rules.changing.Unlock()
	if _, err := r.rules.known(ctx, k); err != nil {
		return "", failure(place{}, "", err)
	}
	if name, ok := r.boxOf(n.Request); ok { // of a request that was sent before, or cut off
		return name, nil
	}
	if err := r.makeSpace(ctx, k); err != nil {
		return "", err
	}
	s := box.BoxSettings{Name: p.name, Kind: box.Mailbox, Mails: replyMails, Bytes: replyBytes, Once: true, Notes: n.encode()}
	if err := k.SetBox(ctx, s); err != nil {
		return "", failure(p, "", err)
	}
	return p.name, failure(p, "", r.rules.read(ctx, k))
}

// boxOf returns the name in the ledger of the box for the reply to a request. The rules of
// the boxes are known.
func (r *replies) boxOf(id string) (name string, ok bool) {
	for name, n := range r.rules.get() {
		if n.Request == id && id != "" {
			return name, true
		}
	}
	return "", false
}

// makeSpace removes the reply box whose reply was given the longest ago if there are too
// many.
func (r *replies) makeSpace(ctx context.Context, k *mail.Broker) error {
	names := r.names()
	if len(names) < MaxReplyBoxes {
		return nil
	}
	oldest, first := "", time.Duration(0)
	for _, name := range names {
		if g, ok := r.givenOf(name); ok && (oldest == "" || g.at < first) {
			oldest, first = name, g.at
		}
	}
	if oldest == "" {
		return fmt.Errorf("%w: %d requests of this node wait for their replies, the limit", wire.ErrFull, len(names))
	}
	return failure(place{}, "", r.remove(ctx, k, oldest))
}

// names returns the names of the reply boxes in the ledger.
func (r *replies) names() (names []string) {
	for name := range r.rules.get() {
		if r.places.isReplyBox(name) {
			names = append(names, name)
		}
	}
	return names
}

// givenOf returns which reply of a box its requester was given.
func (r *replies) givenOf(name string) (g givenReply, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if g, ok = r.given[name]; ok {
		return g, true
	}
	h, err := box.ParseHandle(r.rules.get()[name].Given)
	return givenReply{handle: h}, err == nil
}

// turn returns what is full while somebody waits for the reply in a box.
func (r *replies) turn(name string) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.turns[name] == nil {
		r.turns[name] = make(chan struct{}, 1)
	}
	return r.turns[name]
}

// noteGiven notes which reply of a box its requester is given, also for the next start: then it
// is done, and kept to be given again. If the disk takes no more, only for this one: the reply is
// given all the same. One with a large body, which is not kept with it, is done with its box.
func (r *replies) noteGiven(ctx context.Context, k *mail.Broker, p place, d mail.Delivery) {
	r.mu.Lock()
	r.given[p.name] = givenReply{r.clock.Mono(), d.Handle}
	r.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	kept, err := r.keepGiven(ctx, k, p, d.Handle)
	if l, bad := proto.ParseLetter(d.Letter); kept && bad == nil && l.Object.IsZero() {
		err = endGiven(ctx, k, p.name, d.Handle)
	}
	if err != nil {
		r.log.Warn("a reply was given; a restart of the node may forget that", "box", p.text, "why", err)
	}
}

// keepGiven writes to the settings of a reply box, if it is still there, which reply was given.
func (r *replies) keepGiven(ctx context.Context, k *mail.Broker, p place, given box.Handle) (kept bool, err error) {
	r.rules.changing.Lock()
	defer r.rules.changing.Unlock()
	now, err := settingsOf(ctx, k, p, "")
	if err != nil || !now.exists {
		return false, err
	}
	n := notesOf(now.box)
	n.Given = given.String()
	now.box.Notes, now.box.Keep = n.encode(), givenKept
	if err = k.SetBox(ctx, now.box); err == nil {
		err = r.rules.read(ctx, k)
	}
	return err == nil, err
}

// endGiven acknowledges a reply that was given. A disk without space for that holds up nobody for
// long: what is queued counts.
func endGiven(ctx context.Context, k *mail.Broker, name string, given box.Handle) error {
	ctx, stop := context.WithTimeout(ctx, givenWait)
	defer stop()
	_, err := k.Settle(ctx, name, "", []mail.Settlement{{Handle: given, Op: box.Ack}})
	return err
}

// again returns the reply that the requester was given before, while it is there.
func (r *replies) again(ctx context.Context, k *mail.Broker, p place) (d mail.Delivery, ok bool, err error) {
	g, ok := r.givenOf(p.name)
	if !ok {
		return d, false, nil
	}
	var kept box.Kept
	if err := k.View(ctx, func(s *box.State) {
		id, _ := s.Find(p.name)
		kept, ok = s.Record(id, g.handle.Seq)
	}); err != nil || !ok {
		return d, false, err
	}
	m, from, err := k.MailOf(ctx, kept)
	if errors.Is(err, store.ErrNotFound) {
		return d, false, nil
	}
	return mail.Delivery{Handle: g.handle, From: from, Letter: m.Letter}, err == nil, err
}

// noteRead notes that somebody on this node reads a box, if it is a reply box: a program that
// asks now and then has no session in between.
func (r *replies) noteRead(name string) {
	if _, is := r.rules.get()[name]; !is || !r.places.isReplyBox(name) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read[name] = r.clock.Mono()
}

// drop removes a reply box that no letter names.
func (r *replies) drop(ctx context.Context, name string) error {
	k := r.ledger.broker()
	r.rules.changing.Lock()
	defer r.rules.changing.Unlock()
	return r.remove(context.WithoutCancel(ctx), k, name)
}

// remove removes a reply box. The reply that its requester was given is done, at the latest
// now. What nobody took ends, and who sent it is told.
func (r *replies) remove(ctx context.Context, k *mail.Broker, name string) error {
	if g, ok := r.givenOf(name); ok { // if somebody else was given it since, this does not count
		if err := endGiven(ctx, k, name, g.handle); err != nil && !errors.Is(err, box.ErrNotFound) {
			return err
		}
	}
	if err := k.RemoveBox(ctx, name); err != nil && !errors.Is(err, box.ErrNotFound) {
		return err
	}
	if err := r.rules.read(ctx, k); err != nil {
		return err
	}
	rules := r.rules.get()
	r.mu.Lock()
	defer r.mu.Unlock()
	forgetRemoved(r.given, rules)
	forgetRemoved(r.read, rules)
	forgetRemoved(r.turns, rules)
	return nil
}

// forgetRemoved forgets the boxes that are removed: also those of which somebody who came too late
// has noted something since.
func forgetRemoved[V any](noted map[string]V, rules map[string]notes) {
	maps.DeleteFunc(noted, func(name string, _ V) bool { _, there := rules[name]; return !there })
}

// sweep removes reply boxes that nobody reads, until ctx is done.
func (r *replies) sweep(ctx context.Context, k *mail.Broker) {
	tick := time.NewTicker(replySweep)
	defer tick.Stop()
	read := map[string]time.Duration{} // when they were read last, or found
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		names := r.names()
		maps.DeleteFunc(read, func(name string, _ time.Duration) bool { return !slices.Contains(names, name) })
		if len(names) == 0 {
			continue
		}
		over, err := r.unread(ctx, k, names, read)
		for _, name := range over { // one that fails keeps none of the others
			r.rules.changing.Lock()
			err = errors.Join(err, r.remove(ctx, k, name))
			r.rules.changing.Unlock()
		}
		if err != nil && ctx.Err() == nil {
			r.log.Warn("boxes for replies were not removed; it is tried again", "why", err)
		}
	}
}

// readAt returns when somebody asked for what is in a reply box last.
func (r *replies) readAt(name string) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.read[name]
}

// unread returns which reply boxes nobody has read for long.
func (r *replies) unread(ctx context.Context, k *mail.Broker, names []string, read map[string]time.Duration) (over []string, err error) {
	now := r.clock.Mono()
	err = k.View(ctx, func(s *box.State) {
		for _, name := range names {
			id, _ := s.Find(name)
			u, _ := s.SubInfo(id, boxSub(s, id))
			last, seen := read[name]
			last = max(last, r.readAt(name))
			if len(u.Readers) > 0 || !seen {
				read[name] = now
				continue
			}
			g, given := r.givenOf(name)
			if now-last >= replyKept || given && now-max(g.at, last) >= replyGiven {
				over = append(over, name)
			}
		}
	})
	return over, err
}
