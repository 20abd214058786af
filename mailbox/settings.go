package mailbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// settings makes and removes boxes and subscriptions, and changes their settings. It keeps nothing:
// those are in the ledger, and changes are one after the other: see rules.
type settings struct {
	self     proto.PeerID
	keep     time.Duration // how long a new mailbox keeps mail that is done
	audit    func(ctx context.Context, action, what string) error
	made     func() // called when a box was made
	names    Names
	ledger   *ledgerOpener
	places   *places
	rules    *rules
	waits    *waits
	views    *views
	handlers *handlers
	copies   *copies
	homes    *homes
}

// setMailbox is [Boxes.SetMailbox].
func (x *settings) setMailbox(ctx context.Context, name string, s wire.MailboxSettings) (wire.Box, error) {
	p, err := x.places.find(name)
	if named := proto.AgentPrefix + trimPrefix(name, proto.AgentPrefix); err == nil && (s.Named || s.Seize != nil) {
		t, e := proto.ParseTarget(named)
		k := x.ledger.broker()
		switch err = e; {
		case k != nil && k.Has(x.places.mailbox(t.Name, x.self).name):
			err = fmt.Errorf("%w: this node has a mailbox %s of its own: one of the mesh needs another name", wire.ErrRefused, t.Name)
		case t.Node != "":
			err = invalid("%.80q: a named mailbox belongs to the mesh: use its name without a node", name)
		}
		p = x.places.named(t)
	}
	return x.set(ctx, p, err, wire.BoxMailbox, s.BoxSettings, &s.SubscriptionSettings)
}

// setTopic is [Boxes.SetTopic].
func (x *settings) setTopic(ctx context.Context, name string, s wire.BoxSettings) (wire.Box, error) {
	p, err := x.places.find(proto.TopicPrefix + trimPrefix(name, proto.TopicPrefix))
	return x.set(ctx, p, err, wire.BoxTopic, s, nil)
}

// set makes or changes the box p, unless finding it failed.
func (x *settings) set(ctx context.Context, p place, err error, kind string, s wire.BoxSettings, sub *wire.SubscriptionSettings) (wire.Box, error) {
	switch {
	case err != nil:
	case p.home != x.self && s.Seize == nil:
		err = x.places.elsewhere(p)
	case p.kind != kind:
		err = fmt.Errorf("%w: %s is not a %s", wire.ErrInvalid, p.text, kind)
	default:
		err = errors.Join(checkBox(p, s), checkSub(p, sub))
	}
	if err == nil {
		err = x.copies.checkComing(p, s.Seize)
	}
	if err == nil {
		p, err = x.title(ctx, p, s.Seize)
	}
	if err != nil {
		return wire.Box{}, err
	}
	k, err := x.ledger.open()
	if err != nil {
		return wire.Box{}, err
	}
	x.rules.changing.Lock()
	defer x.rules.changing.Unlock()
	ctx = context.WithoutCancel(ctx) // what is on disk counts at once
	if p.title != proto.TitleQueue {
		if _, _, err := x.names.HomeOf(p.name); err != nil { // it was removed meanwhile
			return wire.Box{}, err
		}
	}
	now, err := x.homes.openSettings(ctx, k, p)
	if err != nil {
		return wire.Box{}, err
	}
	if !now.exists {
		now.box = box.BoxSettings{Name: p.name, Kind: box.Mailbox, Keep: x.keep}
		if p.kind == wire.BoxTopic {
			now.box.Kind, now.box.Keep = box.Topic, 0
		}
	}
	if now.exists && s.Lanes != nil && (*s.Lanes == wire.LanesOrigin) != now.box.PerPeer {
		return wire.Box{}, fmt.Errorf("%w: what a lane is in %s cannot change: remove the box and make it again", wire.ErrRefused, p.text)
	}
	now.box.Generation = p.generation
	changed, err := x.changed(k, p, now.box, s)
	if err != nil {
		return wire.Box{}, err
	}
	if sub != nil {
		if now.sub, err = changeSub(now.sub, *sub); err != nil {
			return wire.Box{}, err
		}
	}
	if err := k.SetBox(ctx, changed); err != nil {
		return wire.Box{}, failure(p, "", err)
	}
	if err := x.rules.read(ctx, k); err != nil {
		return wire.Box{}, failure(p, "", err)
	}
	if sub != nil {
		if err := k.SetSub(ctx, p.name, now.sub, box.Start{}); err != nil {
			return wire.Box{}, failure(p, "", err)
		}
	}
	if !now.exists {
		x.made()
		_ = k.RetryNow(ctx, x.self, proto.CodeNoHandler) // what programs sent before
	}
	if err := x.audit(ctx, kind+".set", p.text); err != nil {
		return wire.Box{}, err
	}
	if s.Handler != nil {
		if err := x.audit(ctx, "mailbox.handler", p.text+": "+handlerText(notesOf(changed).Handler)); err != nil {
			return wire.Box{}, err
		}
	}
	return x.views.get(ctx, p.name)
}

// setSubscription is [Boxes.SetSubscription].
func (x *settings) setSubscription(ctx context.Context, topic, sub string, s wire.SubscriptionSettings) (wire.Box, error) {
	p, k, err := x.places.topic(topic)
	if err == nil {
		err = checkSub(p, &s)
	}
	if err == nil && s.To != nil {
		err = x.handlers.checkForward(k, p, *s.To)
	}
	if err == nil && !proto.ValidQueue(sub) {
		err = fmt.Errorf("%w: subscription %.64q: use 1-63 of a-z 0-9 . _ -", wire.ErrInvalid, sub)
	}
	if err != nil {
		return wire.Box{}, err
	}
	from, err := start(s.From)
	if err != nil {
		return wire.Box{}, err
	}
	x.rules.changing.Lock()
	defer x.rules.changing.Unlock()
	now, err := settingsOf(ctx, k, p, sub)
	switch {
	case err != nil:
		return wire.Box{}, err
	case now.subExists && s.From != "":
		return wire.Box{}, fmt.Errorf("%w: subscription %s exists: from is where a new one begins; move this one with sub seek", wire.ErrRefused, p.path(sub))
	}
	now.sub.Name = sub
	if now.sub, err = changeSub(now.sub, s); err != nil {
		return wire.Box{}, err
	}
	if err := k.SetSub(ctx, p.name, now.sub, from); err != nil {
		return wire.Box{}, failure(p, "", err)
	}
	if err := x.rules.read(ctx, k); err != nil {
		return wire.Box{}, failure(p, "", err)
	}
	what := p.path(sub)
	if s.To != nil {
		what += ": to " + cmp.Or(*s.To, "its readers")
	}
	if err := x.audit(ctx, "subscription.set", what); err != nil {
		return wire.Box{}, err
	}
	return x.views.get(ctx, p.name)
}

// pause is [Boxes.Pause].
func (x *settings) pause(ctx context.Context, name, sub string, on bool) (wire.Box, error) {
	p, k, err := x.places.subscribed(name, sub)
	if err != nil {
		return wire.Box{}, err
	}
	x.rules.changing.Lock()
	defer x.rules.changing.Unlock()
	now, err := settingsOf(ctx, k, p, sub)
	if err != nil {
		return wire.Box{}, err
	}
	if !now.subExists {
		return wire.Box{}, noBox(p, sub)
	}
	now.sub.Paused = on
	if err := k.SetSub(ctx, p.name, now.sub, box.Start{}); err != nil {
		return wire.Box{}, failure(p, sub, err)
	}
	action := p.kind + ".set"
	if sub != "" {
		action = "subscription.set"
	}
	if err := x.audit(ctx, action, p.path(sub)); err != nil {
		return wire.Box{}, err
	}
	return x.views.get(ctx, p.name)
}

// removeSubscription is [Boxes.RemoveSubscription].
func (x *settings) removeSubscription(ctx context.Context, topic, sub string) error {
	p, k, err := x.places.topic(topic)
	if err != nil {
		return err
	}
	x.rules.changing.Lock()
	defer x.rules.changing.Unlock()
	if err := k.RemoveSub(ctx, p.name, sub); err != nil {
		return failure(p, sub, err)
	}
	if err := x.rules.read(ctx, k); err != nil {
		return failure(p, sub, err)
	}
	return x.audit(ctx, "subscription.remove", p.path(sub))
}

// seek is [Boxes.Seek].
func (x *settings) seek(ctx context.Context, topic, sub string, to wire.SeekSubscription) (wire.Box, error) {
	p, k, err := x.places.topic(topic)
	if err != nil {
		return wire.Box{}, err
	}
	at, err := start(to.To)
	if err != nil {
		return wire.Box{}, err
	}
	if err := k.Seek(ctx, p.name, sub, at); err != nil {
		return wire.Box{}, failure(p, sub, err)
	}
	if err := x.audit(ctx, "subscription.seek", p.path(sub)+" to "+to.To); err != nil {
		return wire.Box{}, err
	}
	return x.views.get(ctx, p.name)
}

// remove is [Boxes.Remove].
func (x *settings) remove(ctx context.Context, name string) error {
	p, k, err := x.places.existing(name)
	if err != nil {
		return err
	}
	x.rules.changing.Lock()
	defer x.rules.changing.Unlock()
	ctx = context.WithoutCancel(ctx)
	if err := x.copies.checkComing(p, nil); err != nil {
		return err // its old home has it until it is served here
	}
	err = k.RemoveBox(ctx, p.name)
	if nameLeft := errors.Is(err, box.ErrNotFound) && p.generation > 0; err != nil && !nameLeft {
		return failure(p, "", err)
	}
	x.waits.forget(p.name)
	if err := x.rules.read(ctx, k); err != nil {
		return failure(p, "", err)
	}
	if p.title != proto.TitleQueue {
		if err := x.names.Remove(ctx, p.name); err != nil {
			return err
		}
	}
	return x.audit(ctx, p.kind+".remove", p.text)
}

// title makes this node the home of a name of the mesh, which it seizes if z says so.
func (x *settings) title(ctx context.Context, p place, z *wire.Seize) (place, error) {
	if p.title == proto.TitleQueue {
		return p, nil
	}
	if z != nil {
		if err := x.homes.seize(ctx, p, *z); err != nil {
			return p, err
		}
	}
	if err := x.names.Title(ctx, p.name, p.title); err != nil {
		return p, err
	}
	var err error
	p.home, p.generation, err = x.names.HomeOf(p.name)
	if err == nil && p.home != x.self {
		err = x.places.elsewhere(p)
	}
	return p, err
}

// current are the settings of a box and one of its subscriptions.
type current struct {
	box               box.BoxSettings
	sub               box.SubSettings
	exists, subExists bool
}

// settingsOf returns the settings of a box here, and those of one of its subscriptions.
func settingsOf(ctx context.Context, k *mail.Broker, p place, sub string) (c current, err error) {
	err = k.View(ctx, func(s *box.State) {
		id, ok := s.Find(p.name)
		if !ok {
			return
		}
		info, _ := s.Info(id)
		c.box, c.exists = info.Settings, true
		if subID, ok := s.FindSub(id, sub); ok {
			i, _ := s.SubInfo(id, subID)
			c.sub, c.subExists = i.Settings, true
		}
	})
	return c, failure(p, "", err)
}

// changed returns the settings of a box after a change.
func (x *settings) changed(k *mail.Broker, p place, to box.BoxSettings, s wire.BoxSettings) (box.BoxSettings, error) {
	n := notesOf(to)
	change(&n.Allow, s.Allow)
	change(&n.AllowRead, s.AllowRead)
	err := n.changeHandler(s.Handler)
	switch {
	case err != nil:
	case s.Handler != nil:
		err = x.handlers.checkHandler(k, p, n)
	case s.Allow != nil:
		err = n.check()
	}
	to.Notes = n.encode()
	changeNumber(&to.Mails, s.Mails)
	changeNumber(&to.Bytes, s.Bytes)
	changeNumber(&to.Age, s.Age)
	changeNumber(&to.Keep, s.Keep)
	changeNumber(&to.KeepMails, s.KeepMails)
	if to.Keep == 0 {
		if s.KeepMails != nil && *s.KeepMails > 0 {
			err = cmp.Or(err, invalid("keep_mails %d: %s keeps nothing that is done: set keep too", *s.KeepMails, p.text))
		}
		to.KeepMails = 0
	}
	if s.Lanes != nil {
		to.PerPeer = *s.Lanes == wire.LanesOrigin
	}
	change(&to.Interest, s.Interest)
	change(&to.Draining, s.Draining)
	change(&to.JSON, s.JSON)
	return to, err
}

func changeSub(to box.SubSettings, s wire.SubscriptionSettings) (box.SubSettings, error) {
	change(&to.Filter, s.Filter)
	change(&to.Paused, s.Paused)
	change(&to.To, s.To)
	if s.Mode != nil {
		to.Mode = modes[*s.Mode]
	}
	switch {
	case s.Strategy != nil:
		to.Strategy = strategies[*s.Strategy]
	case to.Mode != box.Shared:
		to.Strategy = box.Ordered
	}
	if to.Strategy != box.Ordered && to.Mode != box.Shared {
		return to, invalid("strategy %s: it is for the mode shared", *s.Strategy)
	}
	changeNumber(&to.Attempts, s.Attempts)
	changeNumber(&to.KeyBatch, s.KeyBatch)
	if s.OnDead != nil {
		to.Block = *s.OnDead == "block"
	}
	changeNumber(&to.Lease, s.Lease)
	changeNumber(&to.Dead, s.Dead)
	changeNumber(&to.DeadAge, s.DeadAge)
	return to, nil
}

// changeNumber is [change] for a number that has another type in documents.
func changeNumber[A, B ~int | ~int64 | ~uint8 | ~uint32 | ~uint64](to *A, v *B) {
	if v != nil {
		*to = A(*v)
	}
}

// change sets *to if v is given.
func change[T any](to *T, v *T) {
	if v != nil {
		*to = *v
	}
}

var modes = map[string]box.Mode{"": box.Shared, "shared": box.Shared, "exclusive": box.Exclusive, "failover": box.Failover}

var strategies = map[string]box.Strategy{
	"": box.Ordered, "ordered": box.Ordered, "round_robin": box.RoundRobin, "priority": box.Priority, "least_loaded": box.LeastLoaded,
}

const (
	maxBoxBytes = 1 << 50
	maxAge      = 10 * 365 * 24 * time.Hour
	maxAllow    = 64 // entries of an allow list
)

// outside reports whether a number is given and not from 0 to limit.
func outside[T int | int64 | wire.Duration](n *T, limit T) bool {
	return n != nil && (*n < 0 || *n > limit)
}

// unclean reports whether a time is given that has a part of a millisecond.
func unclean(d *wire.Duration) bool { return d != nil && time.Duration(*d)%time.Millisecond != 0 }

func checkBox(p place, s wire.BoxSettings) error {
	topic := p.kind == wire.BoxTopic
	if wire.IsReplyBox(p.name) {
		return invalid("%s: such a name is that of a box for replies, which a request makes", p.text)
	}
	for name, list := range map[string]*[]string{"allow": s.Allow, "allow_read": s.AllowRead} {
		if list == nil {
			continue
		}
		if len(*list) > maxAllow {
			return invalid("%s has %d entries, the limit is %d", name, len(*list), maxAllow)
		}
		if err := inbox.CheckAllow(*list); err != nil {
			return invalid("%s: %v", name, err)
		}
	}
	switch {
	case outside(s.Mails, box.MaxMails):
		return invalid("mails %d: must be from 0, the default, to %d", *s.Mails, box.MaxMails)
	case outside(s.Bytes, maxBoxBytes):
		return invalid("bytes %d: must be from 0, the default, to %d", *s.Bytes, int64(maxBoxBytes))
	case outside(s.Age, wire.Duration(maxAge)) || unclean(s.Age):
		return invalid("age %s: must be from 0, the default, to 10 years, in whole milliseconds", *s.Age)
	case !topic && (s.Age != nil && *s.Age != 0 || s.Interest != nil && *s.Interest):
		return invalid("age and interest are settings of topics: a mailbox keeps its mail until it has ended")
	case topic && (s.Keep != nil && *s.Keep != 0 || s.KeepMails != nil && *s.KeepMails != 0):
		return invalid("keep and keep_mails are settings of mailboxes: a topic keeps its mail for its age")
	case outside(s.Keep, wire.Duration(maxAge)) || unclean(s.Keep):
		return invalid("keep %s: must be from 0, which keeps nothing that is done, to 10 years, in whole milliseconds", *s.Keep)
	case outside(s.KeepMails, box.MaxMails):
		return invalid("keep_mails %d: must be from 0, the default, to %d", *s.KeepMails, box.MaxMails)
	case s.Lanes != nil && *s.Lanes != "" && *s.Lanes != wire.LanesOrigin && *s.Lanes != wire.LanesShared:
		return invalid("lanes %.20q: must be %s or %s", *s.Lanes, wire.LanesShared, wire.LanesOrigin)
	}
	return nil
}

func checkSub(p place, s *wire.SubscriptionSettings) error {
	if s == nil {
		return nil
	}
	mailbox := p.kind == wire.BoxMailbox
	switch {
	case mailbox && (s.Filter != nil && *s.Filter != "" || s.From != "" || s.To != nil && *s.To != ""):
		return invalid("filter, from and to are settings of the subscriptions of a topic")
	case s.Filter != nil && *s.Filter != "" && !proto.ValidFilter([]byte(*s.Filter)):
		return invalid("filter %.64q: use words with dots between them; * is one word, > at the end the rest", *s.Filter)
	case outside(s.Attempts, box.MaxAttempts):
		return invalid("attempts %d: must be from 0, the default, to %d", *s.Attempts, box.MaxAttempts)
	case outside(s.KeyBatch, box.MaxKeyBatch):
		return invalid("key_batch %d: must be from 0, the default, to %d", *s.KeyBatch, box.MaxKeyBatch)
	case outside(s.Lease, wire.Duration(box.MaxLease)) || unclean(s.Lease):
		return invalid("lease %s: must be from 0, the default, to 12 hours, in whole milliseconds", *s.Lease)
	case outside(s.Dead, box.MaxMails):
		return invalid("dead %d: must be from 0, the default, to %d", *s.Dead, box.MaxMails)
	case outside(s.DeadAge, wire.Duration(maxAge)) || unclean(s.DeadAge):
		return invalid("dead_age %s: must be from 0, the default, to 10 years, in whole milliseconds", *s.DeadAge)
	case s.OnDead != nil && *s.OnDead != "" && *s.OnDead != "skip" && *s.OnDead != "block":
		return invalid("on_dead %.20q: must be skip or block", *s.OnDead)
	}
	if s.Mode != nil {
		if _, ok := modes[*s.Mode]; !ok {
			return invalid("mode %.20q: must be shared, exclusive or failover", *s.Mode)
		}
	}
	if s.Strategy != nil {
		if _, ok := strategies[*s.Strategy]; !ok {
			return invalid("strategy %.20q: must be ordered, round_robin, priority or least_loaded", *s.Strategy)
		}
	}
	return nil
}

// start reads where a subscription begins.
func start(text string) (box.Start, error) {
	switch text {
	case "", "new":
		return box.Start{At: box.StartNew}, nil
	case "first":
		return box.Start{At: box.StartFirst}, nil
	case "last":
		return box.Start{At: box.StartLast}, nil
	}
	if seq, err := strconv.ParseUint(text, 10, 64); err == nil {
		return box.Start{At: box.StartSeq, Seq: seq}, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil && t.UnixMilli() >= 0 {
		return box.Start{At: box.StartTime, Ms: t.UnixMilli()}, nil
	}
	return box.Start{}, invalid("start %.64q: must be new, first, last, a sequence number, or a time such as 2026-11-22T14:00:00Z", text)
}
