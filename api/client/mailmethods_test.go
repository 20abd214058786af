package client_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

const mailID = "01a20c7e-5b1f-7d12-9a44-3f0c2b6d8e91"

var (
	testSent     = wire.SentMail{ID: mailID, Box: "agent:ceo@here", State: "WAITING", Durability: wire.DurabilityFsynced}
	testReceived = wire.ReceivedMail{
		ID: mailID, Seq: 7, Box: "agent:ceo@here", From: "laptop", FromID: "12D3KooW", Class: "high", Key: "order-7", Created: start, NotAfter: start.Add(time.Hour),
		Labels: map[string]string{"a": "b"}, Size: 3, Body: []byte{0, 1, 0xff},
	}
	testReply = wire.MailReply{SentMail: testSent, Reply: &testReceived}
	testBoxed = wire.BoxedMail{ReceivedMail: testReceived, State: "DEAD", Accepted: start, Attempts: 3, Died: &start, Cause: "nacked"}
	testBox   = wire.Box{Name: "agent:ceo@here", Kind: wire.BoxMailbox, Waiting: 7, Oldest: &start, Subscriptions: []wire.Subscription{{Leased: 2, Readers: []string{"w1"}}}}
	testSpool = wire.MailSpool{Box: "agent:ceo@laptop", Home: "laptop", HomeID: "12D3KooW", Mails: 7, Bytes: 4096, Oldest: &start, Stops: []wire.MailStop{{Class: "high", Code: "FULL", At: start, Until: start.Add(time.Second)}}}
	testTopic = wire.Box{Name: "topic:orders", Kind: wire.BoxTopic, Next: 8, Subscriptions: []wire.Subscription{{Name: "billing", Waiting: new(7)}}}
)

func mailMethods() []method {
	const sent = `{"to":"agent:ceo","dedupe":"d","body":"aGk="}`
	m := wire.Mail{To: "agent:ceo", Dedupe: "d", Body: []byte("hi")}
	q := wire.MailQuery{State: "DEAD", Class: "high", Key: "a b", Subject: "eu.>", Since: start, Until: start.Add(time.Hour), Cursor: "88", Limit: 7}
	const chosen = "?class=high&cursor=88&key=a+b&limit=7&since=2026-11-20T12%3A00%3A00Z&state=DEAD&subject=eu.%3E&until=2026-11-20T13%3A00%3A00Z"
	mails := wire.Page[wire.BoxedMail]{Items: []wire.BoxedMail{testBoxed}, Next: "99"}
	settled := wire.SettledMail{Items: []wire.SettledItem{{Lease: "7.1.1", Code: wire.SettledOK, Until: &start}}}
	return []method{
		{"SendMail", "POST /v1/mail " + sent, testSent, func(ctx context.Context, c *client.Client) (any, error) { return c.SendMail(ctx, m) }},
		{"MailBody", "GET /v1/mail/" + mailID + "/body", []byte("hi"), func(ctx context.Context, c *client.Client) (any, error) {
			r, _, err := c.MailBody(ctx, mailID)
			if err != nil {
				return nil, err
			}
			return nil, r.Close()
		}},
		{"DeliveredBody", "GET /v1/topics/topic:orders/subscriptions/eu/body?lease=7.1.1", []byte("hi"), func(ctx context.Context, c *client.Client) (any, error) {
			r, _, err := c.DeliveredBody(ctx, "topic:orders", "eu", "7.1.1")
			if err != nil {
				return nil, err
			}
			return nil, r.Close()
		}},
		{"SendMails", "POST /v1/mail/batch " + sent, wire.MailBatch{Accepted: 1, Items: []wire.MailBatchItem{{Status: 202, Mail: &testSent}}}, func(ctx context.Context, c *client.Client) (any, error) {
			_, errs := c.SendMails(ctx, []wire.Mail{m})
			return nil, errs[0]
		}},
		{"Request", `POST /v1/mail/request {"to":"agent:ceo","dedupe":"d","body":"aGk=","wait":"1s","reply_from":["peer:laptop"]}`, testReply, func(ctx context.Context, c *client.Client) (any, error) {
			return c.Request(ctx, wire.MailRequest{Mail: m, Wait: wire.Wait(time.Second), ReplyFrom: []string{"peer:laptop"}})
		}},
		{"Reply", "GET /v1/mail/" + mailID + "/reply?wait=1m0s", testReply, func(ctx context.Context, c *client.Client) (any, error) { return c.Reply(ctx, mailID) }},
		{"NewReplyBox", `POST /v1/mail/reply-box {"reply_from":["*"]}`, wire.ReplyBox{Box: "agent:reply-x@here"}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.NewReplyBox(ctx, wire.NewReplyBox{ReplyFrom: []string{"*"}})
		}},
		{"Outgoing", "GET /v1/mail/outgoing", page(testSpool), func(ctx context.Context, c *client.Client) (any, error) { return c.Outgoing(ctx) }},
		{"Mail", "GET /v1/mail/" + mailID, testBoxed, func(ctx context.Context, c *client.Client) (any, error) { return c.Mail(ctx, mailID) }},
		{"MailReceipts", "GET /v1/mail/" + mailID + "/receipts?wait=1m0s", page(wire.MailReceipt{Mail: mailID}), func(ctx context.Context, c *client.Client) (any, error) {
			return c.MailReceipts(ctx, mailID, time.Minute)
		}},
		{"LeaseMail", `POST /v1/mailboxes/agent:ceo@here/lease {"max":2,"wait":"1ms","reader":"w1"}`, wire.LeasedMail{Items: []wire.DeliveredMail{{Lease: "7.1.1", Attempt: 1, Until: start, Mail: testReceived}}}, func(ctx context.Context, c *client.Client) (any, error) {
			return c.LeaseMail(ctx, "agent:ceo@here", "", wire.LeaseMail{Max: 2, Wait: wire.Wait(time.Millisecond), Reader: "w1"})
		}},
		{"LeaseMail", "POST /v1/topics/topic:orders/subscriptions/billing/lease {}", wire.LeasedMail{}, func(ctx context.Context, c *client.Client) (any, error) {
			_, err := c.LeaseMail(ctx, "topic:orders", "billing", wire.LeaseMail{})
			return nil, err
		}},
		{"SettleMail", `POST /v1/mailboxes/ceo/settle {"ack":["7.1.1"],"nack":[{"lease":"8.1.2","delay":"30s","reason":"r","final":true}],"extend":[{"lease":"9.1.3","for":"1m"}]}`, settled, func(ctx context.Context, c *client.Client) (any, error) {
			return c.SettleMail(ctx, "ceo", "", wire.SettleMail{
				Ack: []string{"7.1.1"}, Nack: []wire.NackMail{{Lease: "8.1.2", Delay: wire.Duration(30 * time.Second), Reason: "r", Final: true}},
				Extend: []wire.ExtendMail{{Lease: "9.1.3", For: wire.Duration(time.Minute)}},
			})
		}},
		{"SettleMail", `POST /v1/topics/orders/subscriptions/billing/settle {"ack":["7.1.1"]}`, settled, func(ctx context.Context, c *client.Client) (any, error) {
			return c.SettleMail(ctx, "orders", "billing", wire.SettleMail{Ack: []string{"7.1.1"}})
		}},
		{"BoxMails", "GET /v1/mailboxes/ceo/mails" + chosen, mails, func(ctx context.Context, c *client.Client) (any, error) { return c.BoxMails(ctx, "ceo", "", q) }},
		{"BoxMails", "GET /v1/topics/topic:orders/mails?state=KEPT", mails, func(ctx context.Context, c *client.Client) (any, error) {
			return c.BoxMails(ctx, "topic:orders", "", wire.MailQuery{State: "KEPT"})
		}},
		{"BoxMails", "GET /v1/topics/topic:orders/subscriptions/billing/mails", mails, func(ctx context.Context, c *client.Client) (any, error) {
			return c.BoxMails(ctx, "topic:orders", "billing", wire.MailQuery{})
		}},
	}
}

func boxMethods() []method {
	removed := wire.PurgedMail{Mails: 7}
	moved := wire.MovedBox{Box: "agent:desk", Home: "beta", Generation: 2, Mails: 7, Served: true}
	redriven := wire.RedrivenMail{Items: []wire.MailBatchItem{{Status: 202, Mail: &testSent}}, More: true}
	return []method{
		{"Mailboxes", "GET /v1/mailboxes?limit=1000", page(testBox), func(ctx context.Context, c *client.Client) (any, error) { return c.Mailboxes(ctx) }},
		{"SetMailbox", `PUT /v1/mailboxes/ceo {"allow":["peer:laptop"],"attempts":0}`, testBox, func(ctx context.Context, c *client.Client) (any, error) {
			s := wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: &[]string{"peer:laptop"}}}
			s.Attempts = new(0)
			return c.SetMailbox(ctx, "ceo", s)
		}},
		{"Mailbox", "GET /v1/mailboxes/a%2Fb%20%C3%BC", testBox, func(ctx context.Context, c *client.Client) (any, error) { return c.Mailbox(ctx, "a/b ü") }},
		{"PauseBox", "POST /v1/mailboxes/ceo/pause", testBox, func(ctx context.Context, c *client.Client) (any, error) { return c.PauseBox(ctx, "ceo", "", true) }},
		{"HandOffBox", `POST /v1/mailboxes/desk/handoff {"to":"beta"}`, moved, func(ctx context.Context, c *client.Client) (any, error) {
			return c.HandOffBox(ctx, "desk", "beta")
		}},
		{"PurgeMail", `POST /v1/mailboxes/ceo/purge {"limit":7,"reason":"old","dry_run":true}`, removed, func(ctx context.Context, c *client.Client) (any, error) {
			return c.PurgeMail(ctx, "ceo", wire.PurgeMail{Limit: 7, Reason: "old", DryRun: true})
		}},
		{"RedriveMail", `POST /v1/mailboxes/ceo/redrive {"seqs":[7],"to":"agent:desk","rate":9,"max":8}`, redriven, func(ctx context.Context, c *client.Client) (any, error) {
			return c.RedriveMail(ctx, "ceo", "", wire.RedriveMail{Seqs: []uint64{7}, To: "agent:desk", Rate: 9, Max: 8})
		}},
		{"UnblockMail", `POST /v1/mailboxes/ceo/unblock {"key":"x y","origin":"here"}`, nil, func(ctx context.Context, c *client.Client) (any, error) {
			return nil, c.UnblockMail(ctx, "ceo", "", wire.UnblockMail{Key: "x y", Origin: "here"})
		}},
		{"RemoveMailbox", "DELETE /v1/mailboxes/ceo", nil, func(ctx context.Context, c *client.Client) (any, error) { return nil, c.RemoveMailbox(ctx, "ceo") }},
		{"Topics", "GET /v1/topics?limit=1000", page(testTopic), func(ctx context.Context, c *client.Client) (any, error) { return c.Topics(ctx) }},
		{"SetTopic", `PUT /v1/topics/orders {"age":"24h"}`, testTopic, func(ctx context.Context, c *client.Client) (any, error) {
			return c.SetTopic(ctx, "orders", wire.BoxSettings{Age: new(wire.Duration(24 * time.Hour))})
		}},
		{"Topic", "GET /v1/topics/topic:orders", testTopic, func(ctx context.Context, c *client.Client) (any, error) { return c.Topic(ctx, "topic:orders") }},
		{"Subscription", "GET /v1/topics/orders/subscriptions/billing", testTopic.Subscriptions[0], func(ctx context.Context, c *client.Client) (any, error) {
			return c.Subscription(ctx, "orders", "billing")
		}},
		{"SetSubscription", `PUT /v1/topics/orders/subscriptions/billing {"filter":"eu.\u003e","from":"first"}`, testTopic, func(ctx context.Context, c *client.Client) (any, error) {
			return c.SetSubscription(ctx, "orders", "billing", wire.SubscriptionSettings{Filter: new("eu.>"), From: "first"})
		}},
		{"SeekSubscription", `POST /v1/topics/orders/subscriptions/billing/seek {"to":"first"}`, testTopic, func(ctx context.Context, c *client.Client) (any, error) {
			return c.SeekSubscription(ctx, "orders", "billing", "first")
		}},
		{"PauseBox", "POST /v1/topics/topic:orders/subscriptions/billing/resume", testTopic, func(ctx context.Context, c *client.Client) (any, error) {
			return c.PauseBox(ctx, "topic:orders", "billing", false)
		}},
		{"HandOffBox", `POST /v1/topics/topic:orders/handoff {"to":"beta"}`, moved, func(ctx context.Context, c *client.Client) (any, error) {
			return c.HandOffBox(ctx, "topic:orders", "beta")
		}},
		{"PurgeMail", "POST /v1/topics/topic:orders/purge {}", removed, func(ctx context.Context, c *client.Client) (any, error) {
			return c.PurgeMail(ctx, "topic:orders", wire.PurgeMail{})
		}},
		{"RedriveMail", `POST /v1/topics/orders/subscriptions/billing/redrive {"to":"agent:desk"}`, redriven, func(ctx context.Context, c *client.Client) (any, error) {
			return c.RedriveMail(ctx, "orders", "billing", wire.RedriveMail{To: "agent:desk"})
		}},
		{"UnblockMail", `POST /v1/topics/orders/subscriptions/billing/unblock {"key":"k"}`, nil, func(ctx context.Context, c *client.Client) (any, error) {
			return nil, c.UnblockMail(ctx, "orders", "billing", wire.UnblockMail{Key: "k"})
		}},
		{"RemoveSubscription", "DELETE /v1/topics/orders/subscriptions/billing", nil, func(ctx context.Context, c *client.Client) (any, error) {
			return nil, c.RemoveSubscription(ctx, "orders", "billing")
		}},
		{"RemoveTopic", "DELETE /v1/topics/orders", nil, func(ctx context.Context, c *client.Client) (any, error) { return nil, c.RemoveTopic(ctx, "orders") }},
	}
}

// A list of boxes has those of all its pages.
func TestPagesOfBoxes(t *testing.T) {
	c, n, _ := canned(t, nil)
	n.Answer("GET /v1/mailboxes", func(r *http.Request) any {
		switch r.URL.Query().Get("cursor") {
		case "":
			return wire.Page[wire.Box]{Items: []wire.Box{{Name: "a"}, {Name: "b c"}}, Next: "b c"}
		case "b c":
			return page(wire.Box{Name: "d"})
		}
		return wire.ErrInvalid
	})
	all, err := c.Mailboxes(t.Context())
	if err != nil || len(all) != 3 || all[0].Name != "a" || all[2].Name != "d" {
		t.Errorf("%+v: %v", all, err)
	}
}
