package transport

import (
	"context"
	"sync"
)

// A taskGroup runs what libp2p's callbacks start, so that all of it belongs to Run and
// has finished when Run returns.
type taskGroup struct {
	mu     sync.Mutex
	queue  []func(context.Context)
	closed bool
	wake   chan struct{}
}

func newTaskGroup() *taskGroup { return &taskGroup{wake: make(chan struct{}, 1)} }

// start queues f for run and never blocks. It returns false after run has returned.
func (c *taskGroup) start(f func(context.Context)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.queue = append(c.queue, f)
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return true
}

// run runs queued functions until ctx is done. It then calls unblock, so that everything
// that waits for the network gives up, and waits for all functions.
func (c *taskGroup) run(ctx context.Context, unblock func()) {
	var wg sync.WaitGroup
	for ctx.Err() == nil {
		c.mu.Lock()
		work := c.queue
		c.queue = nil
		c.mu.Unlock()
		for _, f := range work {
			wg.Go(func() { f(ctx) })
		}
		select {
		case <-ctx.Done():
		case <-c.wake:
		}
	}
	c.mu.Lock()
	c.closed, c.queue = true, nil
	c.mu.Unlock()
	unblock()
	wg.Wait()
}
