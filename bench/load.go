package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// The state in which a task counts as done and is replaced by the next one.
const (
	stored   = ""         // Submit has returned: it is on disk at home
	accepted = "accepted" // its home has written that it is on disk at the target
	ended    = "ended"    // its result is on disk at home
)

// A load is a number of tasks to submit to one target.
type load struct {
	Target  string
	Until   string        // stored, accepted or ended
	Warm    int           // tasks before the measurement starts
	Tasks   int           // tasks that are measured
	Limit   time.Duration // limit of the measurement if there are fewer
	Flying  int           // tasks, or batches, in flight
	Size    int           // bytes of the random body
	Batch   int           // tasks in one call; 0: one, by Submit
	Profile string        // file of a CPU profile of the measurement; empty: none
}

// A report is the result of a load.
type report struct {
	Tasks    int
	Elapsed  time.Duration
	P50, P99 time.Duration // of one task, or one batch, until it is done; of a mail that is read, until it is delivered
	Usage    usage         // of this process during the measurement
	Bad      int           // tasks that ended in another state; mails that were refused or delivered twice
	Mail     mailReport    // of a load of mail
}

func (r report) rate() float64 { return float64(r.Tasks) / r.Elapsed.Seconds() }

// A meter measures a load of this child from start to finish.
type meter struct {
	c       *child
	profile string    // file of a CPU profile; empty: none
	begin   time.Time // of the measurement
	first   usage
	err     error // of the profile
}

// start starts the measurement and tells the parent.
func (m *meter) start() {
	_ = m.c.out.Encode(response{Event: "begin"})
	if m.profile != "" {
		m.err = m.c.record(m.profile)
	}
	m.begin, m.first = time.Now(), m.c.measure()
}

// report reports what was done since the start.
func (m *meter) report(tasks int) report {
	return report{Tasks: tasks, Elapsed: time.Since(m.begin), Usage: m.c.measure().since(m.first)}
}

func (m *meter) finish() error {
	if m.profile == "" || m.err != nil {
		return m.err
	}
	return m.c.record("")
}

// A run is a load in progress.
type run struct {
	load
	good  proto.TaskState // the state in which a task counts as done; 0: stored
	body  []byte
	given atomic.Int64 // tasks
	there atomic.Int64 // tasks
	bad   atomic.Int64
	over  atomic.Bool // the time limit has passed

	mu    sync.Mutex
	meter meter
	took  []time.Duration
}

// load submits l and reports the result. The measurement starts when the warm-up tasks are
// done, which is reported to the parent, and ends when all are.
func (c *child) load(l load) (response, error) {
	l.Batch = max(l.Batch, 1)
	r := &run{load: l, meter: meter{c: c, profile: l.Profile}, body: make([]byte, l.Size)}
	rand.Read(r.body)
	switch l.Until {
	case accepted:
		r.good = proto.Accepted
	case ended:
		r.good = proto.Success
	}
	c.watch.expect(r.good)
	defer c.watch.expect(0)
	if l.Warm == 0 {
		r.start()
	}
	errs := make([]error, l.Flying)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = r.work() })
	}
	wg.Wait()
	return response{Report: r.report()}, errors.Join(append(errs, r.meter.finish())...)
}

func (r *run) report() report {
	out := r.meter.report(int(r.there.Load()) - r.Warm)
	out.P50, out.P99, out.Bad = quantile(r.took, .5), quantile(r.took, .99), int(r.bad.Load())
	return out
}

func (r *run) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.meter.start()
	if r.Limit > 0 {
		time.AfterFunc(r.Limit, func() { r.over.Store(true) })
	}
}

// work submits tasks, one task or batch after the other, until all are submitted.
func (r *run) work() error {
	var took []time.Duration
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.took = append(r.took, took...)
	}()
	reqs := make([]wire.Request, r.Batch)
	for i := range reqs {
		reqs[i] = wire.Request{Target: r.Target, Kind: kind, Body: r.body}
	}
	n, warm := int64(r.Batch), int64(r.Warm)
	there := make(chan proto.TaskState, r.Batch)
	for !r.over.Load() && r.given.Add(n) <= warm+int64(r.Tasks) {
		begin := time.Now()
		if err := r.submit(reqs, there); err != nil {
			return err
		}
		switch at := r.there.Add(n); {
		case at > warm:
			took = append(took, time.Since(begin))
		case at > warm-n:
			r.start()
		}
	}
	return nil
}

// submit submits tasks and waits until all are done.
func (r *run) submit(reqs []wire.Request, there chan proto.TaskState) error {
	var done []wire.Submitted
	var errs []error
	if len(reqs) == 1 {
		one, err := r.meter.c.submitter.Submit(context.Background(), reqs[0])
		done, errs = []wire.Submitted{one}, []error{err}
	} else {
		done, errs = r.meter.c.submitter.SubmitMany(context.Background(), reqs)
	}
	if err := errors.Join(errs...); err != nil || r.good == 0 {
		return err
	}
	for i := range done {
		id, err := proto.ParseTaskID(done[i].ID)
		if err != nil {
			return fmt.Errorf("submitted as %q: %w", done[i].ID, err)
		}
		r.meter.c.watch.wait(id, there)
	}
	for range done {
		if <-there != r.good {
			r.bad.Add(1)
		}
	}
	return nil
}
