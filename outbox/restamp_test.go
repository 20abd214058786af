package outbox

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// A skewedHome is a home whose clock, which is guarded, is ahead of the truth by off.
// Its target's clock is right.
type skewedHome struct {
	*home
	off   atomic.Int64
	guard *clock.Guard
	g     *target
	fits  bool        // the target takes what is signed with this clock
	fails atomic.Bool // nothing can be signed again
}

var errNoKey = errors.New("the sealing key is not known")

// newSkewedHome starts a home that believes the clock of its machine, which is wrong.
func newSkewedHome(t *testing.T, off time.Duration) *skewedHome {
	h := &skewedHome{}
	h.home = newHome(t, Config{Reseal: func(st *proto.Stored) (*Draft, func(), error) {
		if h.fails.Load() {
			return nil, nil, errNoKey
		}
		return resealing(st)
	}})
	h.off.Store(int64(off))
	h.fits = off < 0 && off > -day
	h.restart("m1")
	h.g = newTarget(t)
	h.g.respond = func(m *proto.Message) *proto.Refusal {
		var env proto.Envelope
		if err := proto.Decode(m.Payload, &env); err != nil {
			t.Error(err)
		}
		checks := identity.Checks{Mesh: identity.Mesh{ID: testMesh}, Self: h.g.peer(), Now: time.Now(), Verifier: h.g.verifier}
		env.Signature = m.Signature
		var no *identity.CheckError
		if _, err := checks.Check(&env); errors.As(err, &no) && (no.Code == proto.CodeExpired || no.Code == proto.CodeClock) {
			return &proto.Refusal{Code: no.Code, Detail: no.Error()}
		}
		return nil
	}
	return h
}

// restart starts the node on a machine whose start has this name.
func (h *skewedHome) restart(machine string) {
	var stamp []byte
	if h.guard != nil {
		stamp = h.guard.Stamp()
	}
	raw := clock.WithMachine(machine, clock.WithOffset(clock.Runtime(), func() time.Duration { return time.Duration(h.off.Load()) }))
	if h.guard == nil || machine != h.time.Machine() {
		h.guard = clock.NewGuard(raw)
		if stamp != nil {
			if err := h.guard.Resume(stamp); err != nil {
				h.t.Fatal(err)
			}
		}
		h.time = h.guard.Clock()
	}
	if h.Outbox == nil {
		h.start()
		return
	}
	h.crash()
}

// submitDelayed submits a task with the times of the home's clock; with a delay it is due then.
func (h *skewedHome) submitDelayed(delay time.Duration) proto.TaskID {
	h.t.Helper()
	now := h.time.Now()
	d := h.draft(h.g.peer(), day, func(r *proto.Record) {
		r.OrderingKey = proto.NewTaskID(now).String() // each its own
		if delay > 0 {
			r.DueMs = now.Add(delay).UnixMilli()
		}
	})
	d.Header.Created, d.Header.NotAfter = now.UnixMilli(), now.Add(day).UnixMilli()
	d.Header.SealedLen = 64
	d.Envelope.Header, d.Envelope.Body = d.Header.Append(nil), make([]byte, 64)
	d.Leaf = identity.EnvelopeLeaf(d.Envelope.Header, d.Envelope.Body, proto.WhatTask)
	if _, err := h.Submit(h.t.Context(), d, nil); err != nil {
		h.t.Fatal(err)
	}
	return d.Header.ID
}

// checkTimes fails the test unless the target took the task with the times that it was made
// at by a right clock.
func (h *skewedHome) checkTimes(id proto.TaskID, made time.Time) {
	h.t.Helper()
	synctest.Wait()
	h.want(id, accepted)
	h.g.mu.Lock()
	defer h.g.mu.Unlock()
	header := h.g.tasks[id]
	if off := time.UnixMilli(header.Created).Sub(made).Abs(); off > time.Second || header.NotAfter-header.Created != day.Milliseconds() {
		h.t.Errorf("signed as made at %v, for %v; it was made at %v", time.UnixMilli(header.Created), time.Duration(header.NotAfter-header.Created)*time.Millisecond, made)
	}
	r, _ := h.Get(id)
	if r.CreatedMs != header.Created || r.NotAfterMs != header.NotAfter || r.Seq() != header.Seq {
		h.t.Errorf("the record has other times than what was signed: %v, %v", r, header)
	}
}

// I14: what was made while the clock of the home was wrong, and never accepted, is
// signed again once the clock is right, with its id, its sequence and the rest of its
// life, and is due when it was to be; a crash at any time changes nothing of that.
func TestRestamp(t *testing.T) {
	wrong := []time.Duration{time.Hour, -time.Hour, 10 * day, -10 * day, -20 * 365 * day}
	tests := []struct {
		name string
		walk func(t *testing.T, h *skewedHome, set func())
	}{
		{"made when the clock was believed", func(t *testing.T, h *skewedHome, set func()) {
			made := time.Now()
			id := h.submitDelayed(0)
			set()
			defer h.connect(h.g)()
			time.Sleep(time.Minute)
			if !h.fits {
				h.checkTimes(id, made)
			} else if r, _ := h.Get(id); time.UnixMilli(r.CreatedMs).Sub(made).Abs() > time.Second {
				t.Errorf("it is said to be made at %v", time.UnixMilli(r.CreatedMs))
			}
		}},
		{"made under doubt", func(t *testing.T, h *skewedHome, set func()) {
			h.off.Store(0)
			time.Sleep(time.Second)
			made := time.Now()
			id, later := h.submitDelayed(0), h.submitDelayed(2*time.Hour)
			set()
			time.Sleep(2 * time.Second)
			defer h.connect(h.g)()
			time.Sleep(time.Minute)
			h.checkTimes(id, made)
			time.Sleep(2*time.Hour - time.Until(made).Abs() - 10*time.Second)
			h.want(later, pending)
			time.Sleep(20 * time.Second)
			h.checkTimes(later, made)
		}},
		{"offered under doubt, and refused", func(t *testing.T, h *skewedHome, set func()) {
			h.off.Store(0)
			defer h.connect(h.g)()
			made := time.Now()
			id := h.submitDelayed(0)
			time.Sleep(8 * time.Minute)
			if h.fits {
				return
			}
			set()
			time.Sleep(6 * time.Minute)
			h.checkTimes(id, made)
		}},
		{"maybe on its way", func(t *testing.T, h *skewedHome, set func()) {
			h.off.Store(0)
			h.g.setDropAcks(true)
			cut := h.connect(h.g)
			made := time.Now()
			id := h.submitDelayed(0)
			time.Sleep(time.Second)
			cut()
			if h.fits {
				return
			}
			set()
			h.g.setDropAcks(false)
			defer h.connect(h.g)()
			time.Sleep(10 * time.Minute)
			h.checkTimes(id, made)
		}},
		{"a restart in between", func(t *testing.T, h *skewedHome, set func()) {
			h.off.Store(0)
			time.Sleep(time.Second)
			made := time.Now()
			id := h.submitDelayed(0)
			h.restart("m1")
			set()
			time.Sleep(2 * time.Second)
			h.restart("m1")
			defer h.connect(h.g)()
			time.Sleep(time.Minute)
			h.checkTimes(id, made)
		}},
		{"a crash before it was signed again", func(t *testing.T, h *skewedHome, set func()) {
			h.off.Store(0)
			time.Sleep(time.Second)
			made := time.Now()
			id := h.submitDelayed(0)
			h.fails.Store(true)
			set()
			time.Sleep(2 * time.Second)
			if r, _ := h.Get(id); !r.StampMoved || time.UnixMilli(r.CreatedMs).Sub(made).Abs() > time.Second {
				t.Errorf("record %v", r)
			}
			h.restart("m1")
			h.fails.Store(false)
			defer h.connect(h.g)()
			time.Sleep(5 * time.Minute) // until nothing of the first start can be on its way
			if !h.fits {
				h.checkTimes(id, made)
			}
		}},
	}
	for _, tt := range tests {
		for _, off := range wrong {
			t.Run(tt.name+" "+off.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newSkewedHome(t, off)
					defer func() { h.stop() }()
					time.Sleep(time.Minute)
					tt.walk(t, h, func() {
						h.off.Store(0)
						h.guard.ObservePeer(time.Now())
					})
				})
			})
		}
	}
}

// I14: the age of a task that was created under doubt, before the machine restarted,
// is unknown. It does not expire: if its times cannot be right, its lifetime restarts.
func TestRestampAfterTheMachineWasOff(t *testing.T) {
	for _, off := range []time.Duration{time.Hour, -time.Hour, 10 * day, -20 * 365 * day} {
		t.Run(off.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newSkewedHome(t, off)
				defer func() { h.stop() }()
				time.Sleep(time.Minute)
				h.off.Store(0)
				time.Sleep(time.Second)
				id := h.submitDelayed(0)
				h.restart("m2")
				h.guard.ObservePeer(time.Now())
				time.Sleep(2 * time.Second)
				r, _ := h.Get(id)
				if now := time.Now(); r.State != pending || r.StampDoubted || now.UnixMilli() >= r.NotAfterMs || time.UnixMilli(r.CreatedMs).After(now) {
					t.Errorf("record %v", r)
				}
				defer h.connect(h.g)()
				time.Sleep(5 * time.Minute)
				h.want(id, accepted)
				time.Sleep(25 * time.Hour)
				h.want(id, accepted) // it may be running there
			})
		})
	}
}

// I3: what its target has with times that are too late may start until these are over.
func TestAcceptedTasksKeepTheirDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newSkewedHome(t, 10*day)
		defer func() { h.stop() }()
		h.g.respond = nil // its clock is as wrong
		defer h.connect(h.g)()
		made := time.Now()
		id := h.submitDelayed(0)
		time.Sleep(time.Minute)
		h.off.Store(0)
		h.guard.ObservePeer(time.Now())
		time.Sleep(time.Minute)
		r, _ := h.Get(id)
		if time.UnixMilli(r.CreatedMs).Sub(made).Abs() > time.Second || !time.UnixMilli(r.NotAfterMs).After(made.Add(11*day-time.Second)) {
			t.Errorf("record %v", r)
		}
		time.Sleep(11 * day)
		h.want(id, accepted)
		time.Sleep(26 * time.Hour)
		h.want(id, expired)
	})
}

// A cancellation is not lost when the times of its task are corrected.
func TestCancelUnderAWrongClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newSkewedHome(t, -20*365*day)
		defer func() { h.stop() }()
		h.g.respond = nil
		cut := h.connect(h.g)
		id := h.submitDelayed(0)
		time.Sleep(time.Minute)
		h.want(id, accepted)
		cut()
		if _, err := h.Cancel(t.Context(), id, false, "enough"); err != nil {
			t.Fatal(err)
		}
		h.off.Store(0)
		h.guard.ObservePeer(time.Now())
		time.Sleep(time.Minute)
		defer h.connect(h.g)()
		time.Sleep(time.Minute)
		h.g.mu.Lock()
		defer h.g.mu.Unlock()
		if len(h.g.cancels) != 1 {
			t.Errorf("%d cancellations arrived", len(h.g.cancels))
		}
	})
}

// While the times of all entries are looked at nothing ends by one.
func TestNothingExpiresDuringRestamp(t *testing.T) {
	s := newStamps(clock.Runtime(), proto.BootID{1})
	s.note(&proto.Record{StampMachine: s.machine, CreatedMs: 5000, StampBootMs: 2000})
	if !s.consistent(3000) || s.consistent(3000+10*60*1000) {
		t.Error("what is known is not what was noted")
	}
	s.begin()
	if s.consistent(3000) {
		t.Error("all is well before all were looked at")
	}
	s.end(false)
	if s.consistent(3000) {
		t.Error("all is well although not all were looked at")
	}
	s.begin()
	s.end(true)
	if !s.consistent(3000) {
		t.Error("it is not well although all were looked at")
	}
}
