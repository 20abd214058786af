package mailbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// views returns boxes and mails in the form of the API. It keeps nothing.
type views struct {
	unknown func(allow []string) []wire.Note // nil: none is known
	self    proto.PeerID
	clock   clock.Clock
	book    *addressbook.Book
	ledger  *ledgerOpener
	places  *places
	runners *runners
}

// waitingIn counts the mails that a subscription has not settled.
func waitingIn(s *box.State, id box.BoxID, sub box.SubID) *int {
	n := 0
	for range s.Mails(id, sub, 0) {
		n++
	}
	return &n
}

// warn adds which entries of the allow lists of a box match no member. That takes long: the
// broker does not wait for it.
func (w *views) warn(v *wire.Box) {
	if w.unknown != nil {
		v.Warnings = w.unknown(slices.Concat(*v.Settings.Allow, *v.Settings.AllowRead))
	}
}

func (w *views) view(s *box.State, id box.BoxID) wire.Box {
	i, _ := s.Info(id)
	v := wire.Box{
		Name: w.places.text(i.Settings.Name), Kind: wire.BoxMailbox, Settings: boxSettings(i.Settings), Problem: w.runners.problemOf(i.Settings.Name, ""), Waiting: i.Waiting, Bytes: i.Bytes, Oldest: proto.TimeOrNil(i.Oldest), Next: i.Next,
		Ended: wire.EndedMails{
			Done: i.EndedAs(box.Done), Dead: i.EndedAs(box.Dead), Expired: i.EndedAs(box.Expired), Cancelled: i.EndedAs(box.Cancelled), Dropped: i.EndedAs(box.Dropped),
		},
		Subscriptions: []wire.Subscription{}, Accepted: map[string]uint64{},
	}
	for class, n := range i.Accepted {
		v.Accepted[(proto.Critical + proto.Class(class)).Name()] = n
	}
	if i.Settings.Kind == box.Topic {
		v.Kind = wire.BoxTopic
	}
	for _, subID := range i.Subs {
		v.Subscriptions = append(v.Subscriptions, w.viewSub(s, id, subID))
	}
	return v
}

func (w *views) viewSub(s *box.State, id box.BoxID, subID box.SubID) wire.Subscription {
	u, _ := s.SubInfo(id, subID)
	v := wire.Subscription{
		Name: u.Settings.Name, Settings: subSettings(u.Settings), Leased: u.Leased, Retrying: u.Retrying, Dead: u.Dead, Blocked: u.Blocked, Readers: u.Readers,
	}
	if v.Name != "" {
		name, _ := s.Path(id, 0)
		v.Problem = w.runners.problemOf(name, v.Name)
	}
	return v
}

func boxSettings(s box.BoxSettings) wire.BoxSettings {
	s = s.WithDefaults()
	n := notesOf(s)
	mails, bytes, lanes := int(s.Mails), int64(s.Bytes), wire.LanesShared
	if s.PerPeer {
		lanes = wire.LanesOrigin
	}
	v := wire.BoxSettings{Allow: orEmpty(n.Allow), AllowRead: orEmpty(n.AllowRead), Mails: &mails, Bytes: &bytes, Lanes: &lanes, Draining: &s.Draining, JSON: &s.JSON, Handler: shownHandler(n.Handler)}
	if s.Kind == box.Topic {
		age := wire.Duration(s.Age)
		v.Age, v.Interest = &age, &s.Interest
	}
	if s.Keep > 0 {
		keep, mails := wire.Duration(s.Keep), int(s.KeepMails)
		v.Keep, v.KeepMails = &keep, &mails
	}
	return v
}

func orEmpty(list []string) *[]string {
	if list == nil {
		list = []string{}
	}
	return &list
}

func subSettings(s box.SubSettings) wire.SubscriptionSettings {
	s = s.WithDefaults()
	attempts, batch, dead, age, mode, onDead := int(s.Attempts), int(s.KeyBatch), int(s.Dead), wire.Duration(s.DeadAge), "shared", "skip"
	for name, m := range modes {
		if m == s.Mode && name != "" {
			mode = name
		}
	}
	if s.Block {
		onDead = "block"
	}
	var strategy *string
	for name, x := range strategies {
		if x == s.Strategy && x != box.Ordered {
			strategy = &name
		}
	}
	v := wire.SubscriptionSettings{Mode: &mode, Strategy: strategy, Attempts: &attempts, KeyBatch: &batch, OnDead: &onDead, Paused: &s.Paused, Dead: &dead, DeadAge: &age}
	if s.Filter != "" {
		v.Filter = &s.Filter
	}
	if s.To != "" {
		v.To = &s.To
	}
	if s.Lease != 0 {
		lease := wire.Duration(s.Lease)
		v.Lease = &lease
	}
	return v
}

// delivered returns deliveries in the form of the API.
func (w *views) delivered(p place, given []mail.Delivery) ([]wire.DeliveredMail, error) {
	now := w.clock.Now()
	out := make([]wire.DeliveredMail, len(given))
	for i, d := range given {
		m, err := w.received(p, d.Handle.Seq, d.From, d.Letter)
		if err != nil {
			return nil, err
		}
		out[i] = wire.DeliveredMail{Lease: d.Handle.String(), Attempt: d.Attempt, Redelivered: d.Redelivered, Until: now.Add(d.Lease).UTC(), Mail: m}
	}
	return out, nil
}

// received returns a mail in the form of the API.
func (w *views) received(p place, seq uint64, from proto.PeerID, letter []byte) (m wire.ReceivedMail, err error) {
	l, err := proto.ParseLetter(letter)
	if err != nil {
		return m, fmt.Errorf("mail %d of %s: %w", seq, p.text, err)
	}
	if from.IsZero() {
		from = w.self
	}
	m = wire.ReceivedMail{
		ID: l.ID.String(), Seq: seq, Box: p.text, From: w.book.NameOf(from), FromID: from.String(), Sender: string(l.Sender),
		Subject: string(l.Subject), Class: l.Class.Name(), Key: string(l.Key), Type: string(l.Type), ContentType: string(l.ContentType),
		Created: proto.Time(l.Created), NotAfter: proto.Time(l.NotAfter), ReplyTo: w.places.text(string(l.ReplyTo)), Correlation: string(l.Correlation),
		Trace: string(l.Traceparent), Hops: int(l.Hops), RedriveOf: text(l.RedriveOf), FirstID: text(l.FirstID), BounceOf: text(l.BounceOf),
		Size: int64(len(l.Body)), Body: l.Body,
	}
	if !l.Object.IsZero() {
		m.Size, m.Digest = int64(l.Object.Size), l.Object.Digest()
	}
	if labels := maps.Collect(labelsOf(&l)); len(labels) > 0 {
		m.Labels = labels
	}
	return m, nil
}

func labelsOf(l *proto.Letter) func(yield func(string, string) bool) {
	return func(yield func(string, string) bool) {
		for name, value := range l.Labels.All() {
			if !yield(string(name), string(value)) {
				return
			}
		}
	}
}

func text(id proto.MailID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

// list returns the boxes of a kind, or all, by name.
func (w *views) list(ctx context.Context, kind string) ([]wire.Box, error) {
	all := []wire.Box{}
	k := w.ledger.broker()
	if k == nil {
		return all, nil
	}
	err := k.View(ctx, func(s *box.State) {
		for _, id := range s.Boxes() {
			if i, _ := s.Info(id); i.Settings.Kind == box.Spool || i.Settings.Handover.IsCopy() {
				continue
			}
			if v := w.view(s, id); kind == "" || v.Kind == kind {
				all = append(all, v)
			}
		}
	})
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all, failure(place{}, "", err)
}

// page is [Boxes.Page].
func (w *views) page(ctx context.Context, kind, cursor string, limit int) (page wire.Page[wire.Box], err error) {
	if limit, err = wire.PageSize(limit); err != nil {
		return page, err
	}
	page.Items, err = w.list(ctx, kind)
	from := sort.Search(len(page.Items), func(i int) bool { return page.Items[i].Name > cursor })
	if page.Items = page.Items[from:]; len(page.Items) > limit {
		page.Items = page.Items[:limit]
		page.Next = page.Items[limit-1].Name
	}
	for i := range page.Items {
		w.warn(&page.Items[i])
	}
	return page, err
}

// get is [Boxes.Get].
func (w *views) get(ctx context.Context, name string) (v wire.Box, err error) {
	p, k, err := w.places.existing(name)
	if err != nil {
		return v, err
	}
	err = viewBox(ctx, k, p.name, func(s *box.State, id box.BoxID) {
		v = w.view(s, id)
		for i := range v.Subscriptions {
			subID, _ := s.FindSub(id, v.Subscriptions[i].Name)
			v.Subscriptions[i].Waiting = waitingIn(s, id, subID)
		}
	})
	if err == nil {
		w.warn(&v)
	}
	return v, failure(p, "", err)
}

// getSubscription is [Boxes.GetSubscription].
func (w *views) getSubscription(ctx context.Context, topic, sub string) (v wire.Subscription, err error) {
	p, k, err := w.places.subscribed(topic, sub)
	if err != nil {
		return v, err
	}
	found := false
	err = k.View(ctx, func(s *box.State) {
		id, _ := s.Find(p.name)
		subID, ok := s.FindSub(id, sub)
		if found = ok; ok {
			v = w.viewSub(s, id, subID)
			v.Waiting = waitingIn(s, id, subID)
		}
	})
	if err == nil && !found {
		err = box.ErrNotFound
	}
	return v, failure(p, sub, err)
}

// outgoing is [Boxes.Outgoing].
func (w *views) outgoing(ctx context.Context) ([]wire.MailSpool, error) {
	all := []wire.MailSpool{}
	k := w.ledger.broker()
	if k == nil {
		return all, nil
	}
	spools, err := k.Spools(ctx)
	if err != nil {
		return nil, failure(place{}, "", err)
	}
	for _, s := range spools {
		if s.Waiting == 0 {
			continue
		}
		v := wire.MailSpool{Box: w.places.text(s.Box), Home: w.book.NameOf(s.Home), HomeID: s.Home.String(), Mails: s.Waiting, Bytes: s.Bytes, Stops: []wire.MailStop{}}
		if !s.Oldest.IsZero() {
			v.Oldest = new(s.Oldest.UTC())
		}
		for _, st := range s.Stops {
			v.Stops = append(v.Stops, wire.MailStop{Class: st.Class.Name(), Code: st.Code.Name(), Detail: st.Detail, At: st.At.UTC(), Until: st.Until.UTC()})
		}
		all = append(all, v)
	}
	return all, nil
}
