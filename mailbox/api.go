package mailbox

import (
	"context"
	"io"
	"time"

	"github.com/balefire/balefire/mail"
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

// Handoff hands a mailbox or topic of the mesh over to another member, with all that it has. When
// it returns, that member is the home. An error before that leaves the box as it was.
func (b *Boxes) Handoff(ctx context.Context, name, to string) (wire.MovedBox, error) {
	return b.handovers.handOff(ctx, name, to)
}

// NewReplyBox makes a box for the replies to the requests of a program, which names it in
// reply_to and reads it as any mailbox. It is removed when nobody has read it for an hour.
func (b *Boxes) NewReplyBox(ctx context.Context, r wire.NewReplyBox) (wire.ReplyBox, error) {
	return b.requests.newReplyBox(ctx, r)
}

// Request sends a mail, makes the box for its reply, and waits for that as long as it is asked
// to. Without a reply there is none in the answer: see [Boxes.Reply]. A mail that was sent
// before, by its dedupe key or number, is the same request. The error wraps [wire.ErrBounced]
// if the mail was not delivered.
func (b *Boxes) Request(ctx context.Context, r wire.MailRequest) (wire.MailReply, error) {
	return b.requests.request(ctx, r)
}

// RequestLetter is [Boxes.Request] for a mail that its program has encoded, whose reply is wanted
// as it is kept: without one its letter is nil.
func (b *Boxes) RequestLetter(ctx context.Context, x Letter, replyFrom []string, wait time.Duration) (wire.SentMail, mail.Delivery, error) {
	return b.requests.requestLetter(ctx, x, replyFrom, wait)
}

// Reply waits for the reply to a request of this node, as long as it may. Asking changes
// nothing: for five minutes after the first answer it gives the reply again.
func (b *Boxes) Reply(ctx context.Context, id string, wait time.Duration) (wire.MailReply, error) {
	return b.requests.reply(ctx, id, wait)
}

// SetMailbox makes a mailbox of this node, or changes one. A named one is a mailbox of the
// mesh, whose home this node becomes; if that is seized, it is a new one.
func (b *Boxes) SetMailbox(ctx context.Context, name string, s wire.MailboxSettings) (wire.Box, error) {
	return b.settings.setMailbox(ctx, name, s)
}

// SetTopic makes a topic of this node, or changes one.
func (b *Boxes) SetTopic(ctx context.Context, name string, s wire.BoxSettings) (wire.Box, error) {
	return b.settings.setTopic(ctx, name, s)
}

// SetSubscription makes a subscription of a topic, or changes one.
func (b *Boxes) SetSubscription(ctx context.Context, topic, sub string, s wire.SubscriptionSettings) (wire.Box, error) {
	return b.settings.setSubscription(ctx, topic, sub, s)
}

// Pause stops the deliveries of a mailbox, whose subscription is "", or of a subscription of
// a topic, or resumes them.
func (b *Boxes) Pause(ctx context.Context, name, sub string, on bool) (wire.Box, error) {
	return b.settings.pause(ctx, name, sub, on)
}

// RemoveSubscription removes a subscription of a topic, with its dead letters.
func (b *Boxes) RemoveSubscription(ctx context.Context, topic, sub string) error {
	return b.settings.removeSubscription(ctx, topic, sub)
}

// Seek moves a subscription of a topic: what it reads next.
func (b *Boxes) Seek(ctx context.Context, topic, sub string, to wire.SeekSubscription) (wire.Box, error) {
	return b.settings.seek(ctx, topic, sub, to)
}

// Remove removes a box. The senders of what waits in it are told. Of a box of the mesh that
// was removed already, but not its name, it removes the name.
func (b *Boxes) Remove(ctx context.Context, name string) error {
	return b.settings.remove(ctx, name)
}

// DeliveredBody opens the body of a delivery, which its lease names. A large body of a mail at
// another node comes here first.
func (b *Boxes) DeliveredBody(ctx context.Context, name, sub, lease string) (io.ReadCloser, wire.ReceivedMail, error) {
	return b.fetches.deliveredBody(ctx, name, sub, lease)
}

// Received says what became of the body of an offered mail: it is here, or why it is not.
func (b *Boxes) Received(from proto.PeerID, m proto.OfferedMail, code proto.Code, detail string) {
	b.fetches.received(from, m, code, detail)
}

// Lease leases mail of a mailbox, whose subscription is "", or of a subscription of a topic.
// It waits for the first one as long as asked for; without any it returns none. A lease
// outlives the call: it ends when it is settled or lapses.
func (b *Boxes) Lease(ctx context.Context, name, sub string, l wire.LeaseMail) ([]wire.DeliveredMail, error) {
	return b.reads.lease(ctx, name, sub, l)
}

// Read begins a session with a credit: how many mails may be leased to it at once. Close
// ends it. At a box of another node it begins when there is a path, and goes on when that
// breaks; what its home refuses is the error of [Reader.NextLetters].
func (b *Boxes) Read(ctx context.Context, name, sub string, l wire.LeaseMail) (*Reader, error) {
	return b.reads.read(ctx, name, sub, l)
}

// Settle settles deliveries. Each has its own result, in the order ack, nack, extend, defer,
// bounce; what is OK is on disk.
func (b *Boxes) Settle(ctx context.Context, name, sub string, s wire.SettleMail) ([]wire.SettledItem, error) {
	return b.reads.settle(ctx, name, sub, s)
}

// Return gives deliveries back that did not reach their reader: they are delivered again at
// once, and no attempt is spent.
func (b *Boxes) Return(ctx context.Context, name, sub string, given []wire.DeliveredMail) error {
	return b.reads.giveBack(ctx, name, sub, given)
}
