package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

// call sends one request to the node of this machine, bounded by --timeout.
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

// do is like call for a request that returns no value.
func do(cmd *cobra.Command, w *app, order func(context.Context, *client.Client) error) error {
	_, err := call(cmd, w, func(ctx context.Context, c *client.Client) (struct{}, error) { return struct{}{}, order(ctx, c) })
	return err
}

// onNode returns what a command does if that is run alone, which uses the node.
func onNode(w *app, run func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return do(cmd, w, func(ctx context.Context, c *client.Client) error { return run(ctx, c, args) })
	}
}

// unanswered returns the error of a command that stores something, which may be stored if no answer
// came in time. The flag with a key makes it safe to repeat the command; list shows what is stored.
func (w *app) unanswered(err error, key, flag, list string) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	advice := fmt.Sprintf("before you repeat the command look whether it is there: %s. With %s from the first time on a command can be repeated", list, flag)
	if key != "" {
		advice = fmt.Sprintf("repeat the command with the same %s: it is stored once", flag)
	}
	return &codedError{exitError, &hintedError{fmt.Errorf("the node did not answer within %s: it is unknown whether it was stored", w.flags.timeout), advice}}
}

// isPermanent reports whether err would not change if the request were repeated a moment
// later.
func isPermanent(err error) bool {
	return isAny(err, client.ErrNodeDown, wire.ErrNotFound, wire.ErrInvalid, wire.ErrDenied, wire.ErrDraining, context.Canceled)
}

// A collector collects the items that a command prints one by one: the formats for people
// and JSON lines print each at once, the single-document formats print all of them at the
// end.
type collector[T any] struct {
	w     *app
	items []T
}

// add adds one item. line is its form for people.
func (a *collector[T]) add(item T, line func(*printer)) error {
	a.items = append(a.items, item)
	if !a.w.humanOutput() && a.w.flags.output != formatJSONL {
		return nil
	}
	return a.w.show(view{value: item, human: line})
}

// end prints the document and returns err, the reason why there are no more items. Without
// any item it returns err alone.
func (a *collector[T]) end(because error) error {
	if a.w.humanOutput() || a.w.flags.output == formatJSONL || because != nil && len(a.items) == 0 {
		return because
	}
	items := a.items
	if items == nil {
		items = []T{}
	}
	return errors.Join(because, a.w.show(view{value: wire.Page[T]{Items: items}}))
}
