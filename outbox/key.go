package outbox

import (
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/store/idempotency"
)

// The idempotency keys of the tasks created here are kept in the Dedup bucket
// under this prefix. A value is the id of the task and the digest of its
// request.
const prefixKey = 'K'

// openKeys opens the keys. A key is kept while its task is live, and for Keys.For
// after it was made.
func (o *Outbox) openKeys() (err error) {
	o.keys, err = idempotency.Open(o.store, idempotency.Config{
		Prefix: prefixKey, Limits: o.cfg.Keys, Needed: o.keyNeeded,
		Clock: o.cfg.Clock, Logger: o.cfg.Logger,
	})
	return err
}

// keyNeeded reports whether the task of a key is live.
func (o *Outbox) keyNeeded(val []byte) bool {
	if len(val) < len(proto.TaskID{}) {
		return false
	}
	_, live := o.backlog.Peek(backlog.TaskKey(proto.TaskID(val[:16])))
	return live
}

// keyName returns the fixed-length name under which a key is stored.
func keyName(key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return sum[:]
}

// reserveKey reserves space for the key of a new task and reports whether it did;
// a key that exists already needs none. At the limit it returns ErrFull:
// forgetting another key early would let its task run twice.
func (o *Outbox) reserveKey(r *proto.Record) (reserved bool, err error) {
	if len(r.RedriveOf) == 0 && o.keys.TryReserve("") {
		return true, nil
	}
	switch _, err := o.keys.Get(keyName(r.IdempotencyKey)); {
	case err == nil:
		return false, nil
	case !errors.Is(err, store.ErrNotFound):
		return false, fmt.Errorf("look up the idempotency key: %w", err)
	case o.keys.TryReserve(""):
		return true, nil
	}
	return false, fmt.Errorf("%w: the limit of %d idempotency keys is reached; submit without a key, wait until some expire, or raise the limit", ErrFull, o.keys.Max())
}

// settleKey ends a reservation: the key was made, or its space is released.
func (o *Outbox) settleKey(made bool) {
	if made {
		o.keys.Commit("")
	} else {
		o.keys.Release("")
	}
}

// bindKey binds an idempotency key to a task, and records the task that it is a
// redrive of, in the task's own batch; also adds to it, if not nil.
func (o *Outbox) bindKey(id proto.TaskID, r *proto.Record, also func(*store.Batch)) func(*store.Batch) {
	return func(b *store.Batch) {
		if also != nil {
			also(b)
		}
		if len(r.RedriveOf) > 0 {
			b.Put(store.Dedup, redriveKey(r.RedriveOf), id[:])
		}
		if r.IdempotencyKey == "" {
			return
		}
		name := keyName(r.IdempotencyKey)
		if len(r.RedriveOf) == 0 {
			o.keys.RequireAbsent(b, name)
		}
		o.keys.Put(b, name, append(id[:], r.RequestDigest...))
	}
}

// onConflict answers a job of which a requirement did not hold: that its key is
// unused, or one of the caller.
func (o *Outbox) onConflict(j *job, conflict error) (existing *proto.TaskID, err error) {
	r := j.draft.Record
	if len(r.RedriveOf) > 0 {
		return nil, conflict // it takes over the key of the first task
	}
	existing, err = o.keyOwner(r)
	if j.extra != nil && errors.Is(err, store.ErrNotFound) {
		return nil, conflict // no key, or a new one
	}
	return existing, err
}

// keyOwner returns the task that an idempotency key belongs to, or
// ErrKeyConflict.
func (o *Outbox) keyOwner(r *proto.Record) (*proto.TaskID, error) {
	val, err := o.keys.Get(keyName(r.IdempotencyKey))
	if err != nil {
		return nil, fmt.Errorf("look up the idempotency key: %w; send the request again", err)
	}
	if len(val) < len(proto.TaskID{}) {
		return nil, fmt.Errorf("look up the idempotency key: %w: %d bytes", store.ErrCorrupt, len(val))
	}
	id := proto.TaskID(val[:16])
	if string(val[16:]) != string(r.RequestDigest) {
		return nil, fmt.Errorf("%w (task %s)", ErrKeyConflict, id)
	}
	return &id, nil
}
