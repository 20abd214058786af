package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
)

// call puts one question to the node of this machine, within --timeout.
func call[T any](cmd *cobra.Command, w *app, question func(context.Context, *client.Client) (T, error)) (T, error) {
	ctx, cancel := w.withTimeout(cmd.Context())
	defer cancel()
	c, err := w.node()
	if err != nil {
		var none T
		return none, err
	}
	return question(ctx, c)
}

// do is the same for what answers with nothing but that it was done.
func do(cmd *cobra.Command, w *app, order func(context.Context, *client.Client) error) error {
	_, err := call(cmd, w, func(ctx context.Context, c *client.Client) (struct{}, error) { return struct{}{}, order(ctx, c) })
	return err
}

// isPermanent reports whether the same question has no better answer a moment later.
func isPermanent(err error) bool {
	return isAny(err, client.ErrNodeDown, node.ErrNotFound, node.ErrInvalid, node.ErrDenied, node.ErrDraining, context.Canceled)
}

// collector collects what a command shows piece by piece: people and JSON lines get
// each at once, the formats of one document all of them at the end.
type collector[T any] struct {
	w     *app
	items []T
}

// add shows one piece. line is what people read.
func (a *collector[T]) add(item T, line func(*printer)) error {
	a.items = append(a.items, item)
	if !a.w.humanOutput() && a.w.flags.output != formatJSONL {
		return nil
	}
	return a.w.show(view{value: item, human: line})
}

// end shows the document, and passes on why the pieces ended. Without any piece
// an error stands alone.
func (a *collector[T]) end(because error) error {
	if a.w.humanOutput() || a.w.flags.output == formatJSONL || because != nil && len(a.items) == 0 {
		return because
	}
	items := a.items
	if items == nil {
		items = []T{}
	}
	return errors.Join(because, a.w.show(view{value: node.Page[T]{Items: items}}))
}
