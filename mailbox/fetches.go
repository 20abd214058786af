package mailbox

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A program that has leased a mail of another node reads a large body through its own node:
//
//	DeliveredBody ─▶ SETTLE, EXTEND ─▶ home: the mail has a large body
//	              ◀─ OFFER of type DELIVER, chunks ◀─┘
//
// The home offers the body with each extension, and the reader's node accepts it as long as a
// program waits for it. It keeps it for an hour.
const (
	fetchLease = time.Minute      // that each extension asks for
	fetchEvery = 20 * time.Second // between two of them
	fetchStart = 30 * time.Second // until the first byte
	maxOffers  = 16               // bodies for readers on one node that wait to be sent
)

// fetches are the bodies that programs of this node wait for.
type fetches struct {
	log    *slog.Logger
	book   *addressbook.Book
	bodies *letterBodies
	views  *views
	lookup *lookup
	reads  *reads

	mu  sync.Mutex
	all map[fetchKey]*fetch
}

// A fetchKey names a mail of another node.
type fetchKey struct {
	home proto.PeerID
	box  string
	seq  uint64
}

// A fetch is one body.
type fetch struct {
	waiting int           // programs
	offered chan struct{} // closed with the first offer
	begun   bool
	arrived chan struct{} // closed when it is here, or will not be
	letter  []byte        // then
	err     error         // then
}

// begin notes that a program waits for a body; end is called when it does not any more.
func (f *fetches) begin(key fetchKey) (x *fetch, end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x = f.all[key]
	if x == nil {
		x = &fetch{offered: make(chan struct{}), arrived: make(chan struct{})}
		f.all[key] = x
	}
	x.waiting++
	return x, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if x.waiting--; x.waiting == 0 && f.all[key] == x {
			delete(f.all, key)
		}
	}
}

// fetch opens the body of a mail that is leased at another node, when it has come from there.
// The lease is extended meanwhile.
func (f *fetches) fetch(ctx context.Context, p place, sub string, h box.Handle) (io.ReadCloser, wire.ReceivedMail, error) {
	x, end := f.begin(fetchKey{p.home, p.name, h.Seq})
	defer end()
	start := time.NewTimer(fetchStart)
	defer start.Stop()
	again := time.NewTicker(fetchEvery)
	defer again.Stop()
	none := wire.ReceivedMail{}
	offered := x.offered
	for {
		settled, err := f.reads.settleAt(ctx, p, nil, sub, []mail.Settlement{{Handle: h, Op: box.Extend, Delay: fetchLease}})
		switch {
		case err != nil:
			return nil, none, err
		case settled[0].Code != proto.CodeOK:
			return nil, none, fmt.Errorf("%w: the lease of the mail has ended: %s", wire.ErrRefused, settledCodes[settled[0].Code])
		case settled[0].Inline:
			return nil, none, fmt.Errorf("%w: mail %d of %s has no large body: its body came with the delivery", wire.ErrRefused, h.Seq, p.text)
		}
		for waiting := true; waiting; {
			select {
			case <-x.arrived:
				if x.err != nil {
					return nil, none, x.err
				}
				return f.open(p, h, x.letter)
			case <-offered:
				offered = nil
				start.Stop()
			case <-start.C:
				return nil, none, timeoutError(fmt.Sprintf("%s does not send the body within %s: read it there, or try again", f.book.NameOf(p.home), fetchStart))
			case <-ctx.Done():
				return nil, none, ctx.Err()
			case <-again.C:
				waiting = false
			}
		}
	}
}

// open opens a body that came from another node.
func (f *fetches) open(p place, h box.Handle, letter []byte) (io.ReadCloser, wire.ReceivedMail, error) {
	m, err := f.views.received(p, h.Seq, p.home, letter)
	if err != nil {
		return nil, m, err
	}
	l, err := proto.ParseLetter(letter)
	if err != nil {
		return nil, m, err
	}
	body, err := f.bodies.open(&l)
	return body, m, err
}

// wants returns NEED_BODY for the body of a mail at a peer that a program waits for.
func (f *fetches) wants(from proto.PeerID, m proto.OfferedMail, l *proto.Letter) (proto.Code, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	x := f.all[fetchKey{from, m.Box, m.Seq}]
	if x == nil {
		return proto.CodeStale, "no program waits for the body"
	}
	if !x.begun {
		x.begun = true
		close(x.offered)
	}
	return f.bodies.stored(l)
}

// received is [Boxes.Received].
func (f *fetches) received(from proto.PeerID, m proto.OfferedMail, code proto.Code, detail string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := fetchKey{from, m.Box, m.Seq}
	x := f.all[key]
	if x == nil || code == proto.CodeBusy { // it is offered again
		return
	}
	delete(f.all, key) // the next program asks again
	if x.letter = m.Letter; code != proto.CodeOK {
		x.err = refusal(code, "the body of the mail does not come here: "+detail)
	}
	close(x.arrived)
}

// A bodyOffer is a body that a program of a peer waits for.
type bodyOffer struct {
	broker *mail.Broker
	place  place
	seq    uint64
}

// offerBodies offers a peer the large bodies of the mails whose leases its programs extend. What
// there are too many of is asked for again.
func (x *exchange) offerBodies(k *mail.Broker, p place, what []mail.Settlement, settled []mail.Settled) {
	for i, w := range what {
		if w.Op != box.Extend || settled[i].Code != proto.CodeOK || settled[i].Inline {
			continue
		}
		select {
		case x.offers <- bodyOffer{k, p, w.Handle.Seq}:
		default:
		}
	}
}

// sendOffers sends a peer the bodies that its programs wait for.
func (f *fetches) sendOffers(ctx context.Context, peer proto.PeerID, x *exchange) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case o := <-x.offers:
			if err := f.sendOffer(ctx, peer, o); err != nil && ctx.Err() == nil {
				f.log.Debug("could not send the body of a mail to its reader", "to", peer, "box", o.place.text, "seq", o.seq, "why", err)
			}
		}
	}
}

func (f *fetches) sendOffer(ctx context.Context, peer proto.PeerID, o bodyOffer) error {
	var r box.Kept
	if err := o.broker.View(ctx, func(s *box.State) {
		if id, _ := s.Find(o.place.name); s.HasObject(id, o.seq) {
			r, _ = s.Record(id, o.seq)
		}
	}); err != nil || r.Length == 0 { // its body is in its letter
		return err
	}
	kept, _, err := o.broker.MailOf(ctx, r)
	if err != nil {
		return err
	}
	l, err := proto.ParseLetter(kept.Letter)
	if err != nil {
		return err
	}
	offer, err := proto.OfferedMail{Box: o.place.name, Seq: o.seq, Letter: kept.Letter}.Offer()
	if err != nil {
		return err
	}
	return f.bodies.sender.Send(ctx, peer, offer, l.Object.File())
}

// deliveredBody is [Boxes.DeliveredBody].
func (f *fetches) deliveredBody(ctx context.Context, name, sub, lease string) (io.ReadCloser, wire.ReceivedMail, error) {
	p, k, err := f.reads.readable(name, sub)
	if err != nil {
		return nil, wire.ReceivedMail{}, err
	}
	h, err := box.ParseHandle(lease)
	switch {
	case err != nil:
		err = invalid("lease %.64q: must be what a delivery names, such as 88121.1795212606.4", lease)
	case k == nil:
		return f.fetch(ctx, p, sub, h)
	}
	if err != nil {
		return nil, wire.ReceivedMail{}, err
	}
	return f.lookup.open(ctx, k, p, h.Seq)
}
