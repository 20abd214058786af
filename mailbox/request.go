package mailbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	replyMails    = 10_000          // that wait in one
	replyBytes    = 64 << 20
)

// replies are the reply boxes of a node.
type replies struct {
	mu    sync.Mutex
	given map[string]time.Duration // monotonic times when their replies were given to requesters
	read  map[string]time.Duration // and when somebody asked for what is in them last
}

// isReplyBox reports whether the name of a box in the ledger is that of a box for replies.
func (b *Boxes) isReplyBox(name string) bool {
	return strings.HasSuffix(name, "@"+b.cfg.Self.String()) && wire.IsReplyBox(name)
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
	return b.mailbox(wire.ReplyBoxName(secret), b.cfg.Self)
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
	k, err := b.open()
	if err != nil {
		return "", err
	}
	b.changing.Lock()
	defer b.changing.Unlock()
	if b.rules.Load() == nil {
		if err := b.readRules(ctx, k); err != nil {
			return "", failure(place{}, "", err)
		}
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
	return p.name, failure(p, "", b.readRules(ctx, k))
}

// replyBoxOf returns the name in the ledger of the box for the reply to a request. The rules of
// the boxes are known.
func (b *Boxes) replyBoxOf(id string) (name string, ok bool) {
	for name, n := range *b.rules.Load() {
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
		if at, given := b.givenAt(name); given && (oldest == "" || at < first) {
			oldest, first = name, at
		}
	}
	if oldest == "" {
		return fmt.Errorf("%w: %d requests of this node wait for their replies, the limit", wire.ErrFull, len(names))
	}
	return failure(place{}, "", b.removeReplyBox(ctx, k, oldest))
}

// replyBoxes returns the names of the reply boxes in the ledger.
func (b *Boxes) replyBoxes() (names []string) {
	rules := b.rules.Load()
	if rules == nil {
		return nil
	}
	for name := range *rules {
		if b.isReplyBox(name) {
			names = append(names, name)
		}
	}
	return names
}

func (b *Boxes) givenAt(name string) (at time.Duration, given bool) {
	b.replies.mu.Lock()
	defer b.replies.mu.Unlock()
	at, given = b.replies.given[name]
	return at, given
}

// noteRead notes that somebody on this node reads a box, if it is a reply box: a program that
// asks now and then has no session in between.
func (b *Boxes) noteRead(name string) {
	if rules := b.rules.Load(); rules == nil || !b.isReplyBox(name) {
		return
	} else if _, is := (*rules)[name]; !is {
		return
	}
	b.replies.mu.Lock()
	defer b.replies.mu.Unlock()
	b.replies.read[name] = b.cfg.Clock.Mono()
}

// Request sends a mail, makes the box for its reply, and waits for that as long as it is asked
// to. Without a reply there is none in the answer: see [Boxes.Reply]. A mail that was sent
// before, by its dedupe key or number, is the same request. The error wraps [wire.ErrBounced]
// if the mail was not delivered.
func (b *Boxes) Request(ctx context.Context, r wire.MailRequest) (wire.MailReply, error) {
	if err := checkRequest(r.ReplyTo != "" || r.BounceTo != "", time.Duration(r.Wait)); err != nil {
		return wire.MailReply{}, err
	}
	raw, to, err := b.encode(&r.Mail)
	if err != nil {
		return wire.MailReply{}, err
	}
	sent, err := b.ask(ctx, raw, to, r.ReplyFrom)
	if err != nil {
		return wire.MailReply{}, err
	}
	return b.reply(ctx, sent, time.Duration(r.Wait))
}

// RequestLetter is [Boxes.Request] for a mail that its program has encoded, whose reply is wanted
// as it is kept: without one its letter is nil.
func (b *Boxes) RequestLetter(ctx context.Context, x Letter, replyFrom []string, wait time.Duration) (wire.SentMail, mail.Delivery, error) {
	to, err := b.findTarget(string(x.To))
	var l proto.Letter
	if err == nil {
		l, err = b.checkLetter(x.Letter, to)
	}
	if err == nil {
		err = checkRequest(len(l.ReplyTo)+len(l.BounceTo) > 0, wait)
	}
	if err != nil {
		return wire.SentMail{}, mail.Delivery{}, err
	}
	sent, err := b.ask(ctx, x.Letter, to, replyFrom)
	if err != nil {
		return sent, mail.Delivery{}, err
	}
	_, d, err := b.awaitReply(ctx, sent.ID, wait)
	if err != nil || d.Letter == nil {
		return sent, d, err
	}
	if l, err = proto.ParseLetter(d.Letter); err == nil && string(l.Type) == mail.TypeBounce {
		err = wire.BouncedError(sent.ID, l.Body)
	}
	return sent, d, err
}

// ask makes the box for the reply to a request and sends its letter.
func (b *Boxes) ask(ctx context.Context, raw []byte, to place, replyFrom []string) (sent wire.SentMail, err error) {
	l, err := proto.ParseLetter(raw)
	if err != nil {
		return sent, err
	}
	n := notes{Allow: replyFrom, Request: l.ID.String()}
	if len(n.Allow) > 0 && to.home != b.cfg.Self {
		n.Allow = append(slices.Clone(n.Allow), "peer:"+to.home.String())
	}
	reply := b.newReplyPlace()
	name, err := b.makeReplyBox(ctx, reply, n)
	if err != nil {
		return sent, err
	}
	if raw, err = requestLetter(l, name); err == nil {
		sent, err = b.sendLetter(ctx, raw, to, l.Flags&proto.LetterRelaxed != 0)
	}
	if name == reply.name && (err != nil && !errors.Is(err, store.ErrUnknown) || sent.Known) {
		if err := b.dropReplyBox(ctx, name); err != nil {
			b.cfg.Logger.Warn("a box for a reply was not removed: it is when nobody has read it for an hour", "why", err)
		}
	}
	return sent, err
}

// sendLetter sends one letter.
func (b *Boxes) sendLetter(ctx context.Context, raw []byte, to place, relaxed bool) (wire.SentMail, error) {
	results, err := b.deliver(ctx, []place{to}, [][]byte{raw}, relaxed)
	if err != nil {
		return wire.SentMail{}, err
	}
	return b.sentMail(to, results[0], relaxed)
}

func checkRequest(named bool, wait time.Duration) error {
	switch {
	case named:
		return invalid("reply_to and bounce_to: the reply to a request, or its bounce, comes to a box of its own; send a mail to name another one")
	case wait < 0 || wait > maxWait:
		return invalid("wait %s: must be from 0 to 10 minutes", wire.Duration(wait))
	}
	return nil
}

// requestLetter encodes the letter of a request with the box for its reply, which repeats its
// correlation: that is its id unless it has one.
func requestLetter(l proto.Letter, replyTo string) ([]byte, error) {
	l.ReplyTo = []byte(replyTo)
	if len(l.Correlation) == 0 {
		l.Correlation = []byte(l.ID.String())
	}
	raw, err := proto.AppendLetter(nil, &l)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	return raw, nil
}

// Reply waits for the reply to a request of this node, as long as it may. Asking changes
// nothing: for five minutes after the first answer it gives the reply again.
func (b *Boxes) Reply(ctx context.Context, id string, wait time.Duration) (wire.MailReply, error) {
	if wait < 0 || wait > maxWait {
		return wire.MailReply{}, invalid("wait %s: must be from 0 to 10 minutes", wire.Duration(wait))
	}
	return b.reply(ctx, wire.SentMail{ID: strings.ToLower(id)}, wait)
}

func (b *Boxes) reply(ctx context.Context, sent wire.SentMail, wait time.Duration) (wire.MailReply, error) {
	out := wire.MailReply{SentMail: sent}
	p, d, err := b.awaitReply(ctx, sent.ID, wait)
	if err != nil || d.Letter == nil {
		return out, err
	}
	m, err := b.received(p, d.Handle.Seq, d.From, d.Letter)
	if err != nil {
		return out, err
	}
	if m.Type == mail.TypeBounce {
		return out, wire.BouncedError(sent.ID, m.Body)
	}
	out.Reply = &m
	return out, nil
}

// awaitReply returns the reply to a request as it is kept, or its bounce; without a letter: none
// has come in time.
func (b *Boxes) awaitReply(ctx context.Context, id string, wait time.Duration) (p place, d mail.Delivery, err error) {
	p, k, err := b.requested(ctx, id)
	if err != nil {
		return p, d, err
	}
	b.noteRead(p.name)
	s, err := k.Read(ctx, mail.Reading{Box: p.name, Reader: "requester", Credit: 1})
	if err != nil {
		return p, d, failure(p, "", err)
	}
	defer func() { _ = s.Close(context.WithoutCancel(ctx), false) }() // a broker that has ended does not mind
	if err := k.View(ctx, func(*box.State) {}); err != nil {          // what waits was delivered before
		return p, d, failure(p, "", err)
	}
	waiting, stop := context.WithTimeout(ctx, wait)
	defer stop()
	given, err := s.Next(waiting, 1, nil)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
		return p, d, nil
	case err != nil:
		return p, d, failure(p, "", err)
	case len(given) == 0: // it ended, or was lost with its segment, while it was read
		return p, d, nil
	}
	b.replies.mu.Lock()
	b.replies.given[p.name] = b.cfg.Clock.Mono()
	b.replies.mu.Unlock()
	return p, given[0], nil
}

// requested returns the reply box of a request.
func (b *Boxes) requested(ctx context.Context, id string) (place, *mail.Broker, error) {
	k := b.broker.Load()
	if k != nil && b.rules.Load() == nil {
		if err := b.readRules(ctx, k); err != nil {
			return place{}, k, failure(place{}, "", err)
		}
	}
	if k != nil {
		if name, ok := b.replyBoxOf(id); ok {
			p, err := b.find(name)
			return p, k, err
		}
	}
	return place{}, k, fmt.Errorf("%w: nobody waits for a reply to mail %.64q here: it was no request, or its reply was given, or nobody asked for it for an hour", wire.ErrNotFound, id)
}

// dropReplyBox removes a reply box that no letter names.
func (b *Boxes) dropReplyBox(ctx context.Context, name string) error {
	k := b.broker.Load()
	b.changing.Lock()
	defer b.changing.Unlock()
	return b.removeReplyBox(context.WithoutCancel(ctx), k, name)
}

// removeReplyBox removes a reply box. What nobody took of it ends, and who sent it is told, if
// no requester was given a reply.
func (b *Boxes) removeReplyBox(ctx context.Context, k *mail.Broker, name string) error {
	if _, given := b.givenAt(name); given {
		if err := ackAll(ctx, k, name); err != nil {
			return err
		}
	}
	if err := k.RemoveBox(ctx, name); err != nil && !errors.Is(err, box.ErrNotFound) {
		return err
	}
	b.replies.mu.Lock()
	delete(b.replies.given, name)
	delete(b.replies.read, name)
	b.replies.mu.Unlock()
	return b.readRules(ctx, k)
}

// ackAll acknowledges what waits in a reply box, as many as it may have: what comes meanwhile
// ends with the box, else who sends without a pause would hold up all changes of boxes.
func ackAll(ctx context.Context, k *mail.Broker, name string) error {
	for range replyMails/wire.MaxMailBatch + 1 {
		given, err := k.Lease(ctx, mail.Reading{Box: name, Reader: "node", Credit: wire.MaxMailBatch}, 0)
		if err != nil || len(given) == 0 {
			return err
		}
		acks := make([]mail.Settlement, len(given))
		for i, d := range given {
			acks[i] = mail.Settlement{Handle: d.Handle, Op: box.Ack}
		}
		if _, err := k.Settle(ctx, name, "", acks); err != nil {
			return err
		}
	}
	return nil
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
			b.changing.Lock()
			err = errors.Join(err, b.removeReplyBox(ctx, k, name))
			b.changing.Unlock()
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
			at, given := b.givenAt(name)
			if now-last >= replyKept || given && now-max(at, last) >= replyGiven {
				over = append(over, name)
			}
		}
	})
	return over, err
}
