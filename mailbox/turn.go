package mailbox

import (
	"context"
	"sync"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// A turn is the place of a delivery among those of its key: a session handles them one after
// the other, in order, because that is how they can be acknowledged.
type turn struct {
	before  *turn         // nil: it is the first
	settled bool          // set before done is closed
	done    chan struct{} // closed when the delivery was handled
}

func (t *turn) over() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// take takes the turn behind the last one of the key.
func (w work) take(last map[string]*turn) {
	w.turn.done = make(chan struct{})
	l, err := proto.ParseLetter(w.Letter)
	if err != nil || len(l.Key) == 0 {
		return
	}
	w.turn.before = last[string(l.Key)]
	last[string(l.Key)] = w.turn
}

// await waits for the turn of the delivery and extends its lease meanwhile. It reports whether
// the delivery may be handled. If not, it was given back: the session ends, or what was
// before it was not settled.
func (w work) await(leasing context.Context) bool {
	before := w.turn.before
	if before == nil {
		return true
	}
	w.turn.before = nil // or each turn would keep all before it
	ctx, stop := context.WithCancelCause(leasing)
	var extending sync.WaitGroup
	extending.Go(func() { w.extend(ctx, stop) })
	select {
	case <-before.done:
	case <-leasing.Done():
	}
	stop(nil)
	extending.Wait()
	if leasing.Err() != nil || !before.settled {
		w.settle(leasing, mail.Settlement{Op: box.Return})
		return false
	}
	code := w.settle(leasing, mail.Settlement{Op: box.Extend, Delay: max(w.Lease, leastExtension)})
	return code != proto.CodeStale && code != proto.CodeNoHandler // otherwise it comes again
}
