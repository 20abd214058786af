package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
)

// ask puts one question to the node of this machine, within --timeout.
func ask[T any](cmd *cobra.Command, w *world, question func(context.Context, *client.Client) (T, error)) (T, error) {
	ctx, cancel := w.within(cmd.Context())
	defer cancel()
	c, err := w.node()
	if err != nil {
		var none T
		return none, err
	}
	return question(ctx, c)
}

// tell is the same for what answers with nothing but that it was done.
func tell(cmd *cobra.Command, w *world, order func(context.Context, *client.Client) error) error {
	_, err := ask(cmd, w, func(ctx context.Context, c *client.Client) (struct{}, error) { return struct{}{}, order(ctx, c) })
	return err
}

// hopeless reports whether the same question has no better answer a moment later.
func hopeless(err error) bool {
	return isAny(err, client.ErrNodeDown, node.ErrNotFound, node.ErrInvalid, node.ErrDenied, node.ErrDraining, context.Canceled)
}

// asOne collects what a command shows piece by piece: people and JSON lines get
// each at once, the formats of one document all of them at the end.
type asOne[T any] struct {
	w     *world
	items []T
}

// add shows one piece. line is what people read.
func (a *asOne[T]) add(item T, line func(*paper)) error {
	a.items = append(a.items, item)
	if !a.w.forPeople() && a.w.flags.output != formatJSONL {
		return nil
	}
	return a.w.show(view{value: item, human: line})
}

// end shows the document, and passes on why the pieces ended. Without any piece
// an error stands alone.
func (a *asOne[T]) end(because error) error {
	if a.w.forPeople() || a.w.flags.output == formatJSONL || because != nil && len(a.items) == 0 {
		return because
	}
	items := a.items
	if items == nil {
		items = []T{}
	}
	return errors.Join(because, a.w.show(view{value: node.Page[T]{Items: items}}))
}
