package mailbox

import (
	"context"
	"time"

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
