package submit

import (
	"fmt"
	"math"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// An option of a task is a field of wire.Request and of proto.TaskOptions, the lines about it
// in this file, and a flag of balefire-node send; the content and the records carry it.

// checkOptions refuses options that no task can have; queued: it is for a queue.
func checkOptions(r *wire.Request, queued bool) error {
	switch {
	case r.MaxResult < 0:
		return fmt.Errorf("%w: max_result %d: must not be negative", wire.ErrInvalid, r.MaxResult)
	case !proto.ValidLabels(r.Require) || !proto.ValidLabels(r.Prefer):
		return fmt.Errorf("%w: require and prefer may have at most 32 labels of 1 to 128 bytes", wire.ErrInvalid)
	case len(r.Require)+len(r.Prefer) > 0 && !queued:
		return fmt.Errorf("%w: require and prefer select a node of a queue: this task is for a named node", wire.ErrInvalid)
	}
	return nil
}

// options returns the options of a request; nil: it has none.
func options(r *wire.Request) *proto.TaskOptions {
	if r.Retries == 0 && r.MaxResult == 0 && len(r.Require)+len(r.Prefer) == 0 {
		return nil
	}
	return &proto.TaskOptions{MaxAttempts: r.Retries, MaxResult: uint64(r.MaxResult), Require: r.Require, Prefer: r.Prefer}
}

// SetOptions gives a request the options of a task.
func SetOptions(r *wire.Request, o *proto.TaskOptions) {
	r.Retries, r.MaxResult = o.GetMaxAttempts(), int64(min(o.GetMaxResult(), math.MaxInt64))
	r.Require, r.Prefer = o.GetRequire(), o.GetPrefer()
}
