package outbox

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// A deliveryState is the part of an entry's delivery that is kept only in memory:
// it costs no write and may be lost. Entries that were never refused have none.
type deliveryState struct {
	tries       int           // failed deliveries since the last progress
	code        proto.Code    // of the last refusal
	detail      string        // of the last refusal, or of the broken link
	at          time.Time     // of the last failure
	linkBroke   bool          // a link broke with the entry in flight, or its answer was not recorded: the target may have it
	brokeAt     time.Duration // boot time when the link broke
	notReceived bool          // the target has reported since the last start that it does not have it
	rewrap      bool          // its key must be wrapped again
	reported    bool          // the repeated refusal of a result has been reported
}

// inTransitMax is how long after a broken link its messages may still arrive. A
// later refusal proves that the target does not have the task.
const inTransitMax = time.Minute

// deliveryStates holds the delivery states by key.
type deliveryStates struct {
	mu  *sync.Mutex
	all map[backlog.Key]*deliveryState
}

func newDeliveryStates() deliveryStates {
	return deliveryStates{mu: new(sync.Mutex), all: map[backlog.Key]*deliveryState{}}
}

// get returns a copy of the state, the zero value if there is none.
func (n *deliveryStates) get(k backlog.Key) deliveryState {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.all[k]; p != nil {
		return *p
	}
	return deliveryState{}
}

// update changes the state of k and returns a copy of it.
func (n *deliveryStates) update(k backlog.Key, f func(*deliveryState)) deliveryState {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.all[k]
	if p == nil {
		p = new(deliveryState)
		n.all[k] = p
	}
	f(p)
	return *p
}

// refusedAs returns the entries whose last refusal had one of these codes.
func (n *deliveryStates) refusedAs(codes []proto.Code) map[backlog.Key]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[backlog.Key]bool{}
	for k, p := range n.all {
		if p.code != proto.CodeOK && slices.Contains(codes, p.code) {
			out[k] = true
		}
	}
	return out
}

func (n *deliveryStates) drop(k backlog.Key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.all) > 0 {
		delete(n.all, k)
	}
}

// note changes the state of k and returns a copy of it. An entry that has ended meanwhile
// keeps none.
func (o *Outbox) note(k backlog.Key, f func(*deliveryState)) deliveryState {
	n := o.deliveries.update(k, f)
	if _, live := o.backlog.Peek(k); !live { // looked up last: whoever ends it drops its state after that
		o.deliveries.drop(k)
	}
	return n
}

// maybeSent reports whether the target may have the pending task r. While a
// change of the task is being decided the answer cannot turn from false to true.
func (o *Outbox) maybeSent(k backlog.Key, r *proto.Record) bool {
	if where, ok := o.backlog.Where(k); ok && where.Status == "taken" {
		return true
	}
	n := o.deliveries.get(k)
	if n.linkBroke {
		return true
	}
	p, err := proto.PeerIDFrom(r.Peer)
	return err == nil && !n.notReceived && o.links.maybeSentBefore(p, r.Seq())
}

// A submitCache holds tasks and results that were just written for a linked peer, so
// that its sender need not read them from the store. It is bounded and may drop
// entries.
type submitCache struct {
	mu    *sync.Mutex
	bytes int
	all   map[backlog.Key]*submitted
}

// A submitted is what was just written.
type submitted struct {
	*proto.Stored
	answered atomic.Bool // who submitted it was answered: the record is the sender's alone
}

// Bounds of a submitCache.
const (
	submitCacheEntries = 8192
	submitCacheBytes   = 16 << 20
)

func newSubmitCache() submitCache {
	return submitCache{mu: new(sync.Mutex), all: map[backlog.Key]*submitted{}}
}

func cachedSize(st *submitted) int { return len(st.GetEnvelope().GetBody()) + 1024 }

func (f *submitCache) put(k backlog.Key, st *submitted) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := cachedSize(st); len(f.all) < submitCacheEntries && f.bytes+n <= submitCacheBytes {
		f.all[k] = st
		f.bytes += n
	}
}

// take removes and returns an entry, nil if it is not cached.
func (f *submitCache) take(k backlog.Key) *submitted {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.all[k]
	if st != nil {
		delete(f.all, k)
		f.bytes -= cachedSize(st)
	}
	return st
}

// forget drops the tasks of a peer that is no longer linked.
func (f *submitCache) forget(p proto.PeerID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, st := range f.all {
		if string(st.Record.Peer) == string(p[:]) {
			delete(f.all, k)
			f.bytes -= cachedSize(st)
		}
	}
}
