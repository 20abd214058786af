package transport

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/proto"
)

// A Flow is a streamed body in transit, to or from a peer.
type Flow struct {
	Task   proto.TaskID
	Result bool // the task's result; otherwise its body
	Peer   proto.PeerID
	Out    bool    // to the peer
	Size   int64   // bytes of the sealed body
	Done   int64   // bytes durable at the receiver
	Rate   float64 // bytes per second since this attempt began, or in the last seconds; 0: unknown
}

// Left returns the estimated time for the rest at the current rate; 0: unknown.
func (f Flow) Left() time.Duration {
	if f.Rate <= 0 || f.Done >= f.Size {
		return 0
	}
	return time.Duration(float64(f.Size-f.Done) / f.Rate * float64(time.Second)).Round(time.Second)
}

// rateWindow is the window of a flow's rate: at most twice this.
const rateWindow = 5 * time.Second

// flowReportEvery is the time between two progress events of a body.
const flowReportEvery = 10 * time.Second

// A flow tracks a body in transit.
type flow struct {
	flows *flows
	info  Flow
	done  atomic.Int64

	mu       sync.Mutex // guards the rate
	reported time.Duration
	samples  [2]flowSample // at the start of the previous window, and of this one
}

type flowSample struct {
	at   time.Duration
	done int64
}

// flows holds the bodies in transit.
type flows struct {
	mono func() time.Duration
	met  *metrics
	emit func(Event)

	mu  sync.Mutex
	all map[*flow]bool
}

// begin adds a body that resumes at byte done.
func (fs *flows) begin(h proto.Header, p proto.PeerID, out bool, size, done int64) *flow {
	now := fs.mono()
	f := &flow{flows: fs, info: Flow{Task: h.ID, Result: h.What == proto.WhatResult, Peer: p, Out: out, Size: size}, reported: now}
	f.done.Store(done)
	f.samples = [2]flowSample{{now, done}, {now, done}}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.all == nil {
		fs.all = map[*flow]bool{}
	}
	fs.all[f] = true
	f.emit(EventBodyBegan)
	return f
}

// emit emits an event with the current progress.
func (f *flow) emit(kind EventKind) {
	v := f.snapshot()
	f.flows.emit(Event{Peer: v.Peer, Kind: kind, Flow: &v})
}

// advance records that done bytes are durable.
func (f *flow) advance(done int64) {
	before := f.done.Swap(done)
	direction := "in"
	if f.info.Out {
		direction = "out"
	}
	f.flows.met.bodies.WithLabelValues(direction).Add(float64(max(done-before, 0)))
	if f.sample(f.flows.mono(), done) {
		f.emit(EventBodyMoves)
	}
}

// sample records the progress at now and reports whether an event is due.
func (f *flow) sample(now time.Duration, done int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now-f.samples[1].at >= rateWindow {
		f.samples[0], f.samples[1] = f.samples[1], flowSample{now, done}
	}
	if now-f.reported < flowReportEvery {
		return false
	}
	f.reported = now
	return true
}

// end removes a flow.
func (f *flow) end() {
	f.emit(EventBodyEnded)
	f.flows.mu.Lock()
	defer f.flows.mu.Unlock()
	delete(f.flows.all, f)
}

// snapshot returns the current progress.
func (f *flow) snapshot() Flow {
	v, at := f.info, f.flows.mono()
	v.Done = f.done.Load()
	f.mu.Lock()
	from := f.samples[0]
	f.mu.Unlock()
	if took := at - from.at; took > 0 {
		v.Rate = float64(v.Done-from.done) / took.Seconds()
	}
	return v
}

// Flows returns the streamed bodies in transit.
func (t *Transport) Flows() []Flow { return t.bodies.flows.list() }

func (fs *flows) list() []Flow {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	out := make([]Flow, 0, len(fs.all))
	for f := range fs.all {
		out = append(out, f.snapshot())
	}
	return out
}
