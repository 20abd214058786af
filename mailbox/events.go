package mailbox

import (
	"context"
	"fmt"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/wire"
)

// AllBoxes stands for all boxes where the events of one can be asked for.
const AllBoxes = "*"

// maxEvents is how many events one page has at most.
const maxEvents = 1000

// events returns what happened to mail, as its broker remembers it.
type events struct {
	boot   uint64 // of this start
	book   *addressbook.Book
	ledger *ledgerOpener
	places *places
}

// after is [Boxes.Events].
func (s *events) after(ctx context.Context, name string, after uint64, limit int, wait time.Duration) (wire.EventPage, error) {
	page := wire.EventPage{Boot: s.boot, Items: []wire.NodeEvent{}, Next: after}
	want, err := s.selected(name)
	if err != nil {
		return page, err
	}
	if limit <= 0 || limit > maxEvents {
		limit = 256
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	k, err := s.ledger.wait(ctx)
	if err != nil {
		page.Next = 0
		return page, nil
	}
	for {
		list, next, missed, more := k.Events(page.Next, limit, want)
		page.Next = next
		page.Missed += missed
		for i := range list {
			page.Items = append(page.Items, s.view(&list[i]))
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

// conflicts is [Boxes.Conflicts].
func (s *events) conflicts() []wire.LeaseConflict {
	k := s.ledger.broker()
	if k == nil {
		return nil
	}
	var all []wire.LeaseConflict
	for _, e := range k.Stale() {
		c := wire.LeaseConflict{Time: e.At.UTC(), Box: place{text: s.places.text(e.Box)}.path(e.Sub), Epoch: e.Text, Cause: wire.LeaseMailSettled}
		if !e.ID.IsZero() {
			c.Mail = e.ID.String()
		}
		all = append(all, c)
	}
	return all
}

// selected returns which events are those of a box, here or in its spool.
func (s *events) selected(name string) (func(*mail.Event) bool, error) {
	if name == AllBoxes {
		return func(*mail.Event) bool { return true }, nil
	}
	p, err := s.places.find(name)
	spool := box.SpoolPrefix + p.name
	return func(e *mail.Event) bool { return e.Box == p.name || e.Box == spool }, err
}

// view returns an event in the form of the API.
func (s *events) view(e *mail.Event) wire.NodeEvent {
	p := place{name: e.Box, text: s.places.boxText(e.Box)}
	v := wire.NodeEvent{Seq: e.Number, Time: e.At.UTC(), Kind: "mail." + e.Kind, Fields: map[string]string{"box": p.text}}
	if !e.Peer.IsZero() {
		v.Peer = s.book.NameOf(e.Peer)
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
