package api

import (
	"errors"
	"testing"

	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/wire"
)

// boxed returns a mailbox or topic of n.
func boxed(t *testing.T, n *node.Node, name string) wire.Box {
	t.Helper()
	b, err := n.Mail.Get(t.Context(), name)
	if err != nil {
		t.Error(err)
		return wire.Box{Subscriptions: make([]wire.Subscription, 1)}
	}
	return b
}

func mailboxRoutes(t *testing.T, n *node.Node) []routed {
	ceo := func() wire.Box { return boxed(t, n, "ceo") }
	sub := func() wire.Subscription { return ceo().Subscriptions[0] }
	var id string // of the oldest mail
	return []routed{
		{"GET", "/v1/mailboxes", "", 200, `"items":[]`, nil},
		{"GET", "/v1/mailboxes/ceo", "", 404, "mailbox add ceo", nil},
		{"POST", "/v1/mailboxes/ceo/pause", "", 404, "mailbox add ceo", nil},
		{"POST", "/v1/mail", `{"to":"agent:ceo","text":"hello"}`, 404, "mailbox add ceo", nil},
		{"PUT", "/v1/mailboxes/topic:orders", "", 422, "NAME, agent:NAME or agent:NAME@NODE", nil},
		{"PUT", "/v1/mailboxes/a%2Fb", "", 422, "agent:NAME", nil},
		{"PUT", "/v1/mailboxes/agent:ceo@laptop", "", 409, "on another node", nil},
		{"PUT", "/v1/mailboxes/ceo", `{"attempts":101}`, 422, "body.attempts", nil},
		{"PUT", "/v1/mailboxes/ceo", `{"attempt":1}`, 422, "body.attempt", nil},
		{"PUT", "/v1/mailboxes/ceo", `{"allow":["peer:laptop"],"attempts":1,"on_dead":"block"}`, 200, `"name":"agent:ceo@here"`, func() bool {
			return *sub().Settings.Attempts == 1 && (*ceo().Settings.Allow)[0] == "peer:laptop"
		}},
		{"PUT", "/v1/mailboxes/agent:desk@here", "", 200, `"name":"agent:desk@here"`, nil},
		{"PUT", "/v1/mailboxes/desk", `{"named":true}`, 409, "a mailbox desk of its own", nil},
		{"PUT", "/v1/mailboxes/office", `{"seize":{"from":"laptop"}}`, 422, "accept_loss is not true", nil},
		{"PUT", "/v1/mailboxes/office", `{"seize":{"accept_loss":true}}`, 422, "body.seize", nil},
		{"PUT", "/v1/mailboxes/office", `{"seize":{"from":"laptop","accept_loss":true}}`, 404, "agent:office is not known here", nil},
		{"PUT", "/v1/mailboxes/office@here", `{"seize":{"from":"laptop","accept_loss":true}}`, 422, "without a node", nil},
		{"PUT", "/v1/topics/office", `{"seize":{"from":"laptop","accept_loss":true}}`, 404, "topic:office is not known here", nil},
		{"PUT", "/v1/mailboxes/office@here", `{"named":true}`, 422, "without a node", nil},
		{"GET", "/v1/mailboxes", "", 200, `"name":"agent:desk@here"`, nil},
		{"POST", "/v1/mailboxes/ceo/pause", "", 200, `"paused":true`, func() bool { return *sub().Settings.Paused }},
		{"POST", "/v1/mailboxes/ceo/resume", "", 200, `"paused":false`, func() bool { return !*sub().Settings.Paused && *sub().Settings.Attempts == 1 }},
		{"POST", "/v1/mail", `{"to":"agent:ceo","class":"high","key":"k","text":"hello","labels":{"a":"b"}}`, 202, `"state":"WAITING"`, func() bool { return ceo().Waiting == 1 }},
		{"POST", "/v1/mail/batch", `[{"to":"agent:ceo@here"},{"to":"agent:nobody"},{"to":"agent:ceo","key":"k"}]`, 200, `"accepted":2,"failed":1`, func() bool { return ceo().Waiting == 3 }},
		{"GET", "/v1/mailboxes/agent:ceo/mails?state=WAITING&class=high&key=k&since=2020-01-01T00:00:00Z&until=2120-01-01T00:00:00Z", "", 200, `"content_type":"text/plain; charset=utf-8"`, func() bool {
			all, _, err := n.Mail.Mails(t.Context(), "ceo", "", wire.MailQuery{})
			id = all[0].ID
			return err == nil
		}},
		{"GET", "/v1/mailboxes/ceo/mails?limit=2", "", 200, `"next":"3"`, nil},
		{"GET", "/v1/mailboxes/ceo/mails?cursor=3", "", 200, `{"items":[{"id":`, nil},
		{"GET", "/v1/mailboxes/ceo/mails?cursor=x", "", 422, "cursor", nil},
		{"GET", "/v1/mailboxes/ceo/mails?state=DONE", "", 422, "query.state", nil},
		{"GET", "/v1/mailboxes/nobody/mails", "", 404, "nobody", nil},
		{"GET", "/v1/mailboxes/ceo/mails?state=KEPT&limit=2", "", 200, `"next":"1"`, nil},
		{"GET", "/v1/why/agent:ceo", "", 200, `"code":"no_reader"`, nil},
		{"GET", "/v1/why/agent:nobody", "", 404, "mailbox add nobody", nil},
		{"GET", "/v1/events?mail=ceo&limit=1", "", 200, `"kind":"mail.accepted"`, nil},
		{"GET", "/v1/events?mail=*", "", 200, `"box":"agent:ceo@here"`, nil},
		{"GET", "/v1/events?mail=a%20b", "", 422, "a b", nil},
		{"GET", "/v1/mail/xyz", "", 422, "path.id", func() bool {
			res, body := ask(t, n, "GET", "/v1/mail/"+id, "", "")
			_, own := ask(t, n, "GET", "/v1/mail/"+id+"/body", "", "")
			return decoded[wire.BoxedMail](t, res, body, 200).ID == id && own == "hello"
		}},
		{"GET", "/v1/mail/outgoing", "", 200, `{"items":[]}`, nil},
		{"POST", "/v1/mail", `{"to":"agent:ceo@laptop","text":"far"}`, 202, `"state":"PENDING"`, nil},
		{"GET", "/v1/mail/outgoing", "", 200, `{"items":[{"box":"agent:ceo@laptop","home":"laptop","home_id":"`, nil},
		{"GET", "/v1/mail/01a1f84f-fb79-727b-b679-7a95fb475002", "", 404, "no mail", nil},
		{"GET", "/v1/mail/01a1f84f-fb79-727b-b679-7a95fb475002/body", "", 404, "no mail", nil},
		{"POST", "/v1/mail/request", `{"to":"agent:desk","text":"how many?","wait":"0s"}`, 200, `"durability":"fsynced"}`, func() bool {
			all, err := n.Mail.Lease(t.Context(), "desk", "", wire.LeaseMail{})
			if err != nil || len(all) != 1 || !wire.IsReplyBox(all[0].Mail.ReplyTo) || all[0].Mail.Correlation != all[0].Mail.ID {
				t.Fatalf("%+v, %v", all, err)
			}
			path := "/v1/mail/" + all[0].Mail.ID + "/reply"
			if res, body := ask(t, n, "GET", path+"?wait=0s", "", ""); decoded[wire.MailReply](t, res, body, 200).Reply != nil {
				t.Errorf("a reply before there is one: %s", body)
			}
			if _, err := n.Mail.Settle(t.Context(), "desk", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: all[0].Lease, Final: true, Reason: "no"}}}); err != nil {
				t.Error(err)
			}
			res, body := ask(t, n, "GET", path+"?wait=1m", "", "")
			return res.StatusCode == 502 && problemOfBody(t, res, body).Code == wire.CodeBounced
		}},
		{"POST", "/v1/mail/request", `{"to":"agent:desk","wait":"11m"}`, 422, "10 minutes", nil},
		{"POST", "/v1/mail/request", `{"to":"agent:desk","reply_to":"agent:ceo"}`, 422, "box of its own", nil},
		{"POST", "/v1/mail/request", `{"to":"agent:desk","waits":"1m"}`, 400, "waits", nil},
		{"GET", "/v1/mail/01a1f84f-fb79-727b-b679-7a95fb475002/reply?wait=0s", "", 404, "nobody waits for a reply", nil},
		{"GET", "/v1/mail/01a1f84f-fb79-727b-b679-7a95fb475002/reply?wait=11m", "", 422, "10 minutes", nil},
		{"GET", "/v1/mail/01a1f84f-fb79-727b-b679-7a95fb475002/receipts", "", 404, "no mail", nil},
		{"GET", "/v1/mail/01a1f84f-fb79-727b-b679-7a95fb475002/receipts?wait=11m", "", 422, "10 minutes", nil},
		{"GET", "/v1/mail/01a1f84f-fb79-727b-b679-7a95fb475002/receipts?wait=soon", "", 422, "wait", nil},
		{"POST", "/v1/mail/reply-box", "", 200, `{"box":"agent:reply-`, nil},
		{"POST", "/v1/mail/reply-box", `{"reply_from":["x"]}`, 422, "reply_from", nil},
		{"POST", "/v1/mailboxes/ceo/lease", `{"max":1,"wait":"1m","reader":"w1"}`, 200, `"lease":"1.`, func() bool { return sub().Leased == 1 && sub().Readers[0] == "w1" }},
		{"GET", "/v1/mailboxes/ceo/body?lease=1.1.1", "", 200, "hello", nil},
		{"POST", "/v1/mailboxes/ceo/lease", `{"max":513}`, 422, "body.max", nil},
		{"POST", "/v1/mailboxes/ceo/lease", `{"wait":"11m"}`, 422, "10 minutes", nil},
		{"POST", "/v1/mailboxes/ceo/lease", `{"wait":"-1s"}`, 422, "must be positive", nil},
		{"POST", "/v1/mailboxes/desk/lease", `{"wait":"0s"}`, 200, `{"items":[]}`, nil},
		{"POST", "/v1/mailboxes/ceo/lease", `{"wait":60}`, 422, "body.wait", nil},
		{"POST", "/v1/mailboxes/nobody/lease", "", 404, "nobody", nil},
		{"POST", "/v1/mailboxes/ceo/settle", `{}`, 422, "nothing to settle", nil},
		{"POST", "/v1/mailboxes/ceo/settle", `{"ack":["x"]}`, 422, "88121.1795212606.4", nil},
		{"POST", "/v1/mailboxes/ceo/settle", `{"ack":["99.1.1"]}`, 200, `"code":"UNKNOWN"`, nil},
		{"POST", "/v1/mailboxes/ceo/unblock", `{"key":""}`, 422, "body.key", nil},
		{"POST", "/v1/mailboxes/ceo/redrive", "", 200, `{"items":[],"more":false}`, nil},
		{"POST", "/v1/mailboxes/ceo/redrive", `{"rate":10001}`, 422, "body.rate", nil},
		{"POST", "/v1/mailboxes/ceo/handoff", `{}`, 422, "property to", nil},
		{"POST", "/v1/mailboxes/ceo/handoff", `{"to":"beta"}`, 409, "is a mailbox of its node", nil},
		{"POST", "/v1/mailboxes/ceo/purge", `{"dry_run":true}`, 200, `{"mails":2,"dry_run":true}`, func() bool { return ceo().Waiting == 3 }},
		{"POST", "/v1/mailboxes/ceo/purge", "", 200, `{"mails":2,"dry_run":false}`, func() bool { return ceo().Waiting == 1 }},
		{"DELETE", "/v1/mailboxes/ceo", "", 204, "", func() bool { _, err := n.Mail.Get(t.Context(), "ceo"); return errors.Is(err, wire.ErrNotFound) }},
		{"DELETE", "/v1/mailboxes/ceo", "", 404, "ceo", nil},
		{"POST", "/v1/mailboxes/desk/unblock", `{"key":"k"}`, 404, "no dead letter blocks", nil},
	}
}

func topicRoutes(t *testing.T, n *node.Node) []routed {
	orders := func() wire.Box { return boxed(t, n, "topic:orders") }
	billing := func() wire.Subscription { return orders().Subscriptions[0] }
	const sub = "/v1/topics/orders/subscriptions/billing"
	return []routed{
		{"GET", "/v1/topics", "", 200, `"items":[]`, nil},
		{"GET", "/v1/topics/orders", "", 404, "topic add orders", nil},
		{"PUT", sub, "", 404, "orders", nil},
		{"PUT", "/v1/topics/agent:orders", "", 422, "the name of a topic", nil},
		{"PUT", "/v1/topics/topic:orders", `{"age":"1d"}`, 200, `"name":"topic:orders"`, func() bool { return orders().Settings.Age.String() == "24h" }},
		{"GET", "/v1/topics", "", 200, `"name":"topic:orders"`, nil},
		{"GET", "/v1/topics/orders", "", 200, `"kind":"topic"`, nil},
		{"PUT", sub, `{"mode":"any"}`, 422, "body.mode", nil},
		{"POST", sub + "/pause", "", 404, "sub add orders billing", nil},
		{"PUT", sub, `{"filter":"eu.>","attempts":1}`, 200, `"name":"billing"`, func() bool { return *billing().Settings.Filter == "eu.>" }},
		{"POST", "/v1/mail", `{"to":"topic:orders","subject":"eu.created","key":"k","body":"AAH/"}`, 202, `"box":"topic:orders"`, func() bool { return *billing().Waiting == 1 }},
		{"POST", "/v1/mail", `{"to":"topic:orders","subject":"eu.>"}`, 422, "subject", nil},
		{"GET", sub, "", 200, `"filter":"eu.>"`, nil},
		{"GET", sub + "2", "", 404, "sub add orders billing2", nil},
		{"PUT", "/v1/topics/parcels", "", 200, `"name":"topic:parcels"`, nil},
		{"GET", "/v1/topics?limit=1", "", 200, `"next":"topic:orders"`, nil},
		{"GET", "/v1/topics?cursor=topic:orders", "", 200, `{"items":[{"name":"topic:parcels"`, nil},
		{"DELETE", "/v1/topics/parcels", "", 204, "", nil},
		{"GET", "/v1/topics/orders/mails?subject=eu.*&limit=1", "", 200, `"state":"WAITING"`, nil},
		{"GET", "/v1/topics/orders/mails?state=DEAD", "", 422, "name one of its subscriptions", nil},
		{"GET", "/v1/topics/nobody/mails", "", 404, "topic add nobody", nil},
		{"GET", "/v1/why/topic:orders%2Fbilling", "", 200, `"subject":"topic:orders/billing"`, nil},
		{"GET", sub + "/mails?subject=eu.*", "", 200, `"body":"AAH/"`, nil},
		{"POST", sub + "/pause", "", 200, `"paused":true`, func() bool { return *billing().Settings.Paused }},
		{"POST", sub + "/lease", `{"max":9}`, 200, `{"items":[]}`, nil},
		{"POST", sub + "/resume", "", 200, `"paused":false`, func() bool { return *billing().Settings.Filter == "eu.>" }},
		{"POST", sub + "/lease", "", 200, `"subject":"eu.created"`, func() bool { return billing().Leased == 1 }},
		{"GET", sub + "/body?lease=1.1.1", "", 200, "\x00\x01", nil},
		{"POST", "/v1/topics/orders/subscriptions/nobody/lease", "", 404, "sub add orders nobody", nil},
		{"POST", sub + "/settle", `{"ack":["99.1.1"]}`, 200, `"code":"UNKNOWN"`, nil},
		{"POST", sub + "/redrive", "", 422, "name the mailbox", nil},
		{"POST", sub + "/redrive", `{"to":"agent:desk"}`, 200, `"items":[]`, nil},
		{"POST", sub + "/unblock", `{"key":"k"}`, 404, "no dead letter blocks", nil},
		{"POST", sub + "/seek", `{"to":"soon"}`, 422, "soon", nil},
		{"POST", sub + "/seek", `{"to":"new"}`, 200, `"name":"topic:orders"`, func() bool { return *billing().Waiting == 0 }},
		{"POST", "/v1/topics/orders/handoff", `{"to":"nobody"}`, 404, "nobody", nil},
		{"POST", "/v1/topics/orders/purge", "", 200, `"dry_run":false`, func() bool { return orders().Waiting == 0 }},
		{"DELETE", sub, "", 204, "", func() bool { return len(orders().Subscriptions) == 0 }},
		{"DELETE", "/v1/topics/orders", "", 204, "", nil},
		{"GET", "/v1/topics", "", 200, `"items":[]`, nil},
	}
}
