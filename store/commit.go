package store

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
)

// A committer is the one goroutine that writes. It fills a group from the queue,
// commits it, answers the callers, and starts over.
type committer struct {
	s       *Store
	pending []*request // taken from the queue; those before at are finished
	at      int

	ops     []Op // the group
	bytes   int
	members []member // the batches of the group, in commit order
	overlay *overlay
}

// A member is one batch of a group. err, if any, concerns only this batch: it
// conflicts.
type member struct {
	req *request
	i   int
	err error
}

func (c *committer) run() {
	for c.fill() {
		woken := len(c.members)
		c.flush()
		if woken > 1 {
			runtime.Gosched() // lets the answered callers queue again: groups get 5 times larger
		}
	}
}

// fill builds a group from the queue and blocks only while the group is empty. It
// returns false once the queue is closed and empty.
func (c *committer) fill() bool {
	for {
		r := c.head(len(c.members) == 0)
		switch {
		case r == nil:
			return len(c.members) > 0
		case r.alone == nil:
			if !c.admit(r) {
				return true
			}
		case len(c.members) > 0:
			return true // it runs alone, after this group
		default:
			c.runAlone(r)
		}
		c.at++
	}
}

// head returns the next request, nil if there is none.
func (c *committer) head(wait bool) *request {
	for {
		if c.at == len(c.pending) {
			clear(c.pending)
			if c.at = 0; wait {
				c.pending = c.s.queue.Await(c.pending)
			} else {
				c.pending, _ = c.s.queue.Take(c.pending)
			}
			if len(c.pending) == 0 {
				return nil
			}
		}
		r := c.pending[c.at]
		if r.begun || r.claimed.CompareAndSwap(false, true) {
			r.begun = true
			return r
		}
		c.at++ // its caller has given up
	}
}

// admit adds the batches of r to the group until it is full, and reports
// whether all of them are in.
func (c *committer) admit(r *request) bool {
	for r.next < len(r.batches) {
		i := r.next
		if r.errs[i] != nil {
			r.next++
			continue
		}
		b := r.batches[i]
		if len(c.members) > 0 && (len(c.ops)+len(b.ops) > c.s.cfg.MaxGroupOps || c.bytes+b.bytes > c.s.cfg.MaxGroupBytes) {
			return false
		}
		r.next++
		err := c.check(b)
		c.members = append(c.members, member{r, i, err})
		if err == nil {
			c.ops = append(c.ops, b.ops...)
			c.bytes += b.bytes
		}
	}
	return true
}

// check evaluates the requirements of b against the disk and the group so far.
func (c *committer) check(b *Batch) (err error) {
	if len(b.requirements) == 0 {
		return nil
	}
	defer c.s.caught(&err)
	for i := range b.requirements {
		p := &b.requirements[i]
		expiry, val, ok, err := c.lookup(p.bucket, p.key)
		if err != nil {
			return err
		}
		if ok && expiry != 0 && due(expiry, c.s.expiry.now()) {
			ok = p.kind == requireExpired && expiry == p.expiry
		} else if p.kind == requireExpired {
			ok = false
		}
		if (p.kind == requireAbsent) == ok || p.kind == requireEqual && !bytes.Equal(val, p.want) {
			return ErrConflict
		}
	}
	return nil
}

// lookup reads one record as it will be once the group is on disk.
func (c *committer) lookup(bk Bucket, key []byte) (expiry int64, val []byte, ok bool, err error) {
	var raw []byte
	if op := c.overlay.find(c.ops, bk, key); op != nil {
		if op.Delete {
			return 0, nil, false, nil
		}
		raw = op.Val
	} else {
		c.s.meter.reads.Add(1)
		if raw, ok, err = c.s.engine.Get(bk, key); err != nil || !ok {
			return 0, nil, false, err
		}
	}
	expiry, val, err = unwrap(raw)
	return expiry, val, err == nil, err
}

// flush commits the group and answers its members. Conflicts too are reported
// only now: a batch may conflict with another one of the same group.
func (c *committer) flush() {
	failed := c.s.commit(c.ops, c.bytes)
	for _, m := range c.members {
		b, err := m.req.batches[m.i], m.err
		switch {
		case failed != nil:
			err = failed
		case err == nil:
			c.s.meter.batches.Add(1)
			if b.expires {
				c.s.meter.expiring.Add(1)
			}
			for _, f := range b.after {
				f()
			}
		default:
			c.s.meter.refused(err)
		}
		m.req.answer(m.i, err)
	}
	clear(c.ops)
	clear(c.members)
	c.ops, c.members, c.bytes = trim(c.ops), c.members[:0], 0
	c.overlay.reset()
}

// trim empties a group's operations and keeps their memory unless it is huge.
func trim(ops []Op) []Op {
	if cap(ops) > 16<<10 {
		return nil
	}
	return slices.Delete(ops, 0, len(ops))
}

func (c *committer) runAlone(r *request) {
	err := c.s.Err()
	if err == nil {
		err = c.s.guard(r.alone)
	}
	r.answer(0, err)
}

// commit writes one group. Its first error stops all writing.
func (s *Store) commit(ops []Op, size int) error {
	if err := s.Err(); err != nil || len(ops) == 0 {
		return err
	}
	begin := s.cfg.Clock.Mono()
	err := s.guard(func() error { return s.engine.Commit(ops) })
	if err != nil {
		return s.fail(err)
	}
	s.space.wrote(size)
	s.meter.committed(len(ops), size, s.cfg.Clock.Mono()-begin)
	return nil
}

// guard runs f and turns a panic into the failure of the store.
func (s *Store) guard(f func() error) (err error) {
	defer s.caught(&err)
	return f()
}

// caught turns a panic of the engine into the failure of the store. It must be
// deferred.
func (s *Store) caught(err *error) {
	if p := recover(); p != nil {
		*err = s.fail(fmt.Errorf("the engine panicked: %v", p))
	}
}
