package mailbox

import (
	"context"
	"io"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Events returns what happened to the mail of a box after a number of this start, or to that
// of [AllBoxes]: at most limit events (default 256). If there are none it waits for the next
// one, at most for wait.
func (b *Boxes) Events(ctx context.Context, name string, after uint64, limit int, wait time.Duration) (wire.EventPage, error) {
	return b.events.after(ctx, name, after, limit, wait)
}

// Conflicts returns the newest settlements that did not count, because somebody else was given the
// mail since or it has ended, the oldest first.
func (b *Boxes) Conflicts() []wire.LeaseConflict {
	return b.events.conflicts()
}

// List returns the boxes of this node of one kind, or of both if it is "", by name.
func (b *Boxes) List(ctx context.Context, kind string) ([]wire.Box, error) {
	return b.views.list(ctx, kind)
}

// Page returns the boxes of this node of one kind by name: at most limit (default 50) of those
// behind a cursor, which is the Next of the page before, or "".
func (b *Boxes) Page(ctx context.Context, kind, cursor string, limit int) (page wire.Page[wire.Box], err error) {
	return b.views.page(ctx, kind, cursor, limit)
}

// Get returns a box of this node.
func (b *Boxes) Get(ctx context.Context, name string) (v wire.Box, err error) {
	return b.views.get(ctx, name)
}

// GetSubscription returns a subscription of a topic of this node.
func (b *Boxes) GetSubscription(ctx context.Context, topic, sub string) (v wire.Subscription, err error) {
	return b.views.getSubscription(ctx, topic, sub)
}

// Outgoing returns what waits here for boxes on other nodes.
func (b *Boxes) Outgoing(ctx context.Context) ([]wire.MailSpool, error) {
	return b.views.outgoing(ctx)
}

// Send sends mails. When it returns, each is on disk here or refused: it has its own result
// or error. Mails for one box are sent in order.
func (b *Boxes) Send(ctx context.Context, mails []wire.Mail) ([]wire.SentMail, []error) {
	return b.mailer.send(ctx, mails)
}

// QueueMails is Send without its wait: mails that are queued one after the other for a box are
// sent in this order.
func (b *Boxes) QueueMails(mails []wire.Mail) *Queued {
	return b.mailer.queueMails(mails)
}

// QueueLetters is QueueMails for mail that its programs have encoded. The letters are copied.
func (b *Boxes) QueueLetters(letters []Letter) *Queued {
	return b.mailer.queueLetters(letters)
}

// Body opens the body of the mail with an id, or the beginning of one: see [Boxes.Mail].
func (b *Boxes) Body(ctx context.Context, id string) (io.ReadCloser, wire.ReceivedMail, error) {
	return b.lookup.body(ctx, id)
}

// Mails returns the mails of a subscription that a query selects, oldest first, and the
// cursor of the next page; those that a box keeps are the newest first. Looking changes nothing.
func (b *Boxes) Mails(ctx context.Context, name, sub string, q wire.MailQuery) ([]wire.BoxedMail, string, error) {
	return b.lookup.mails(ctx, name, sub, q)
}

// Mail returns the mail with an id, or the beginning of one that is unique, that has not
// ended, is kept or is a dead letter here, or waits here for a box on another node, with its
// receipt, if it asked for one. It reads every mail of the node, until it has found it.
func (b *Boxes) Mail(ctx context.Context, id string) (wire.BoxedMail, error) {
	return b.lookup.mail(ctx, id)
}

// Receipts returns the receipt of a mail that asked for one, if there is one: of a mail in a box of
// this node it is signed now, of a mail for another node it was signed there. While the mail is on
// its way it waits for that, as long as it may.
func (b *Boxes) Receipts(ctx context.Context, id string, wait time.Duration) ([]wire.MailReceipt, error) {
	return b.lookup.awaitReceipt(ctx, id, wait)
}

// Redrive sends dead letters again, as new mails, no faster than asked for. Each is sent
// once, however often it is called: one that is asked for by its number, and was sent, has a
// problem. Between the new mail and the mark of the old one its dedupe key counts, which names
// that with its place, since a sender may use an id twice.
func (b *Boxes) Redrive(ctx context.Context, name, sub string, r wire.RedriveMail) (out wire.RedrivenMail, err error) {
	return b.redriver.redrive(ctx, name, sub, r)
}

// Unblock lets the mails of an ordering key go on that a dead letter blocks.
func (b *Boxes) Unblock(ctx context.Context, name, sub string, u wire.UnblockMail) error {
	return b.clearing.unblock(ctx, name, sub, u)
}

// Purge cancels what waits in a box, the oldest first; what is leased stays. The senders are
// told.
func (b *Boxes) Purge(ctx context.Context, name string, r wire.PurgeMail) (wire.PurgedMail, error) {
	return b.clearing.purge(ctx, name, r)
}

// WhyMail explains what the mail with an id waits for, or how it ended if that was not long
// ago. The id may be the beginning of one. Home is the node that is to get it next; zero: none.
func (b *Boxes) WhyMail(ctx context.Context, id string) (_ wire.Blocker, home proto.PeerID, err error) {
	return b.reasons.mail(ctx, id)
}

// WhyBox explains what the mail of a box waits for. Home is another node that has the box;
// zero: it is here. The name of a topic may be followed by that of a subscription.
func (b *Boxes) WhyBox(ctx context.Context, name string) (_ wire.Blocker, home proto.PeerID, err error) {
	return b.reasons.box(ctx, name)
}
