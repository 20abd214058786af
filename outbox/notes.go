package outbox

import (
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// A note is what memory alone knows of the deliveries of an entry: it costs no
// write and may be lost. Entries that were never refused have none.
type note struct {
	tries  int           // failed deliveries since the last that went further
	code   proto.Code    // of the last refusal
	detail string        // of the last refusal, or of the break
	at     time.Time     // of the last failure
	broke  bool          // a link broke with it in flight: the target may have it
	since  time.Duration // boot time of that break
	denied bool          // after the last start the target said that it does not have it
	rewrap bool          // its slot must be made anew
	told   bool          // that a result is refused again and again
}

// sureAfter is how long after a break a refusal is the target's word on what the
// broken link may have carried: by then nothing of it is on its way any more.
const sureAfter = time.Minute

// notes keeps the notes.
type notes struct {
	mu  *sync.Mutex
	all map[backlog.Key]*note
}

func newNotes() notes { return notes{mu: new(sync.Mutex), all: map[backlog.Key]*note{}} }

// get returns a copy of the note, empty when there is none.
func (n *notes) get(k backlog.Key) note {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.all[k]; p != nil {
		return *p
	}
	return note{}
}

// update changes the note of k and returns it as it is then.
func (n *notes) update(k backlog.Key, f func(*note)) note {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.all[k]
	if p == nil {
		p = new(note)
		n.all[k] = p
	}
	f(p)
	return *p
}

// refusedAs returns the entries whose last refusal had one of these codes.
func (n *notes) refusedAs(codes []proto.Code) map[backlog.Key]bool {
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

func (n *notes) drop(k backlog.Key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.all) > 0 {
		delete(n.all, k)
	}
}

// maybeSent reports whether the target may have the pending task r. While a
// change of the task is being decided the answer cannot turn from no to yes.
func (o *Outbox) maybeSent(k backlog.Key, r *proto.Record) bool {
	if where, ok := o.backlog.Where(k); ok && where.Word == "taken" {
		return true
	}
	n := o.notes.get(k)
	if n.broke {
		return true
	}
	p, err := proto.PeerIDFrom(r.Peer)
	return err == nil && !n.denied && o.links.before(p, r.Seq())
}

// A fresh holds tasks that were just written for a peer that is linked, so that
// its lane need not read them from the store. It is bounded and may forget.
type fresh struct {
	mu    *sync.Mutex
	bytes int
	all   map[backlog.Key]*proto.Stored
}

// Bounds of a fresh.
const (
	freshEntries = 8192
	freshBytes   = 16 << 20
)

func newFresh() fresh { return fresh{mu: new(sync.Mutex), all: map[backlog.Key]*proto.Stored{}} }

func freshSize(st *proto.Stored) int { return len(st.GetEnvelope().GetBody()) + 1024 }

func (f *fresh) put(k backlog.Key, st *proto.Stored) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := freshSize(st); len(f.all) < freshEntries && f.bytes+n <= freshBytes {
		f.all[k] = st
		f.bytes += n
	}
}

// take returns the task and forgets it, nil when it is not there.
func (f *fresh) take(k backlog.Key) *proto.Stored {
	f.mu.Lock()
	defer f.mu.Unlock()
	st := f.all[k]
	if st != nil {
		delete(f.all, k)
		f.bytes -= freshSize(st)
	}
	return st
}

// forget drops what was kept for a peer that is not linked any more.
func (f *fresh) forget(p proto.PeerID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, st := range f.all {
		if string(st.Record.Peer) == string(p[:]) {
			delete(f.all, k)
			f.bytes -= freshSize(st)
		}
	}
}
