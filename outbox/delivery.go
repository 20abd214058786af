package outbox

import (
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// A deliveryState is what memory alone knows of the deliveries of an entry: it costs no
// write and may be lost. Entries that were never refused have none.
type deliveryState struct {
	tries       int           // failed deliveries since the last that went further
	code        proto.Code    // of the last refusal
	detail      string        // of the last refusal, or of the break
	at          time.Time     // of the last failure
	linkBroke   bool          // a link broke with it in flight: the target may have it
	brokeAt     time.Duration // boot time of that break
	notReceived bool          // after the last start the target said that it does not have it
	rewrap      bool          // its slot must be made anew
	reported    bool          // that a result is refused again and again
}

// inTransitMax is how long after a break a refusal is the target's word on what the
// broken link may have carried: by then nothing of it is on its way any more.
const inTransitMax = time.Minute

// deliveryStates keeps the notes.
type deliveryStates struct {
	mu  *sync.Mutex
	all map[backlog.Key]*deliveryState
}

func newDeliveryStates() deliveryStates {
	return deliveryStates{mu: new(sync.Mutex), all: map[backlog.Key]*deliveryState{}}
}

// get returns a copy of the note, empty when there is none.
func (n *deliveryStates) get(k backlog.Key) deliveryState {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.all[k]; p != nil {
		return *p
	}
	return deliveryState{}
}

// update changes the note of k and returns it as it is then.
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

// maybeSent reports whether the target may have the pending task r. While a
// change of the task is being decided the answer cannot turn from no to yes.
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

// A submitCache holds tasks that were just written for a peer that is linked, so that
// its lane need not read them from the store. It is bounded and may forget.
type submitCache struct {
	mu    *sync.Mutex
	bytes int
	all   map[backlog.Key]*proto.Stored
}

// Bounds of a fresh.
const (
	submitCacheEntries = 8192
	submitCacheBytes   = 16 << 20
)

func newSubmitCache() submitCache {
	return submitCache{mu: new(sync.Mutex), all: map[backlog.Key]*proto.Stored{}}
}

func cachedSize(st *proto.Stored) int { return len(st.GetEnvelope().GetBody()) + 1024 }

func (f *submitCache) put(k backlog.Key, st *proto.Stored) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := cachedSize(st); len(f.all) < submitCacheEntries && f.bytes+n <= submitCacheBytes {
		f.all[k] = st
		f.bytes += n
	}
}

// take returns the task and forgets it, nil when it is not there.
func (f *submitCache) take(k backlog.Key) *proto.Stored {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.all[k]
	if st != nil {
		delete(f.all, k)
		f.bytes -= cachedSize(st)
	}
	return st
}

// forget drops what was kept for a peer that is not linked any more.
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
