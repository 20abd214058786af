package client

import (
	"context"
	"net/http"
	"strings"

	"github.com/balefire/balefire/wire"
)

// In the methods below, a mailbox is NAME, agent:NAME or agent:NAME@NODE, and a topic NAME or
// topic:NAME. A box is a mailbox, or a topic as topic:NAME; sub is a subscription of that
// topic, and "" of a mailbox, which has only one.

const topicPrefix = "topic:"

func mailboxPath(name string) string { return "/v1/mailboxes/" + escape(name) }

func topicPath(name string) string { return "/v1/topics/" + escape(name) }

func subPath(topic, sub string) string { return topicPath(topic) + "/subscriptions/" + escape(sub) }

// boxPath is the path of a mailbox or a topic.
func boxPath(box string) string {
	if strings.HasPrefix(box, topicPrefix) {
		return topicPath(box)
	}
	return mailboxPath(box)
}

// readPath is the path of a mailbox or a subscription of a topic.
func readPath(box, sub string) string {
	if sub != "" || strings.HasPrefix(box, topicPrefix) {
		return subPath(box, sub)
	}
	return mailboxPath(box)
}

func (c *Client) remove(ctx context.Context, path string) error {
	return c.exec(ctx, call{method: http.MethodDelete, path: path})
}

// boxes returns all pages of a list.
func (c *Client) boxes(ctx context.Context, path string) (all []wire.Box, err error) {
	all = []wire.Box{}
	for cursor := ""; ; {
		p, err := get[wire.Page[wire.Box]](ctx, c, path, query(wire.MaxPage, map[string]string{"cursor": cursor}))
		if err != nil {
			return nil, err
		}
		if all = append(all, p.Items...); p.Next == "" {
			return all, nil
		}
		cursor = p.Next
	}
}

// Mailboxes returns the mailboxes of the node.
func (c *Client) Mailboxes(ctx context.Context) ([]wire.Box, error) {
	return c.boxes(ctx, "/v1/mailboxes")
}

// Mailbox returns a mailbox of the node.
func (c *Client) Mailbox(ctx context.Context, name string) (wire.Box, error) {
	return get[wire.Box](ctx, c, mailboxPath(name), nil)
}

// SetMailbox changes the settings of a mailbox of the node, or creates it.
func (c *Client) SetMailbox(ctx context.Context, name string, s wire.MailboxSettings) (wire.Box, error) {
	return put[wire.Box](ctx, c, mailboxPath(name), s)
}

// RemoveMailbox removes a mailbox with its mail and dead letters. The senders of the mail
// are told.
func (c *Client) RemoveMailbox(ctx context.Context, name string) error {
	return c.remove(ctx, mailboxPath(name))
}

// Topics returns the topics of the node.
func (c *Client) Topics(ctx context.Context) ([]wire.Box, error) {
	return c.boxes(ctx, "/v1/topics")
}

// Topic returns a topic of the node.
func (c *Client) Topic(ctx context.Context, name string) (wire.Box, error) {
	return get[wire.Box](ctx, c, topicPath(name), nil)
}

// SetTopic changes the settings of a topic of the node, or creates it.
func (c *Client) SetTopic(ctx context.Context, name string, s wire.BoxSettings) (wire.Box, error) {
	return put[wire.Box](ctx, c, topicPath(name), s)
}

// RemoveTopic removes a topic with its mail and subscriptions.
func (c *Client) RemoveTopic(ctx context.Context, name string) error {
	return c.remove(ctx, topicPath(name))
}

// Subscription returns a subscription of a topic of the node.
func (c *Client) Subscription(ctx context.Context, topic, sub string) (wire.Subscription, error) {
	return get[wire.Subscription](ctx, c, subPath(topic, sub), nil)
}

// SetSubscription changes the settings of a subscription of a topic, or creates it. It
// returns the topic.
func (c *Client) SetSubscription(ctx context.Context, topic, sub string, s wire.SubscriptionSettings) (wire.Box, error) {
	return put[wire.Box](ctx, c, subPath(topic, sub), s)
}

// RemoveSubscription removes a subscription of a topic with its dead letters.
func (c *Client) RemoveSubscription(ctx context.Context, topic, sub string) error {
	return c.remove(ctx, subPath(topic, sub))
}

// SeekSubscription moves a subscription of a topic: to is what it reads next. It returns the
// topic.
func (c *Client) SeekSubscription(ctx context.Context, topic, sub, to string) (wire.Box, error) {
	return post[wire.Box](ctx, c, subPath(topic, sub)+"/seek", wire.SeekSubscription{To: to})
}

// LeaseMail leases mail. It waits for the first one as long as l says, and returns none if
// there is none.
func (c *Client) LeaseMail(ctx context.Context, box, sub string, l wire.LeaseMail) ([]wire.DeliveredMail, error) {
	p, err := post[wire.LeasedMail](ctx, c, readPath(box, sub)+"/lease", l)
	return p.Items, err
}

// SettleMail settles deliveries. Each has its own result, in the order ack, nack, extend,
// defer, bounce; what is OK is on disk.
func (c *Client) SettleMail(ctx context.Context, box, sub string, s wire.SettleMail) ([]wire.SettledItem, error) {
	p, err := post[wire.SettledMail](ctx, c, readPath(box, sub)+"/settle", s)
	return p.Items, err
}

// BoxMails returns a page of the mails that q selects, oldest first.
func (c *Client) BoxMails(ctx context.Context, box, sub string, q wire.MailQuery) (wire.Page[wire.BoxedMail], error) {
	v := query(q.Limit, map[string]string{
		"state": q.State, "class": q.Class, "key": q.Key, "subject": q.Subject, "cursor": q.Cursor,
		"since": timeText(q.Since), "until": timeText(q.Until),
	})
	path := readPath(box, sub)
	if sub == "" {
		path = boxPath(box) // what a topic keeps
	}
	return get[wire.Page[wire.BoxedMail]](ctx, c, path+"/mails", v)
}

// HandOffBox hands a box of the mesh, whose home is the node, over to another one.
func (c *Client) HandOffBox(ctx context.Context, box, to string) (wire.MovedBox, error) {
	return post[wire.MovedBox](ctx, c, boxPath(box)+"/handoff", wire.HandOffBox{To: to})
}

// PurgeMail removes what waits in a box, or counts it.
func (c *Client) PurgeMail(ctx context.Context, box string, p wire.PurgeMail) (wire.PurgedMail, error) {
	return post[wire.PurgedMail](ctx, c, boxPath(box)+"/purge", p)
}

// RedriveMail sends dead letters again, as new mails.
func (c *Client) RedriveMail(ctx context.Context, box, sub string, r wire.RedriveMail) (wire.RedrivenMail, error) {
	return post[wire.RedrivenMail](ctx, c, readPath(box, sub)+"/redrive", r)
}

// UnblockMail lets the mails of an ordering key go on that a dead letter blocks.
func (c *Client) UnblockMail(ctx context.Context, box, sub string, u wire.UnblockMail) error {
	return c.tell(ctx, readPath(box, sub)+"/unblock", u)
}

// PauseBox stops deliveries of a mailbox or a subscription, or with false resumes them.
func (c *Client) PauseBox(ctx context.Context, box, sub string, on bool) (wire.Box, error) {
	verb := "/resume"
	if on {
		verb = "/pause"
	}
	return post[wire.Box](ctx, c, readPath(box, sub)+verb, nil)
}
