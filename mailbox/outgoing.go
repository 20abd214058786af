package mailbox

import (
	"context"

	"github.com/balefire/balefire/wire"
)

// Outgoing returns what waits here for boxes on other nodes.
func (b *Boxes) Outgoing(ctx context.Context) ([]wire.MailSpool, error) {
	all := []wire.MailSpool{}
	k := b.ledger.broker()
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
		v := wire.MailSpool{Box: b.places.text(s.Box), Home: b.parts.Book.NameOf(s.Home), HomeID: s.Home.String(), Mails: s.Waiting, Bytes: s.Bytes, Stops: []wire.MailStop{}}
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

// maxDeadIn is how many names of boxes with dead letters a status has.
const maxDeadIn = 10

// Status counts the mail that waits for other nodes, and the dead letters.
func (b *Boxes) Status(ctx context.Context) (s wire.MailStatus, err error) {
	ctx, cancel := context.WithTimeout(ctx, collectTime)
	defer cancel()
	out, err := b.Outgoing(ctx)
	if err != nil {
		return s, err
	}
	for _, x := range out {
		s.Outgoing += x.Mails
	}
	for _, x := range b.allExchanges() {
		s.RemoteReaders += x.readers.count()
	}
	all, err := b.List(ctx, "")
	for _, v := range all {
		for _, u := range v.Subscriptions {
			s.Dead += u.Dead
			if u.Dead > 0 && len(s.DeadIn) < maxDeadIn {
				s.DeadIn = append(s.DeadIn, place{text: v.Name}.path(u.Name))
			}
		}
	}
	return s, err
}
