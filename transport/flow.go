package transport

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/proto"
)

// A Flow is a streamed body that is on its way now, to a peer or from one.
type Flow struct {
	Task   proto.TaskID
	Result bool // it is the task's result, else its body
	Peer   proto.PeerID
	Out    bool          // to the peer
	Size   int64         // bytes of the sealed body
	Done   int64         // of these, durable at the receiver
	Rate   float64       // bytes a second since this try began, or in the last seconds; 0: not known yet
	For    time.Duration // since this try began
}

// Left is how long the rest takes at the present rate; 0: not known.
func (f Flow) Left() time.Duration {
	if f.Rate <= 0 || f.Done >= f.Size {
		return 0
	}
	return time.Duration(float64(f.Size-f.Done) / f.Rate * float64(time.Second)).Round(time.Second)
}

// rateOver is how long the rate of a flow looks back: twice that at most.
const rateOver = 5 * time.Second

// flowTold is how long a body is on its way between two events that tell of it.
const flowTold = 10 * time.Second

// A flow counts a body while it is on its way.
type flow struct {
	all   *flows
	about Flow
	done  atomic.Int64

	mu    sync.Mutex // guards the rate
	began time.Duration
	told  time.Duration
	marks [2]mark // done at the begin of the span before, and of this one
}

type mark struct {
	at   time.Duration
	done int64
}

// flows are the bodies on their way.
type flows struct {
	mono func() time.Duration
	met  *metrics
	tell func(Event)

	mu  sync.Mutex
	all map[*flow]bool
}

// begin counts a body that goes on at byte done.
func (fs *flows) begin(h proto.Header, p proto.PeerID, out bool, size, done int64) *flow {
	f := &flow{all: fs, about: Flow{Task: h.ID, Result: h.What == proto.WhatResult, Peer: p, Out: out, Size: size}, began: fs.mono()}
	f.told = f.began
	f.done.Store(done)
	f.marks = [2]mark{{f.began, done}, {f.began, done}}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.all == nil {
		fs.all = map[*flow]bool{}
	}
	fs.all[f] = true
	f.observe(EventBodyBegan)
	return f
}

// observe tells how far the body is.
func (f *flow) observe(kind EventKind) {
	v := f.now()
	f.all.tell(Event{Peer: v.Peer, Kind: kind, Flow: &v})
}

// to notes that so many bytes are durable.
func (f *flow) to(done int64) {
	before := f.done.Swap(done)
	direction := "in"
	if f.about.Out {
		direction = "out"
	}
	f.all.met.bodies.WithLabelValues(direction).Add(float64(max(done-before, 0)))
	if f.look(f.all.mono(), done) {
		f.observe(EventBodyMoves)
	}
}

// look notes where the body is now and reports whether it is time to tell.
func (f *flow) look(now time.Duration, done int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now-f.marks[1].at >= rateOver {
		f.marks[0], f.marks[1] = f.marks[1], mark{now, done}
	}
	if now-f.told < flowTold {
		return false
	}
	f.told = now
	return true
}

// end forgets a flow.
func (f *flow) end() {
	f.observe(EventBodyEnded)
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	delete(f.all.all, f)
}

// now is how far a flow is.
func (f *flow) now() Flow {
	v, at := f.about, f.all.mono()
	v.Done, v.For = f.done.Load(), at-f.began
	f.mu.Lock()
	from := f.marks[0]
	f.mu.Unlock()
	if took := at - from.at; took > 0 {
		v.Rate = float64(v.Done-from.done) / took.Seconds()
	}
	return v
}

// Flows returns the streamed bodies that are on their way.
func (t *Transport) Flows() []Flow {
	t.reach.flows.mu.Lock()
	defer t.reach.flows.mu.Unlock()
	out := make([]Flow, 0, len(t.reach.flows.all))
	for f := range t.reach.flows.all {
		out = append(out, f.now())
	}
	return out
}
