package store

import (
	"context"
	"fmt"
	"sync/atomic"
)

// A request is what one caller waits for: batches to be committed, or a function
// that the committer runs alone.
type request struct {
	batches []*Batch
	errs    []error // one per batch; already set: refused, do not write
	alone   func() error

	claimed atomic.Bool   // set by the committer, or by a caller that gave up
	done    chan struct{} // receives one token when errs is complete

	begun      bool // the committer has claimed it
	next, left int  // committer: next batch to process, batches without an answer

	one    [1]*Batch // what batches and errs point to in Apply
	oneErr [1]error
}

func newRequest() any { return &request{done: make(chan struct{}, 1)} }

// answer sets the outcome of batch i. The last one wakes the caller; after that
// the committer must not use the request.
func (r *request) answer(i int, err error) {
	r.errs[i] = err
	r.left--
	if r.left == 0 {
		r.done <- struct{}{}
	}
}

// do queues r and waits for it. It returns nil once r.errs holds the answers.
func (s *Store) do(ctx context.Context, r *request) error {
	if err := s.Err(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("store: not started: %w", err)
	}
	if !s.queue.Push(r) {
		return ErrClosed
	}
	return s.await(ctx, r)
}

// await waits for a queued request.
func (s *Store) await(ctx context.Context, r *request) error {
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
	}
	if r.claimed.CompareAndSwap(false, true) {
		return fmt.Errorf("store: withdrawn before it was written: %w", ctx.Err())
	}
	return fmt.Errorf("%w: %w", ErrUnknown, ctx.Err())
}

// release returns r to the pool.
func (s *Store) release(r *request) {
	r.batches, r.errs, r.alone = nil, nil, nil
	r.one, r.oneErr = [1]*Batch{}, [1]error{}
	r.begun, r.next, r.left = false, 0, 0
	r.claimed.Store(false)
	s.requests.Put(r)
}
