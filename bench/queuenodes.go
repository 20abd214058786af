package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/balefire/balefire/wire"
)

// A queueNodes is the nodes of one mesh that run the tasks of a shared queue, each a
// separate process. The first is the queue's home and runs tasks too.
type queueNodes struct {
	nodes  []*proc
	opened []opening // the configuration of each, for restarts
	slow   time.Duration
}

const (
	queueName       = "work"
	queueNodesCount = 5
)

// newQueueNodes creates nodes in new folders below dir, and returns when the home of the
// queue can assign tasks to each.
func newQueueNodes(dir string, s pairConfig) (*queueNodes, error) {
	o := opening{Engine: s.engine, Memory: rateMemory, Slots: s.slots}
	if s.slots == 0 { // default settings
		o.Memory = 0
	}
	c, err := openQueueNodes(dir, slices.Repeat([]opening{o}, queueNodesCount), s.slow)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// openQueueNodes creates and runs nodes below dir and waits until they know each other.
func openQueueNodes(dir string, all []opening, slow time.Duration) (_ *queueNodes, err error) {
	c := &queueNodes{slow: slow}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.end())
		}
	}()
	able := 0
	for i, o := range all {
		o.Name = "n" + strconv.Itoa(i)
		o.Dir = filepath.Join(dir, o.Name)
		if i > 0 {
			inv, err := c.nodes[0].ask(request{Do: "invite"}, nil)
			if err != nil {
				return nil, err
			}
			o.Ticket = inv.Text
		}
		c.opened = append(c.opened, o)
		c.nodes = append(c.nodes, nil)
		if !o.Idle {
			able++
		}
		if err := c.start(i); err != nil {
			return nil, err
		}
	}
	if err := c.ready(able); err != nil {
		return nil, err
	}
	for _, p := range c.nodes[1:] {
		if _, err := p.ask(request{Do: "queue"}, nil); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// start runs a node, which joins or creates its mesh on its first start.
func (c *queueNodes) start(i int) (err error) {
	o := &c.opened[i]
	if c.nodes[i], err = spawn(o.Name, c.slow); err != nil {
		return err
	}
	_, err = c.nodes[i].ask(request{Do: "open", Open: *o}, nil)
	o.Ticket, o.Name = "", ""
	return err
}

// ready waits until the home can assign tasks to the given number of nodes.
func (c *queueNodes) ready(able int) error {
	_, err := c.nodes[0].ask(request{Do: "queue", Count: able}, nil)
	return err
}

func (c *queueNodes) end() error {
	var errs []error
	for _, p := range slices.Backward(c.nodes) { // the home last
		errs = append(errs, p.end())
	}
	return errors.Join(errs...)
}

// queueNodesTimeout is how long the members of a queue may take to know each other.
const queueNodesTimeout = time.Minute

// share handles a request about the queue.
func (c *child) share(o request) (a response, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), queueNodesTimeout)
	defer cancel()
	switch o.Do {
	case "queue":
		err = c.awaitMembers(ctx, o.Count)
	case "pause":
		_, err = c.node.Queues.Set(ctx, queueName, wire.QueueSettings{Paused: &o.On})
	case "handoff":
		_, err = c.node.Queues.HandOff(ctx, queueName, o.Path)
	case "count":
		var q wire.Queue
		q, err = c.node.Queues.Get(ctx, queueName)
		a.Count = q.Waiting + q.Owned + q.Going
	case "give":
		var s wire.Submitted
		s, err = c.node.Submit(ctx, wire.Request{Target: "queue:" + queueName, Kind: kind})
		a.Text = s.ID
	case "cancel":
		_, err = c.node.Cancel(ctx, o.Path, false, "")
	}
	return a, err
}

// awaitMembers waits until this node knows the queue. If members is positive, it creates
// the queue if necessary, and waits until it can assign tasks to that many nodes.
func (c *child) awaitMembers(ctx context.Context, members int) error {
	if _, err := c.node.Queues.Get(ctx, queueName); err != nil && members > 0 {
		if _, err := c.node.Queues.Set(ctx, queueName, wire.QueueSettings{Home: "here", Strategy: new("least_loaded")}); err != nil {
			return err
		}
	}
	for {
		q, err := c.node.Queues.Get(ctx, queueName)
		able := ableMembers(q)
		switch {
		case err == nil && able >= members:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("%d of %d members of the queue within %v: %w", able, members, queueNodesTimeout, cmp.Or(err, ctx.Err()))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func ableMembers(q wire.Queue) (n int) {
	for _, m := range q.Members {
		if m.Alive && !m.Draining && slices.Contains(m.Kinds, kind) {
			n++
		}
	}
	return n
}
