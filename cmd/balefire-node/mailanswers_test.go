package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/balefire/balefire/api/client/clienttest"
	"github.com/balefire/balefire/wire"
)

const testMailID = "01a20c7e-5b1f-7d12-9a44-3f0c2b6d8e91"

// newMailNode is a canned node with a mailbox, ceo, and a topic, orders.
func newMailNode() *clienttest.Node {
	n := newCannedNode()
	leased := wire.LeasedMail{Items: []wire.DeliveredMail{
		{Lease: "88.7.1", Attempt: 1, Until: testStart.Add(30 * time.Second), Mail: testReceived("hello\nthere")},
		{Lease: "89.7.2", Attempt: 2, Redelivered: true, Until: testStart.Add(5 * time.Second), Mail: testReceived("\x1b[2Jforged\x00")},
	}}
	redriven := wire.RedrivenMail{Items: []wire.MailBatchItem{{Status: 202, Mail: &wire.SentMail{ID: testMailID, Box: "agent:ceo@here"}}}}
	for pattern, answer := range map[string]any{
		"POST /v1/mail": func(r *http.Request) any { return clienttest.Status{Code: http.StatusAccepted, Value: sentMail(r)} },
		"POST /v1/mail/request": func(r *http.Request) any {
			if m := document[wire.MailRequest](r); m.To == "agent:gone@laptop" {
				return fmt.Errorf("%w: mail is DEAD", wire.ErrBounced)
			}
			return wire.MailReply{SentMail: wire.SentMail{ID: testMailID, Box: "agent:ceo@here"}}
		},
		"GET /v1/mail/{id}/reply": func(r *http.Request) any {
			switch r.PathValue("id") {
			case "01a30":
				<-r.Context().Done()
				return context.Canceled
			case "01a40":
				return fmt.Errorf("%w: mail 01a40 is DEAD: final: no such order", wire.ErrBounced)
			}
			reply := testReceived("five\n")
			return wire.MailReply{SentMail: wire.SentMail{ID: testMailID}, Reply: &reply}
		},
		"GET /v1/mail/{id}": func(r *http.Request) any {
			m := testMail("LEASED")
			if strings.HasPrefix(r.PathValue("id"), "01a30") {
				m.State, m.Box, m.Seq, m.Attempts, m.Tries = "PENDING", "agent:ceo@laptop", 0, 0, nil
			}
			return m
		},
		"GET /v1/mail/outgoing": page(
			wire.MailSpool{Box: "agent:ceo@laptop", Home: "laptop", HomeID: "12D3KooW", Mails: 7, Bytes: 4096, Oldest: ago(time.Minute), Stops: []wire.MailStop{
				{Class: "high", Code: "FULL", Detail: "it has\n100000 mails", At: testStart.Add(-time.Second), Until: testStart.Add(5 * time.Second)},
				{Class: "low", Code: "BUSY", At: testStart.Add(-time.Minute), Until: testStart},
			}},
			wire.MailSpool{Box: "topic:orders", Home: "tablet", Mails: 1, Bytes: 80, Oldest: ago(time.Second), Stops: []wire.MailStop{}},
		),

		"GET /v1/mailboxes":       page(testMailbox("ceo"), wire.Box{Name: "agent:desk@here", Kind: wire.BoxMailbox}),
		"GET /v1/mailboxes/{box}": mailboxNamed,
		"PUT /v1/mailboxes/{box}": func(r *http.Request) any {
			if s := document[wire.MailboxSettings](r); s.Named && r.PathValue("box") == "ceo" {
				return fmt.Errorf("%w: this node has a mailbox ceo of its own", wire.ErrRefused)
			}
			return testMailbox(r.PathValue("box"))
		},
		"DELETE /v1/mailboxes/{box}":      nil,
		"POST /v1/mailboxes/{box}/pause":  func(r *http.Request) any { return pausedMailbox(r.PathValue("box")) },
		"POST /v1/mailboxes/{box}/resume": func(r *http.Request) any { return testMailbox(r.PathValue("box")) },
		"POST /v1/mailboxes/{box}/lease":  leased,
		"POST /v1/mailboxes/{box}/settle": settled,
		"GET /v1/mailboxes/{box}/mails":   listedMails,
		"POST /v1/mailboxes/{box}/purge": func(r *http.Request) any {
			return wire.PurgedMail{Mails: 3, DryRun: document[wire.PurgeMail](r).DryRun}
		},
		"POST /v1/mailboxes/{box}/unblock": nil,
		"POST /v1/mailboxes/{box}/redrive": redriven,
		"GET /v1/topics":                   page(testTopic("orders", false)),
		"GET /v1/topics/{topic}":           topicNamed,
		"GET /v1/topics/{topic}/mails":     listedMails,
		"PUT /v1/topics/{topic}":           func(r *http.Request) any { return testTopic(r.PathValue("topic"), true) },
		"DELETE /v1/topics/{topic}":        nil,
		"POST /v1/mailboxes/{box}/handoff": wire.MovedBox{Box: "agent:desk", Home: "beta", Generation: 2, Mails: 3, Served: true},
		"POST /v1/topics/{topic}/handoff":  wire.MovedBox{Box: "topic:orders", Home: "beta", Generation: 2, Mails: 3},
		"POST /v1/topics/{topic}/purge":    wire.PurgedMail{Mails: 3},
		subPath("PUT", ""):                 func(r *http.Request) any { return topicWith(r) },
		subPath("DELETE", ""):              nil,
		subPath("POST", "/seek"):           func(r *http.Request) any { return topicWith(r) },
		subPath("POST", "/pause"):          func(r *http.Request) any { return topicWith(r) },
		subPath("POST", "/resume"):         func(r *http.Request) any { return topicWith(r) },
		subPath("POST", "/lease"):          wire.LeasedMail{Items: []wire.DeliveredMail{}},
		subPath("POST", "/settle"):         settled,
		subPath("GET", "/mails"):           listedMails,
		subPath("POST", "/unblock"):        nil,
		subPath("POST", "/redrive"): func(r *http.Request) any {
			switch r.PathValue("sub") {
			case "full":
				full := wire.MailBatchItem{Status: 507, Problem: &wire.Problem{Detail: "dead letter 9, after 1 were sent: full"}}
				return wire.RedrivenMail{Items: append(redriven.Items[:1:1], full), More: true}
			case "again":
				known := wire.MailBatchItem{Status: 409, Problem: &wire.Problem{Detail: "refused: dead letter 7 was already sent again"}}
				return wire.RedrivenMail{Items: append([]wire.MailBatchItem{known}, redriven.Items...)}
			}
			return redriven
		},
	} {
		n.Answer(pattern, answer)
	}
	return n
}

func subPath(method, verb string) string {
	return method + " /v1/topics/{topic}/subscriptions/{sub}" + verb
}

func sentMail(r *http.Request) any {
	m := document[wire.Mail](r)
	s := wire.SentMail{ID: testMailID, Box: m.To + "@here", State: "WAITING", Durability: wire.DurabilityFsynced, Known: m.Dedupe == "known"}
	if m.Relaxed {
		s.Durability = wire.DurabilityRelaxed
	}
	return s
}

func testReceived(body string) wire.ReceivedMail {
	return wire.ReceivedMail{
		ID: testMailID, Seq: 88, Box: "agent:ceo@here", From: "laptop", FromID: "12D3KooW", Sender: "boss", Class: "high", Key: "order-7", Type: "order", Created: testStart.Add(-time.Minute),
		NotAfter: testStart.Add(time.Hour), ReplyTo: "agent:boss@laptop", Correlation: "c-1", Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Hops: 2, Size: int64(len(body)), Body: []byte(body),
	}
}

func testMail(state string) wire.BoxedMail {
	return wire.BoxedMail{ReceivedMail: testReceived("hello\nthere"), State: state, Accepted: testStart.Add(-time.Minute), Attempts: 1, Tries: []wire.MailTry{{At: testStart.Add(-time.Second), Cause: "nacked", Reader: "w1", Reason: "rate\nlimit"}}}
}

func listedMails(r *http.Request) any {
	m := testMail("WAITING")
	if r.URL.Query().Get("state") == "DEAD" {
		m.State, m.Cause, m.Reason, m.Died, m.Redriven = "DEAD", "final", "never works", ago(time.Second), true
	}
	p := page(m)
	if r.URL.Query().Get("limit") != "1000" {
		p.Next = "99"
	}
	return p
}

// settled answers each handle: those that begin with 9 are stale, with 8 out of order, with
// 7 unknown.
func settled(r *http.Request) any {
	s, out := document[wire.SettleMail](r), wire.SettledMail{}
	add := func(lease string, until *time.Time) {
		code := map[byte]string{'9': wire.SettledStale, '8': wire.SettledOutOfOrder, '7': wire.SettledUnknown}[lease[0]]
		if strings.HasPrefix(lease, "88.7.") || strings.HasPrefix(lease, "89.7.") || code == "" {
			code = wire.SettledOK
		}
		out.Items = append(out.Items, wire.SettledItem{Lease: lease, Code: code, Until: until})
	}
	for _, lease := range s.Ack {
		add(lease, nil)
	}
	for _, n := range s.Nack {
		add(n.Lease, nil)
	}
	for _, e := range s.Extend {
		until := testStart.Add(time.Duration(e.For))
		add(e.Lease, &until)
	}
	for _, d := range s.Defer {
		add(d.Lease, nil)
	}
	for _, b := range s.Bounce {
		add(b.Lease, nil)
	}
	return out
}

// readerSettings are the defaults of a mailbox or a subscription.
func readerSettings() wire.SubscriptionSettings {
	return wire.SubscriptionSettings{
		Mode: new("shared"), Attempts: new(3), KeyBatch: new(2), OnDead: new("skip"), Paused: new(bool), Dead: new(10000), DeadAge: new(wire.Duration(30 * 24 * time.Hour)),
	}
}

func testMailbox(name string) wire.Box {
	return wire.Box{
		Name: "agent:" + strings.TrimPrefix(name, "agent:") + "@here", Kind: wire.BoxMailbox, Waiting: 7, Bytes: 4096, Oldest: ago(time.Minute), Next: 90, Ended: wire.EndedMails{Done: 80, Dead: 2, Expired: 1},
		Settings:      wire.BoxSettings{Allow: &[]string{"peer:laptop", "role:work"}, AllowRead: &[]string{}, Mails: new(100000), Bytes: new(int64(256 << 20)), Lanes: new(wire.LanesOrigin), Draining: new(bool)},
		Subscriptions: []wire.Subscription{{Settings: readerSettings(), Leased: 2, Retrying: 1, Dead: 2, Blocked: 1, Readers: []string{"w1", ""}}},
	}
}

func pausedMailbox(name string) wire.Box {
	v := testMailbox(name)
	*v.Subscriptions[0].Settings.Paused, *v.Settings.Draining = true, true
	return v
}

// mailboxNamed knows every mailbox but those that begin with new.
func mailboxNamed(r *http.Request) any {
	if name := r.PathValue("box"); !strings.HasPrefix(name, "new") {
		v := testMailbox(name)
		switch name {
		case "mesh":
			v.Name = "agent:mesh"
		case "raw":
			v.Settings.Handler = &wire.MailHandler{
				Exec: []string{"/bin/v1", "-x"}, Forward: "agent:desk", Concurrency: 4, Timeout: wire.Duration(time.Hour), Profile: "read-only", Env: []string{"HOME", "KEY"}, RunAs: "nobody", Dir: "/srv",
			}
		case "hook":
			v.Settings.Handler = &wire.MailHandler{Post: "http://x/in", Forward: "agent:desk", Concurrency: 4}
		}
		return v
	}
	return wire.ErrNotFound
}

func testTopic(name string, counted bool) wire.Box {
	s := wire.Subscription{Name: "billing", Settings: readerSettings(), Leased: 2, Dead: 1}
	s.Settings.Filter, s.Settings.Lease = new("eu.>"), new(wire.Duration(2*time.Minute))
	if counted {
		s.Waiting = new(5)
	}
	return wire.Box{
		Name: topicBox(name), Kind: wire.BoxTopic, Waiting: 7, Bytes: 4096, Next: 90, Ended: wire.EndedMails{Done: 80, Dropped: 3}, Subscriptions: []wire.Subscription{s},
		Settings: wire.BoxSettings{Allow: &[]string{}, AllowRead: &[]string{"*"}, Mails: new(1000000), Bytes: new(int64(1 << 30)), Age: new(wire.Duration(7 * 24 * time.Hour)), Interest: new(true), Lanes: new(wire.LanesShared), Draining: new(bool)},
	}
}

func topicNamed(r *http.Request) any {
	if name := r.PathValue("topic"); !strings.HasPrefix(name, "new") {
		return testTopic(name, true)
	}
	return wire.ErrNotFound
}

// topicWith is the topic of a request with its subscription.
func topicWith(r *http.Request) any {
	v := testTopic(r.PathValue("topic"), true)
	if sub := r.PathValue("sub"); sub != "billing" {
		s := v.Subscriptions[0]
		s.Name = sub
		v.Subscriptions = append(v.Subscriptions, s)
	}
	return v
}
