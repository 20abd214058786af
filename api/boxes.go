package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// The inputs of the routes of mailboxes and topics.
type (
	// ByMailbox names a mailbox in the path.
	ByMailbox struct {
		Box string `path:"box" maxLength:"192" pattern:"^(agent:)?[^:]+$" patternDescription:"NAME, agent:NAME or agent:NAME@NODE" doc:"NAME, agent:NAME or agent:NAME@NODE"`
	}
	// ByTopic names a topic in the path.
	ByTopic struct {
		Topic string `path:"topic" maxLength:"128" pattern:"^(topic:)?[^:]+$" patternDescription:"the name of a topic" doc:"the topic's name, with or without topic: before it"`
	}
	// BySubscription names a subscription of a topic in the path.
	BySubscription struct {
		ByTopic
		Subscription string `path:"sub" maxLength:"128"`
	}
	// BoxPage requests a page of mailboxes or topics.
	BoxPage struct {
		Cursor string `query:"cursor" maxLength:"1024" doc:"next of the previous page"`
		Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"50"`
	}
	// MailPage requests a page of the mails of a subscription.
	MailPage struct {
		wire.MailQuery
		Cursor string `query:"cursor" maxLength:"1024" doc:"next of the previous page"`
		Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"50"`
	}
	// ofMailbox is a document for a mailbox.
	ofMailbox[B any] struct {
		ByMailbox
		Body B
	}
	// ofTopic is a document for a topic.
	ofTopic[B any] struct {
		ByTopic
		Body B
	}
	// ofSubscription is a document for a subscription.
	ofSubscription[B any] struct {
		BySubscription
		Body B
	}
)

// name returns the topic with its prefix.
func (t ByTopic) name() string {
	return proto.TopicPrefix + strings.TrimPrefix(t.Topic, proto.TopicPrefix)
}

const (
	mailboxPath      = "/v1/mailboxes/{box}"
	topicPath        = "/v1/topics/{topic}"
	subscriptionPath = topicPath + "/subscriptions/{sub}"
)

// routeBoxes adds the routes of mailboxes and topics.
func (s *Server) routeBoxes() {
	s.routeMailboxes()
	s.routeTopics()
	s.routeSubscriptions()
	s.routeReaders()
	s.routeDeliveries()
}

func (s *Server) routeMailboxes() {
	route(s, op("GET", "/v1/mailboxes", "listMailboxes", "mail", "List the mailboxes of this node, by name"), func(ctx context.Context, in *BoxPage) (wire.Page[wire.Box], error) {
		return paged(s.mail.Page(ctx, wire.BoxMailbox, in.Cursor, in.Limit))
	})
	route(s, op("GET", mailboxPath, "getMailbox", "mail", "Show a mailbox of this node"), func(ctx context.Context, in *ByMailbox) (wire.Box, error) {
		return s.mail.Get(ctx, in.Box)
	})
	change := op("PUT", mailboxPath, "setMailbox", "mail", "Change the settings of a mailbox of this node, or create one")
	change.Description = "Absent settings do not change; a zero or empty one becomes its default."
	route(s, change, func(ctx context.Context, in *ofMailbox[*wire.MailboxSettings]) (wire.Box, error) {
		return s.mail.SetMailbox(ctx, in.Box, orZero(in.Body))
	})
	drop := op("DELETE", mailboxPath, "removeMailbox", "mail", "Remove a mailbox with its mail and dead letters")
	drop.Description = "The senders of the mail are told."
	routeNoContent(s, drop, func(ctx context.Context, in *ByMailbox) error {
		return s.mail.Remove(ctx, in.Box)
	})
	purge := op("POST", mailboxPath+"/purge", "purgeMailbox", "mail", "Remove what waits in a mailbox")
	purge.Description = "What is leased stays. The senders of the mail are told."
	route(s, purge, func(ctx context.Context, in *ofMailbox[*wire.PurgeMail]) (wire.PurgedMail, error) {
		return s.mail.Purge(ctx, in.Box, orZero(in.Body))
	})
	route(s, handOffOp(mailboxPath, "handOffMailbox", "a mailbox"), func(ctx context.Context, in *ofMailbox[wire.HandOffBox]) (wire.MovedBox, error) {
		return s.mail.Handoff(ctx, in.Box, in.Body.To)
	})
}

// handOffOp describes the handover of a box.
func handOffOp(path, id, noun string) huma.Operation {
	o := op("POST", path+"/handoff", id, "mail", "Hand over "+noun+" of the mesh to another home")
	o.Description = "All of it goes: mail, settings, subscriptions, dead letters. The response comes when the other node is the home; meanwhile nobody sends to the box or reads it. If the request fails or ends before that, the box stays."
	return o
}

func (s *Server) routeTopics() {
	route(s, op("GET", "/v1/topics", "listTopics", "mail", "List the topics of this node, by name"), func(ctx context.Context, in *BoxPage) (wire.Page[wire.Box], error) {
		return paged(s.mail.Page(ctx, wire.BoxTopic, in.Cursor, in.Limit))
	})
	route(s, op("GET", topicPath, "getTopic", "mail", "Show a topic of this node"), func(ctx context.Context, in *ByTopic) (wire.Box, error) {
		return s.mail.Get(ctx, in.name())
	})
	change := op("PUT", topicPath, "setTopic", "mail", "Change the settings of a topic of this node, or create one")
	change.Description = "Absent settings do not change; a zero or empty one becomes its default."
	route(s, change, func(ctx context.Context, in *ofTopic[*wire.BoxSettings]) (wire.Box, error) {
		return s.mail.SetTopic(ctx, in.name(), orZero(in.Body))
	})
	routeNoContent(s, op("DELETE", topicPath, "removeTopic", "mail", "Remove a topic with its mail and subscriptions"), func(ctx context.Context, in *ByTopic) error {
		return s.mail.Remove(ctx, in.name())
	})
	route(s, op("POST", topicPath+"/purge", "purgeTopic", "mail", "Remove what waits in a topic"), func(ctx context.Context, in *ofTopic[*wire.PurgeMail]) (wire.PurgedMail, error) {
		return s.mail.Purge(ctx, in.name(), orZero(in.Body))
	})
	route(s, handOffOp(topicPath, "handOffTopic", "a topic"), func(ctx context.Context, in *ofTopic[wire.HandOffBox]) (wire.MovedBox, error) {
		return s.mail.Handoff(ctx, in.name(), in.Body.To)
	})
}

func (s *Server) routeSubscriptions() {
	route(s, op("GET", subscriptionPath, "getSubscription", "mail", "Show a subscription of a topic of this node"), func(ctx context.Context, in *BySubscription) (wire.Subscription, error) {
		return s.mail.GetSubscription(ctx, in.name(), in.Subscription)
	})
	change := op("PUT", subscriptionPath, "setSubscription", "mail", "Change the settings of a subscription, or create one")
	change.Description = "Absent settings do not change; a zero or empty one becomes its default. The response is the topic."
	route(s, change, func(ctx context.Context, in *ofSubscription[*wire.SubscriptionSettings]) (wire.Box, error) {
		return s.mail.SetSubscription(ctx, in.name(), in.Subscription, orZero(in.Body))
	})
	routeNoContent(s, op("DELETE", subscriptionPath, "removeSubscription", "mail", "Remove a subscription with its dead letters"), func(ctx context.Context, in *BySubscription) error {
		return s.mail.RemoveSubscription(ctx, in.name(), in.Subscription)
	})
	route(s, op("POST", subscriptionPath+"/seek", "seekSubscription", "mail", "Move a subscription: what it reads next"), func(ctx context.Context, in *ofSubscription[wire.SeekSubscription]) (wire.Box, error) {
		return s.mail.Seek(ctx, in.name(), in.Subscription, in.Body)
	})
}

// A kind is one of the two kinds of what can be read.
type kind struct{ path, id, noun string }

var (
	ofBox = kind{mailboxPath, "Mailbox", "mailbox"}
	ofSub = kind{subscriptionPath, "Subscription", "subscription"}
)

// op describes a route of k.
func (k kind) op(method, verb, summary string) huma.Operation {
	return op(method, k.path+"/"+verb, verb+k.id, "mail", summary+" of a "+k.noun)
}

// both adds a route of mailboxes and the same one of subscriptions, with a document.
func both[B, O any](s *Server, describe func(kind) huma.Operation, f func(ctx context.Context, box, sub string, doc B) (*O, error)) {
	register(s, describe(ofBox), func(ctx context.Context, in *ofMailbox[B]) (*O, error) { return f(ctx, in.Box, "", in.Body) })
	register(s, describe(ofSub), func(ctx context.Context, in *ofSubscription[B]) (*O, error) {
		return f(ctx, in.name(), in.Subscription, in.Body)
	})
}

// routeReaders adds the routes that lease, settle and show mail.
func (s *Server) routeReaders() {
	both(s, s.leaseOp, s.lease)
	settle := func(k kind) huma.Operation {
		o := k.op("POST", "settle", "Settle leased mail")
		o.Description = "Each delivery has its own result, in the order ack, nack, extend, defer, bounce; what is OK is on disk."
		s.describe(&o, reflect.TypeFor[wire.SettledMail]())
		return o
	}
	both(s, settle, func(ctx context.Context, box, sub string, doc wire.SettleMail) (*answer, error) {
		items, err := s.mail.Settle(ctx, box, sub, doc)
		return &answer{wire.SettledMail{Items: items}}, err
	})
	type mailsOfBox struct {
		ByMailbox
		MailPage
	}
	list := func(k kind) huma.Operation {
		o := k.op("GET", "mails", "List the mails")
		o.OperationID = "list" + k.id + "Mails"
		return o
	}
	route(s, list(ofBox), func(ctx context.Context, in *mailsOfBox) (wire.Page[wire.BoxedMail], error) {
		return s.mails(ctx, in.Box, "", in.MailPage)
	})
	type mailsOfTopic struct {
		ByTopic
		MailPage
	}
	kept := op("GET", topicPath+"/mails", "listTopicMails", "mail", "List the mails that a topic keeps, the newest first")
	route(s, kept, func(ctx context.Context, in *mailsOfTopic) (wire.Page[wire.BoxedMail], error) {
		in.State = cmp.Or(in.State, "KEPT")
		return s.mails(ctx, in.name(), "", in.MailPage)
	})
	type mailsOfSub struct {
		BySubscription
		MailPage
	}
	route(s, list(ofSub), func(ctx context.Context, in *mailsOfSub) (wire.Page[wire.BoxedMail], error) {
		return s.mails(ctx, in.name(), in.Subscription, in.MailPage)
	})
}

func (s *Server) mails(ctx context.Context, box, sub string, p MailPage) (wire.Page[wire.BoxedMail], error) {
	q := p.MailQuery
	q.Cursor, q.Limit = p.Cursor, p.Limit
	items, next, err := s.mail.Mails(ctx, box, sub, q)
	return paged(wire.Page[wire.BoxedMail]{Items: items, Next: next}, err)
}

// routeDeliveries adds the routes that stop and resume deliveries and deal with dead letters.
func (s *Server) routeDeliveries() {
	for _, p := range []struct {
		verb, summary string
		on            bool
	}{
		{"pause", "Stop the deliveries", true},
		{"resume", "Resume the deliveries", false},
	} {
		route(s, ofBox.op("POST", p.verb, p.summary), func(ctx context.Context, in *ByMailbox) (wire.Box, error) {
			return s.mail.Pause(ctx, in.Box, "", p.on)
		})
		route(s, ofSub.op("POST", p.verb, p.summary), func(ctx context.Context, in *BySubscription) (wire.Box, error) {
			return s.mail.Pause(ctx, in.name(), in.Subscription, p.on)
		})
	}
	again := func(k kind) huma.Operation {
		o := k.op("POST", "redrive", "Redrive the dead letters")
		o.Description = "Each is sent again as a new mail, once, however often this is repeated: one that is named in seqs and was already sent again has a problem. If one cannot be sent, the problem says why, and those behind it are not sent; if it is the first, that is the response. The response comes when all are sent, at the rate that is asked for."
		s.describe(&o, reflect.TypeFor[wire.RedrivenMail]())
		return o
	}
	both(s, again, func(ctx context.Context, box, sub string, doc *wire.RedriveMail) (*answer, error) {
		out, err := s.mail.Redrive(ctx, box, sub, orZero(doc))
		for _, item := range out.Items {
			if p := item.Problem; p != nil {
				*p = *problem(p.Code, "%s", p.Detail)
			}
		}
		if err != nil && len(out.Items) > 0 { // what was sent before is told, too
			p := ProblemOf(err)
			out.Items, out.More, err = append(out.Items, wire.MailBatchItem{Status: p.Status, Problem: p}), out.More || len(orZero(doc).Seqs) == 0, nil
		}
		return &answer{out}, err
	})
	unblock := func(k kind) huma.Operation {
		o := k.op("POST", "unblock", "Unblock the mails with one ordering key")
		o.DefaultStatus = http.StatusNoContent
		return o
	}
	both(s, unblock, func(ctx context.Context, box, sub string, doc wire.UnblockMail) (*struct{}, error) {
		return nil, s.mail.Unblock(ctx, box, sub, doc)
	})
}

// A leased is the answer to a lease, which is written by hand: a reader that does not get it
// is given nothing.
type leased struct {
	ContentType string `header:"Content-Type"`
	Body        func(huma.Context)
}

func (s *Server) leaseOp(k kind) huma.Operation {
	o := k.op("POST", "lease", "Lease mail")
	o.Description = "The response comes with the first mail, or without any at the end of the wait. What a reader did not settle when its lease ends is delivered again."
	o.Responses = answers[wire.LeasedMail](s, "200", "The mails that are leased; none if there are none")
	return o
}

// lease leases mail. If its reader is gone when there is some, it is given back at once.
func (s *Server) lease(ctx context.Context, box, sub string, l *wire.LeaseMail) (*leased, error) {
	waiting, cancel := stopContext(ctx, 2*maxWait) // the wait has its own limit
	defer cancel()
	given, err := s.mail.Lease(waiting, box, sub, orZero(l))
	switch {
	case err != nil && errors.Is(context.Cause(waiting), wire.ErrDraining):
		return nil, problem(wire.CodeDraining, "lease mail: the node is stopping")
	case err != nil && ctx.Err() == nil:
		return nil, err
	}
	return &leased{jsonType, func(c huma.Context) {
		err := ctx.Err()
		if err == nil {
			err = writeLeased(c, given)
		}
		if err != nil && len(given) > 0 {
			s.giveBack(ctx, box, sub, given)
		}
	}}, nil
}

// writeLeased writes the answer to a lease and returns whether the client may have it.
func writeLeased(c huma.Context, given []wire.DeliveredMail) error {
	if given == nil {
		given = []wire.DeliveredMail{}
	}
	w := c.BodyWriter()
	if err := encode(w, wire.LeasedMail{Items: given}); err != nil {
		return err
	}
	if f, ok := w.(http.ResponseWriter); ok {
		return http.NewResponseController(f).Flush()
	}
	return nil
}

// giveBack gives mail back that its reader did not get.
func (s *Server) giveBack(ctx context.Context, box, sub string, given []wire.DeliveredMail) {
	if err := s.mail.Return(context.WithoutCancel(ctx), box, sub, given); err != nil {
		s.cfg.Logger.Warn("leases of a reader that is gone were not given back: they lapse", "box", box, "mails", len(given), "why", err)
	}
}
