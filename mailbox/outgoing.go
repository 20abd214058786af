package mailbox

import (
	"context"

	"github.com/balefire/balefire/wire"
)

// maxDeadIn is how many names of boxes with dead letters a status has.
const maxDeadIn = 10

// Status counts the mail that waits for other nodes, and the dead letters.
func (b *Boxes) Status(ctx context.Context) (s wire.MailStatus, err error) {
	ctx, cancel := context.WithTimeout(ctx, collectTime)
	defer cancel()
	out, err := b.views.outgoing(ctx)
	if err != nil {
		return s, err
	}
	for _, x := range out {
		s.Outgoing += x.Mails
	}
	for _, x := range b.allExchanges() {
		s.RemoteReaders += x.readers.count()
	}
	all, err := b.views.list(ctx, "")
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
