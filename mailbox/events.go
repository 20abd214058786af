package mailbox

import (
	"context"
	"fmt"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/wire"
)

// AllBoxes stands for all boxes where the events of one can be asked for.
const AllBoxes = "*"

// maxEvents is how many events one page has at most.
const maxEvents = 1000

// Events returns what happened to the mail of a box after a number of this start, or to that
// of [AllBoxes]: at most limit events (default 256). If there are none it waits for the next
// one, at most for wait.
func (b *Boxes) Events(ctx context.Context, name string, after uint64, limit int, wait time.Duration) (wire.EventPage, error) {
	page := wire.EventPage{Boot: b.cfg.Boot, Items: []wire.NodeEvent{}, Next: after}
	want, err := b.selectEvents(name)
	if err != nil {
		return page, err
	}
	if limit <= 0 || limit > maxEvents {
		limit = 256
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	k, err := b.ledger.wait(ctx)
	if err != nil {
		page.Next = 0
		return page, nil
	}
	for {
		list, next, missed, more := k.Events(page.Next, limit, want)
		page.Next = next
		page.Missed += missed
		for i := range list {
			page.Items = append(page.Items, b.event(&list[i]))
		}
		if len(page.Items) > 0 || page.Missed > 0 {
			return page, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return page, nil
		}
	}
}

// Conflicts returns the newest settlements that did not count, because somebody else was given the
// mail since or it has ended, the oldest first.
func (b *Boxes) Conflicts() []wire.LeaseConflict {
	k := b.ledger.broker()
	if k == nil {
		return nil
	}
	var all []wire.LeaseConflict
	for _, e := range k.Stale() {
		c := wire.LeaseConflict{Time: e.At.UTC(), Box: place{text: b.places.text(e.Box)}.path(e.Sub), Epoch: e.Text, Cause: "the mail was settled late: it has ended, or another reader was given it"}
		if !e.ID.IsZero() {
			c.Mail = e.ID.String()
		}
		all = append(all, c)
	}
	return all
}

// selectEvents returns which events are those of a box, here or in its spool.
func (b *Boxes) selectEvents(name string) (func(*mail.Event) bool, error) {
	if name == AllBoxes {
		return func(*mail.Event) bool { return true }, nil
	}
	p, err := b.places.find(name)
	spool := box.SpoolPrefix + p.name
	return func(e *mail.Event) bool { return e.Box == p.name || e.Box == spool }, err
}

// event returns an event in the form of the API.
func (b *Boxes) event(e *mail.Event) wire.NodeEvent {
	p := place{name: e.Box, text: b.places.boxText(e.Box)}
	v := wire.NodeEvent{Seq: e.Number, Time: e.At.UTC(), Kind: "mail." + e.Kind, Fields: map[string]string{"box": p.text}}
	if !e.Peer.IsZero() {
		v.Peer = b.parts.Book.NameOf(e.Peer)
	}
	for name, value := range map[string]string{"subscription": e.Sub, "text": e.Text} {
		if value != "" {
			v.Fields[name] = value
		}
	}
	if e.Seq > 0 && !p.spool() {
		v.Fields["number"] = fmt.Sprint(e.Seq)
	}
	if !e.ID.IsZero() {
		v.Fields["mail"] = e.ID.String()
	}
	if e.Kind == mail.EventDelivered {
		v.Fields["attempt"] = fmt.Sprint(e.Attempt)
	}
	return v
}
