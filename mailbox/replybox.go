package mailbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

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

// replies are the reply boxes of a node.
type replies struct {
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

// NewReplyBox makes a box for the replies to the requests of a program, which names it in
// reply_to and reads it as any mailbox. It is removed when nobody has read it for an hour.
func (b *Boxes) NewReplyBox(ctx context.Context, r wire.NewReplyBox) (wire.ReplyBox, error) {
	p := b.newReplyPlace()
	_, err := b.makeReplyBox(ctx, p, notes{Allow: r.ReplyFrom})
	return wire.ReplyBox{Box: p.text}, err
}

func (b *Boxes) newReplyPlace() place {
	var secret [16]byte
	_, _ = rand.Read(secret[:]) // it never fails
	return b.places.mailbox(wire.ReplyBoxName(secret), b.cfg.Self)
}

// makeReplyBox makes the box for replies p, unless the request of the notes has one already, and
// returns the name of the box in the ledger.
func (b *Boxes) makeReplyBox(ctx context.Context, p place, n notes) (string, error) {
	if len(n.Allow) == 0 {
		n.Allow = []string{"*"}
	}
	if len(n.Allow) > maxAllow {
		return "", invalid("reply_from has %d entries with the node of the box, the limit is %d", len(n.Allow), maxAllow)
	}
	if err := inbox.CheckAllow(n.Allow); err != nil {
		return "", invalid("reply_from: %v", err)
	}
	k, err := b.ledger.open()
	if err != nil {
		return "", err
	}
	b.rules.changing.Lock()
	defer b.rules.changing.Unlock()
	if _, err := b.rules.known(ctx, k); err != nil {
		return "", failure(place{}, "", err)
	}
	if name, ok := b.replyBoxOf(n.Request); ok { // of a request that was sent before, or cut off
		return name, nil
	}
	if err := b.makeReplySpace(ctx, k); err != nil {
		return "", err
	}
	s := box.BoxSettings{Name: p.name, Kind: box.Mailbox, Mails: replyMails, Bytes: replyBytes, Once: true, Notes: n.encode()}
	if err := k.SetBox(ctx, s); err != nil {
		return "", failure(p, "", err)
	}
	return p.name, failure(p, "", b.rules.read(ctx, k))
}

// replyBoxOf returns the name in the ledger of the box for the reply to a request. The rules of
// the boxes are known.
func (b *Boxes) replyBoxOf(id string) (name string, ok bool) {
	for name, n := range b.rules.get() {
		if n.Request == id && id != "" {
			return name, true
		}
	}
	return "", false
}

// makeReplySpace removes the reply box whose reply was given the longest ago if there are too
// many.
func (b *Boxes) makeReplySpace(ctx context.Context, k *mail.Broker) error {
	names := b.replyBoxes()
	if len(names) < MaxReplyBoxes {
		return nil
	}
	oldest, first := "", time.Duration(0)
	for _, name := range names {
		if g, ok := b.givenOf(name); ok && (oldest == "" || g.at < first) {
			oldest, first = name, g.at
		}
	}
	if oldest == "" {
		return fmt.Errorf("%w: %d requests of this node wait for their replies, the limit", wire.ErrFull, len(names))
	}
	return failure(place{}, "", b.removeReplyBox(ctx, k, oldest))
}

// replyBoxes returns the names of the reply boxes in the ledger.
func (b *Boxes) replyBoxes() (names []string) {
	for name := range b.rules.get() {
		if b.places.isReplyBox(name) {
			names = append(names, name)
		}
	}
	return names
}

// givenOf returns which reply of a box its requester was given.
func (b *Boxes) givenOf(name string) (g givenReply, ok bool) {
	b.replies.mu.Lock()
	defer b.replies.mu.Unlock()
	if g, ok = b.replies.given[name]; ok {
		return g, true
	}
	h, err := box.ParseHandle(b.rules.get()[name].Given)
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
func (b *Boxes) noteGiven(ctx context.Context, k *mail.Broker, p place, d mail.Delivery) {
	b.replies.mu.Lock()
	b.replies.given[p.name] = givenReply{b.cfg.Clock.Mono(), d.Handle}
	b.replies.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	kept, err := b.keepGiven(ctx, k, p, d.Handle)
	if l, bad := proto.ParseLetter(d.Letter); kept && bad == nil && l.Object.IsZero() {
		err = endGiven(ctx, k, p.name, d.Handle)
	}
	if err != nil {
		b.cfg.Logger.Warn("a reply was given; a restart of the node may forget that", "box", p.text, "why", err)
	}
}

// keepGiven writes to the settings of a reply box, if it is still there, which reply was given.
func (b *Boxes) keepGiven(ctx context.Context, k *mail.Broker, p place, given box.Handle) (kept bool, err error) {
	b.rules.changing.Lock()
	defer b.rules.changing.Unlock()
	now, err := b.settings(ctx, k, p, "")
	if err != nil || !now.exists {
		return false, err
	}
	n := notesOf(now.box)
	n.Given = given.String()
	now.box.Notes, now.box.Keep = n.encode(), givenKept
	if err = k.SetBox(ctx, now.box); err == nil {
		err = b.rules.read(ctx, k)
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

// replyAgain returns the reply that the requester was given before, while it is there.
func (b *Boxes) replyAgain(ctx context.Context, k *mail.Broker, p place) (d mail.Delivery, ok bool, err error) {
	g, ok := b.givenOf(p.name)
	if !ok {
		return d, false, nil
	}
	var r box.Kept
	if err := k.View(ctx, func(s *box.State) {
		id, _ := s.Find(p.name)
		r, ok = s.Record(id, g.handle.Seq)
	}); err != nil || !ok {
		return d, false, err
	}
	m, from, err := k.MailOf(ctx, r)
	if errors.Is(err, store.ErrNotFound) {
		return d, false, nil
	}
	return mail.Delivery{Handle: g.handle, From: from, Letter: m.Letter}, err == nil, err
}

// noteRead notes that somebody on this node reads a box, if it is a reply box: a program that
// asks now and then has no session in between.
func (b *Boxes) noteRead(name string) {
	if _, is := b.rules.get()[name]; !is || !b.places.isReplyBox(name) {
		return
	}
	b.replies.mu.Lock()
	defer b.replies.mu.Unlock()
	b.replies.read[name] = b.cfg.Clock.Mono()
}

// dropReplyBox removes a reply box that no letter names.
func (b *Boxes) dropReplyBox(ctx context.Context, name string) error {
	k := b.ledger.broker()
	b.rules.changing.Lock()
	defer b.rules.changing.Unlock()
	return b.removeReplyBox(context.WithoutCancel(ctx), k, name)
}

// removeReplyBox removes a reply box. The reply that its requester was given is done, at the latest
// now. What nobody took ends, and who sent it is told.
func (b *Boxes) removeReplyBox(ctx context.Context, k *mail.Broker, name string) error {
	if g, ok := b.givenOf(name); ok { // if somebody else was given it since, this does not count
		if err := endGiven(ctx, k, name, g.handle); err != nil && !errors.Is(err, box.ErrNotFound) {
			return err
		}
	}
	if err := k.RemoveBox(ctx, name); err != nil && !errors.Is(err, box.ErrNotFound) {
		return err
	}
	if err := b.rules.read(ctx, k); err != nil {
		return err
	}
	rules := b.rules.get()
	b.replies.mu.Lock()
	defer b.replies.mu.Unlock()
	forgetRemoved(b.replies.given, rules)
	forgetRemoved(b.replies.read, rules)
	forgetRemoved(b.replies.turns, rules)
	return nil
}

// forgetRemoved forgets the boxes that are removed: also those of which somebody who came too late
// has noted something since.
func forgetRemoved[V any](noted map[string]V, rules map[string]notes) {
	maps.DeleteFunc(noted, func(name string, _ V) bool { _, there := rules[name]; return !there })
}

// sweepReplies removes reply boxes that nobody reads, until ctx is done.
func (b *Boxes) sweepReplies(ctx context.Context, k *mail.Broker) {
	tick := time.NewTicker(replySweep)
	defer tick.Stop()
	read := map[string]time.Duration{} // when they were read last, or found
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		names := b.replyBoxes()
		maps.DeleteFunc(read, func(name string, _ time.Duration) bool { return !slices.Contains(names, name) })
		if len(names) == 0 {
			continue
		}
		over, err := b.unread(ctx, k, names, read)
		for _, name := range over { // one that fails keeps none of the others
			b.rules.changing.Lock()
			err = errors.Join(err, b.removeReplyBox(ctx, k, name))
			b.rules.changing.Unlock()
		}
		if err != nil && ctx.Err() == nil {
			b.cfg.Logger.Warn("boxes for replies were not removed; it is tried again", "why", err)
		}
	}
}

// readAt returns when somebody asked for what is in a reply box last.
func (b *Boxes) readAt(name string) time.Duration {
	b.replies.mu.Lock()
	defer b.replies.mu.Unlock()
	return b.replies.read[name]
}

// unread returns which reply boxes nobody has read for long.
func (b *Boxes) unread(ctx context.Context, k *mail.Broker, names []string, read map[string]time.Duration) (over []string, err error) {
	now := b.cfg.Clock.Mono()
	err = k.View(ctx, func(s *box.State) {
		for _, name := range names {
			id, _ := s.Find(name)
			u, _ := s.SubInfo(id, boxSub(s, id))
			last, seen := read[name]
			last = max(last, b.readAt(name))
			if len(u.Readers) > 0 || !seen {
				read[name] = now
				continue
			}
			g, given := b.givenOf(name)
			if now-last >= replyKept || given && now-max(g.at, last) >= replyGiven {
				over = append(over, name)
			}
		}
	})
	return over, err
}
