package mailbox

import (
	"context"

	"github.com/balefire/balefire/wire"
)

// List returns the boxes of this node of one kind, or of both if it is "", by name.
func (b *Boxes) List(ctx context.Context, kind string) ([]wire.Box, error) {
	return b.views.list(ctx, kind)
}

// Next is [Reader.NextLetters] in the form of the API.
func (r *Reader) Next(ctx context.Context, n int) ([]wire.DeliveredMail, error) {
	given, _, err := r.NextLetters(ctx, n, nil, nil)
	if err != nil {
		return nil, err
	}
	return r.Delivered(given)
}
