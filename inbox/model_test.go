package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// An op is one event in the life of an inbox: what happens, to which task, and
// how much.
type op struct {
	What string
	Task int
	N    int
}

var happenings = []string{
	"send", "send", "send", "send", "again", "again", "settle", "settle",
	"pass", "pass", "jump", "restart", "crash", "cancel", "leave", "come", "die", "die",
}

// points are where the process may die.
var points = []string{PointAccept, PointAccepted, PointStart, PointStarted, PointFinish, PointFinished, PointSettle, PointSettled}

func drawOps(t *rapid.T) []op {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) op {
		return op{
			What: rapid.SampledFrom(happenings).Draw(t, "what"),
			Task: rapid.IntRange(0, 30).Draw(t, "task"),
			N:    rapid.IntRange(0, 1000).Draw(t, "n"),
		}
	}), 1, 60).Draw(t, "ops")
}

// TestModel holds I1, I3, I6, I12 and I20 over random histories: copies at any
// time, marks, restarts, crashes, deaths at named points, cancels, a handler that comes and goes, and a
// wall clock that jumps by up to ten years.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ops := drawOps(rt)
		var wrong []string
		synctest.Test(t, func(t *testing.T) {
			h := newHistory(t)
			defer h.rig.close()
			for _, o := range ops {
				h.happen(o)
			}
			h.heal()
			wrong = h.wrong
		})
		for _, w := range wrong {
			rt.Error(w)
		}
	})
}

// A history is a rig with what a model of it expects.
type history struct {
	rig   *rig
	wall  *clock.Manual
	spec  Spec
	tasks []*sent
	dead  int // crashes
	stops int // graceful
	wrong []string

	mu     sync.Mutex
	deadly string // the process dies when it passes this point
	died   bool
	starts map[proto.TaskID]int
	wins   map[proto.TaskID]int
	kept   map[string]time.Time // until when the success of a key is kept
	latest time.Time            // the highest wall time so far
}

// A sent is a task of the model's home.
type sent struct {
	a        Arrival
	accepted bool // it was acknowledged
	over     bool // acknowledged or refused for good: may be settled
	settled  bool
}

func newHistory(t *testing.T) *history {
	h := &history{
		wall:   clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		starts: map[proto.TaskID]int{}, wins: map[proto.TaskID]int{}, kept: map[string]time.Time{},
	}
	h.spec = Spec{Kind: "work", Handler: handlerFunc(h.handle), Allow: []string{"*"}, OnCrash: OnCrashRetry}
	h.rig = newRig(t, Config{Clock: h.wall.Clock(), MaxKept: 25, GracefulTimeout: time.Second, Fail: h.fail, OnChange: h.changed}, h.spec)
	h.rig.run()
	return h
}

func (h *history) wrongf(format string, a ...any) {
	h.wrong = append(h.wrong, fmt.Sprintf(format, a...))
}

// fail is where the process dies.
func (h *history) fail(point string, _ proto.TaskID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if point != h.deadly {
		return nil
	}
	h.deadly, h.died = "", true
	return errors.New("died at " + point)
}

// bury starts anew after a death.
func (h *history) bury() {
	h.mu.Lock()
	died := h.died
	h.died = false
	h.mu.Unlock()
	if died {
		h.dead++
		h.rig.crash()
		h.rig.run()
		synctest.Wait()
	}
}

// handle does what the body of the task says.
func (h *history) handle(ctx context.Context, r *Run) *Result {
	id, key := r.ID, r.Content.IdempotencyKey
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wins[id] > 0 || h.latest.Before(h.kept[key]) {
		h.wrongf("task %s was started after a success", id)
	}
	h.starts[id]++
	switch body := string(r.Content.Body); {
	case body == "slow":
		h.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
		}
		h.mu.Lock()
		if ctx.Err() != nil {
			return &Result{Outcome: Stopped}
		}
	case body == "fail":
		return &Result{Outcome: Fail}
	case body == "retry" && h.starts[id] < 2:
		return &Result{Outcome: Retry}
	}
	return &Result{Outcome: Success}
}

// changed counts the successes that are on disk: one that the process did not
// live to write is a death while running.
func (h *history) changed(id proto.TaskID, r *proto.Record) {
	if r.State != succeeded {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if strings.HasPrefix(r.Reason, "not run") {
		return // it took over the outcome of another
	}
	h.wins[id]++
	if key := r.IdempotencyKey; key != "" {
		if h.latest.Before(h.kept[key]) {
			h.wrongf("key %q succeeded twice", key)
		}
		h.kept[key] = h.wall.Clock().Now().Add(7 * 24 * time.Hour)
	}
}

func (h *history) happen(o op) {
	switch r := h.rig; o.What {
	case "send":
		ttl := []time.Duration{time.Minute, time.Hour, 30 * 24 * time.Hour}[o.N%3]
		key := ""
		if o.Task%3 == 0 {
			key = fmt.Sprint("key ", o.Task%2)
		}
		body := []string{"ok", "slow", "fail", "retry"}[o.N%4]
		h.tasks = append(h.tasks, &sent{a: r.task(withTTL(ttl), withKey(key), withBody(body))})
		h.arrive(h.tasks[len(h.tasks)-1])
	case "again":
		if len(h.tasks) > 0 {
			h.arrive(h.tasks[o.Task%len(h.tasks)])
		}
	case "cancel":
		if len(h.tasks) > 0 {
			s := h.tasks[o.Task%len(h.tasks)]
			r.in.Cancel(context.Background(), home, s.a.Header.ID, o.N%2 == 0)
		}
	case "settle":
		h.settle()
	case "pass":
		h.pass(time.Duration(o.N*o.N) * 300 * time.Millisecond)
	case "jump":
		by := []time.Duration{-5 * time.Minute, time.Hour, -48 * time.Hour, 40 * 24 * time.Hour, 87600 * time.Hour, -87600 * time.Hour}[o.N%6]
		h.wall.SetWall(h.wall.Clock().Now().Add(by))
		h.look()
	case "restart":
		h.stops++
		r.restart()
		r.run()
	case "crash":
		h.dead++
		r.crash()
		r.run()
	case "die":
		h.mu.Lock()
		h.deadly = points[o.N%len(points)]
		h.mu.Unlock()
	case "leave":
		r.in.Unregister("work")
	case "come":
		r.in.Register(h.spec)
	}
	synctest.Wait()
	h.bury()
}

// arrive hands a task over: for the first time, again, or as a replay.
func (h *history) arrive(s *sent) {
	v := h.rig.in.Accept(context.Background(), []Arrival{s.a})[0]
	_, ends := v.Code.Ends()
	switch {
	case v.Accepted():
		s.accepted, s.over = true, true
	case ends || v.Code == proto.CodeDuplicate:
		if v.Code == proto.CodeDuplicate && !s.settled {
			h.wrongf("task %s: DUPLICATE, but it was not settled", s.a.Header.ID)
		}
		s.over = true
	}
}

// settle says that what is over will not be sent again.
func (h *history) settle() {
	var mark proto.Seq
	for _, s := range h.tasks {
		if !s.over {
			break
		}
		s.settled = true
		mark = s.a.Header.Seq
	}
	h.rig.in.Settle(home, mark)
}

// look notes the wall time: what it has passed once has expired for ever.
func (h *history) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := h.wall.Clock().Now(); now.After(h.latest) {
		h.latest = now
	}
}

// pass lets time pass on all clocks, in steps.
func (h *history) pass(d time.Duration) {
	for step := d / 8; d > 0; d -= step {
		step = max(min(step, d), time.Millisecond)
		h.wall.Advance(step)
		h.look()
		time.Sleep(step)
	}
	synctest.Wait()
}

// heal ends all faults, waits, and looks at every task.
func (h *history) heal() {
	h.mu.Lock()
	h.deadly = ""
	h.mu.Unlock()
	h.rig.in.Register(h.spec)
	for range 20 {
		h.pass(10 * time.Minute)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, s := range h.tasks {
		id := s.a.Header.ID
		ends := len(h.rig.results.of(id))
		switch {
		case s.accepted && ends != 1:
			h.wrongf("task %d was acknowledged and ended %d times", i, ends)
		case ends > 1:
			h.wrongf("task %d ended %d times", i, ends)
		}
		if h.wins[id] > 1 {
			h.wrongf("task %d succeeded %d times", i, h.wins[id])
		}
		if h.starts[id] > 3+h.dead+h.stops {
			h.wrongf("task %d was started %d times, with %d deaths and %d stops", i, h.starts[id], h.dead, h.stops)
		}
	}
	if st := h.rig.in.Status(); st.Backlog.Live != 0 {
		h.wrongf("%d tasks did not end", st.Backlog.Live)
	}
}
