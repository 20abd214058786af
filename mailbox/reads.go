package mailbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// reads is what programs of this node read, here and on other nodes. It keeps nothing: sessions here
// are the broker's, and those elsewhere are in the exchange with the peer.
type reads struct {
	self      proto.PeerID
	clock     clock.Clock
	fail      func(point string) error
	want      func(proto.PeerID)
	book      *addressbook.Book
	names     Names
	ledger    *ledgerOpener
	places    *places
	replies   *replies
	views     *views
	exchanges *exchanges
	messages  *messages
}

const maxWait = 10 * time.Minute // of a Lease for its first mail

// lease is [Boxes.Lease].
func (r *reads) lease(ctx context.Context, name, sub string, l wire.LeaseMail) ([]wire.DeliveredMail, error) {
	p, k, err := r.readable(name, sub)
	if err != nil {
		return nil, err
	}
	switch {
	case l.Max < 0 || l.Max > wire.MaxMailBatch:
		return nil, invalid("max %d: must be from 1 to %d", l.Max, wire.MaxMailBatch)
	case l.Wait < 0 || time.Duration(l.Wait) > maxWait:
		return nil, invalid("wait %s: must be from 0 to 10 minutes", l.Wait)
	case len(l.Reader) > box.MaxReader:
		return nil, invalid("reader of %d bytes: the limit is %d", len(l.Reader), box.MaxReader)
	}
	if k == nil {
		return r.leaseAway(ctx, name, p, sub, l)
	}
	given, err := k.Lease(ctx, mail.Reading{Box: p.name, Subscription: sub, Reader: l.Reader, Priority: l.Priority, Credit: max(l.Max, 1)}, time.Duration(l.Wait))
	if err != nil {
		return nil, r.atHome(p, failure(p, sub, err))
	}
	if len(given) > 0 {
		_ = r.fail(PointLeased) // who has not got them waits for the end of the lease
	}
	return r.views.delivered(p, given)
}

// A Reader is a session of a program: it reads one subscription, here or on another node, and
// is given no more than it has credit for.
type Reader struct {
	reads   *reads
	place   place
	sub     string
	session session
}

// read is [Boxes.Read].
func (r *reads) read(ctx context.Context, name, sub string, l wire.LeaseMail) (*Reader, error) {
	p, k, err := r.readable(name, sub)
	if err != nil {
		return nil, err
	}
	if len(l.Reader) > box.MaxReader {
		return nil, invalid("reader of %d bytes: the limit is %d", len(l.Reader), box.MaxReader)
	}
	x := &Reader{reads: r, place: p, sub: sub}
	if k == nil {
		x.session, err = r.begin(ctx, name, p, sub, l)
	} else {
		x.session, err = r.session(ctx, p, sub, l)
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

// at returns where the box is now, and its broker if that is here.
func (r *Reader) at() (place, *mail.Broker) {
	p := r.place
	if f, ok := r.session.(*followed); ok {
		_, p = f.current()
	}
	if p.home != r.reads.self {
		return p, nil
	}
	return p, r.reads.ledger.broker()
}

// failure returns why the session has ended in the terms of the API.
func (r *Reader) failure(err error) error {
	p, _ := r.at()
	home, _, unknown := r.reads.names.HomeOf(p.name)
	if errors.Is(err, mail.ErrGone) && unknown == nil && home != p.home {
		p.home = home
		err = fmt.Errorf("%w: the home of %s is %s now", wire.ErrMoved, p.path(r.sub), r.reads.book.NameOf(home))
	}
	return r.reads.atHome(p, failure(p, r.sub, err))
}

// AddCredit lets n more mails be leased at once. A mail that is settled gives its credit
// back by itself.
func (r *Reader) AddCredit(ctx context.Context, n int) error {
	return failure(r.place, r.sub, r.session.AddCredit(ctx, n))
}

// Close ends the session. What is leased to it is given back: for nothing, or if the reader
// broke off, at the price of an abandon.
func (r *Reader) Close(ctx context.Context, broke bool) error {
	return failure(r.place, r.sub, r.session.Close(ctx, broke))
}

// settle is [Boxes.Settle].
func (r *reads) settle(ctx context.Context, name, sub string, s wire.SettleMail) ([]wire.SettledItem, error) {
	p, k, err := r.readable(name, sub)
	if err != nil {
		return nil, err
	}
	what, leases, err := Settlements(s)
	if err != nil {
		return nil, err
	}
	if err := checkReasons(s); err != nil {
		return nil, err
	}
	if err := r.fail(PointSettle); err != nil {
		return nil, err
	}
	settled, err := r.settleAt(ctx, p, k, sub, what)
	_ = r.fail(PointSettled) // it is on disk: nothing can fail any more
	if err != nil {
		return nil, err
	}
	now := r.clock.Now()
	items := make([]wire.SettledItem, len(settled))
	for i, one := range settled {
		items[i] = wire.SettledItem{Lease: leases[i], Code: settledCodes[one.Code]}
		if one.Code == proto.CodeOK && what[i].Op == box.Extend {
			items[i].Until = new(now.Add(one.Lease).UTC())
		}
	}
	return items, nil
}

// ToldReason returns what is kept of the reason that a reader tells: one line, since what
// follows a line break in a kept reason is what a program wrote.
func ToldReason(s string) string { return cutReason(strings.ReplaceAll(s, "\n", " ")) }

// checkReasons refuses reasons of which a part would be cut.
func checkReasons(s wire.SettleMail) (err error) {
	for _, x := range s.Nack {
		err = cmp.Or(err, checkReason(x.Reason))
	}
	for _, x := range s.Defer {
		err = cmp.Or(err, checkReason(x.Reason))
	}
	for _, x := range s.Bounce {
		err = cmp.Or(err, checkReason(x.Reason))
	}
	return err
}

func checkReason(s string) error {
	if len(s) > box.MaxReason {
		return invalid("a reason of %d bytes: the limit is %d", len(s), box.MaxReason)
	}
	return nil
}

// cutReason cuts a reason to the characters that are kept.
func cutReason(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), box.MaxReason)], "")
}

// giveBack is [Boxes.Return].
func (r *reads) giveBack(ctx context.Context, name, sub string, given []wire.DeliveredMail) error {
	p, k, err := r.readable(name, sub)
	if err != nil {
		return err
	}
	what := make([]mail.Settlement, len(given))
	for i, d := range given {
		if what[i].Handle, err = box.ParseHandle(d.Lease); err != nil {
			return err
		}
		what[i].Op = box.Return
	}
	_, err = r.settleAt(ctx, p, k, sub, what)
	return err
}

var settledCodes = map[proto.Code]string{
	proto.CodeOK: wire.SettledOK, proto.CodeStale: wire.SettledStale, proto.CodeBusy: wire.SettledOutOfOrder, proto.CodeBadForm: wire.SettledUnknown,
	proto.CodeNoHandler: wire.SettledUnknown,
}

// Settlements reads what a program did with deliveries. Each settlement has its handle in
// leases.
func Settlements(s wire.SettleMail) (what []mail.Settlement, leases []string, err error) {
	add := func(lease string, op box.Op, delay wire.Duration, reason string) {
		h, e := box.ParseHandle(lease)
		switch {
		case err != nil:
		case e != nil:
			err = invalid("lease %.64q: must be what a delivery names, such as 88121.1795212606.4", lease)
		case delay < 0 || time.Duration(delay) > box.MaxDelay:
			err = invalid("lease %s: a time of %s: must be from 0 to 30 days", lease, delay)
		case op == box.Extend && delay == 0:
			err = invalid("lease %s: extend without for: say how long", lease)
		}
		what = append(what, mail.Settlement{Handle: h, Op: op, Delay: time.Duration(delay), Reason: ToldReason(reason)})
		leases = append(leases, lease)
	}
	for _, lease := range s.Ack {
		add(lease, box.Ack, 0, "")
	}
	for _, n := range s.Nack {
		op := box.Nack
		if n.Final {
			op = box.Final
		}
		add(n.Lease, op, n.Delay, n.Reason)
	}
	for _, e := range s.Extend {
		add(e.Lease, box.Extend, e.For, "")
	}
	for _, d := range s.Defer {
		add(d.Lease, box.Defer, d.Delay, d.Reason)
	}
	for _, x := range s.Bounce {
		add(x.Lease, box.Bounce, 0, x.Reason)
	}
	switch {
	case err != nil:
		return nil, nil, err
	case len(what) == 0:
		return nil, nil, invalid("nothing to settle: give ack, nack, extend, defer or bounce")
	case len(what) > wire.MaxMailBatch:
		return nil, nil, invalid("%d deliveries at once: the limit is %d", len(what), wire.MaxMailBatch)
	}
	return what, leases, nil
}

// readable is subscribed for what readers do, who may be at a box of another node: then there
// is no broker.
func (r *reads) readable(name, sub string) (place, *mail.Broker, error) {
	p, err := r.places.find(name)
	if err != nil || p.home == r.self {
		r.replies.noteRead(p.name)
		return r.places.subscribed(name, sub)
	}
	return p, nil, p.checkSub(sub)
}
