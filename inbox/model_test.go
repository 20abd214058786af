package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// A modelOp is one event in the life of an inbox: what happens, to which task, and how
// much.
type modelOp struct {
	What string
	Task int
	N    int
}

var modelOps = []string{
	"send", "send", "send", "send", "again", "again", "settle", "settle",
	"pass", "pass", "jump", "restart", "crash", "cancel", "leave", "come", "die", "die",
}

// points are the points where the process may die.
var points = []string{PointAccept, PointAccepted, PointStart, PointStarted, PointFinish, PointFinished, PointSettle, PointSettled}

func drawOps(t *rapid.T) []modelOp {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) modelOp {
		return modelOp{
			What: rapid.SampledFrom(modelOps).Draw(t, "what"),
			Task: rapid.IntRange(0, 30).Draw(t, "task"),
			N:    rapid.IntRange(0, 1000).Draw(t, "n"),
		}
	}), 1, 60).Draw(t, "ops")
}

// TestModel checks I1, I3, I6, I12 and I20 over random histories: copies at any time,
// marks, restarts, crashes, deaths at named points, cancels, a handler that comes and goes,
// and a wall clock that jumps by up to ten years.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ops := drawOps(rt)
		var wrong []string
		synctest.Test(t, func(t *testing.T) {
			m := newModel(t)
			defer m.fixture.close()
			for _, o := range ops {
				m.apply(o)
			}
			m.heal()
			wrong = m.wrong
		})
		for _, w := range wrong {
			rt.Error(w)
		}
	})
}

// A model is a fixture with the expected state.
type model struct {
	fixture *fixture
	wall    *clock.Manual
	spec    Spec
	tasks   []*sent
	dead    int // crashes
	stops   int // graceful
	wrong   []string

	mu         sync.Mutex
	fatalPoint string // the process dies when it passes this point
	died       bool
	starts     map[proto.TaskID]int
	wins       map[proto.TaskID]int
	kept       map[string]time.Time // by key: until when its success is kept
	latest     time.Time            // the highest wall time so far
}

// A sent is a task that was sent.
type sent struct {
	a        Arrival
	accepted bool // it was acknowledged
	over     bool // acknowledged or rejected: may be settled
	settled  bool
}

func newModel(t *testing.T) *model {
	m := &model{
		wall:   clock.NewManual(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		starts: map[proto.TaskID]int{}, wins: map[proto.TaskID]int{}, kept: map[string]time.Time{},
	}
	m.spec = Spec{Kind: "work", Handler: handlerFunc(m.handle), Allow: []string{"*"}, OnCrash: OnCrashRetry}
	m.fixture = newFixture(t, Config{Clock: m.wall.Clock(), MaxKept: 25, GracefulTimeout: time.Second, Fail: m.fail, OnChange: m.changed}, m.spec)
	m.fixture.run()
	return m
}

func (m *model) errorf(format string, a ...any) {
	m.wrong = append(m.wrong, fmt.Sprintf(format, a...))
}

// fail kills the process at the deadly point.
func (m *model) fail(point string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if point != m.fatalPoint {
		return nil
	}
	m.fatalPoint, m.died = "", true
	return errors.New("died at " + point)
}

// restart restarts after a death.
func (m *model) restart() {
	m.mu.Lock()
	died := m.died
	m.died = false
	m.mu.Unlock()
	if died {
		m.dead++
		m.fixture.crash()
		m.fixture.run()
		synctest.Wait()
	}
}

// handle does what the body of the task asks for.
func (m *model) handle(ctx context.Context, r *handler.Run) *handler.Result {
	id, key := r.ID, r.Content.IdempotencyKey
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wins[id] > 0 || m.latest.Before(m.kept[key]) {
		m.errorf("task %s was started after a success", id)
	}
	m.starts[id]++
	switch body := string(r.Content.Body); {
	case body == "slow":
		m.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(time.Minute):
		}
		m.mu.Lock()
		if ctx.Err() != nil {
			return &handler.Result{Outcome: handler.Cancelled}
		}
	case body == "fail":
		return &handler.Result{Outcome: handler.Fail}
	case body == "retry" && m.starts[id] < 2:
		return &handler.Result{Outcome: handler.Retry}
	}
	return &handler.Result{Outcome: handler.Success}
}

// changed counts the successes that are on disk. If the process dies before it writes one,
// that is a crash while running.
func (m *model) changed(id proto.TaskID, r *proto.Record) {
	if r.State != succeeded {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Cause == proto.TaskSucceededBefore {
		return // it got the outcome of another task
	}
	m.wins[id]++
	if key := r.IdempotencyKey; key != "" {
		if m.latest.Before(m.kept[key]) {
			m.errorf("key %q succeeded twice", key)
		}
		m.kept[key] = m.wall.Clock().Now().Add(7 * 24 * time.Hour)
	}
}

func (m *model) apply(o modelOp) {
	switch f := m.fixture; o.What {
	case "send":
		ttl := []time.Duration{time.Minute, time.Hour, 30 * 24 * time.Hour}[o.N%3]
		key := ""
		if o.Task%3 == 0 {
			key = fmt.Sprint("key ", o.Task%2)
		}
		body := []string{"ok", "slow", "fail", "retry"}[o.N%4]
		m.tasks = append(m.tasks, &sent{a: f.task(withTTL(ttl), withKey(key), withBody(body))})
		m.arrive(m.tasks[len(m.tasks)-1])
	case "again":
		if len(m.tasks) > 0 {
			m.arrive(m.tasks[o.Task%len(m.tasks)])
		}
	case "cancel":
		if len(m.tasks) > 0 {
			s := m.tasks[o.Task%len(m.tasks)]
			f.in.Cancel(context.Background(), home, s.a.Header.ID, o.N%2 == 0)
		}
	case "settle":
		m.settle()
	case "pass":
		m.pass(time.Duration(o.N*o.N) * 300 * time.Millisecond)
	case "jump":
		by := []time.Duration{-5 * time.Minute, time.Hour, -48 * time.Hour, 40 * 24 * time.Hour, 87600 * time.Hour, -87600 * time.Hour}[o.N%6]
		m.wall.SetWall(m.wall.Clock().Now().Add(by))
		m.check()
	case "restart":
		m.stops++
		f.restart()
		f.run()
	case "crash":
		m.dead++
		f.crash()
		f.run()
	case "die":
		m.mu.Lock()
		m.fatalPoint = points[o.N%len(points)]
		m.mu.Unlock()
	case "leave":
		f.in.Unregister("work")
	case "come":
		f.in.Register(m.spec)
	}
	synctest.Wait()
	m.restart()
}

// arrive delivers a task: for the first time, again, or as a replay.
func (m *model) arrive(s *sent) {
	v := m.fixture.in.Accept(context.Background(), []Arrival{s.a})[0]
	_, ends := v.Code.Ends()
	switch {
	case v.Accepted():
		s.accepted, s.over = true, true
	case ends || v.Code == proto.CodeDuplicate:
		if v.Code == proto.CodeDuplicate && !s.settled {
			m.errorf("task %s: DUPLICATE, but it was not settled", s.a.Header.ID)
		}
		s.over = true
	}
}

// settle states that tasks that are over will not be sent again.
func (m *model) settle() {
	var mark proto.Seq
	for _, s := range m.tasks {
		if !s.over {
			break
		}
		s.settled = true
		mark = s.a.Header.Seq
	}
	m.fixture.in.Settle(home, mark)
}

// check records the wall time: a time that has passed once has expired forever.
func (m *model) check() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := m.wall.Clock().Now(); now.After(m.latest) {
		m.latest = now
	}
}

// pass advances all clocks, in steps.
func (m *model) pass(d time.Duration) {
	for step := d / 8; d > 0; d -= step {
		step = max(min(step, d), time.Millisecond)
		m.wall.Advance(step)
		m.check()
		time.Sleep(step)
	}
	synctest.Wait()
}

// heal ends all faults, waits, and checks every task.
func (m *model) heal() {
	m.mu.Lock()
	m.fatalPoint = ""
	m.mu.Unlock()
	m.fixture.in.Register(m.spec)
	for range 20 {
		m.pass(10 * time.Minute)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, s := range m.tasks {
		id := s.a.Header.ID
		ends := len(m.fixture.results.of(id))
		switch {
		case s.accepted && ends != 1:
			m.errorf("task %d was acknowledged and ended %d times", i, ends)
		case ends > 1:
			m.errorf("task %d ended %d times", i, ends)
		}
		if m.wins[id] > 1 {
			m.errorf("task %d succeeded %d times", i, m.wins[id])
		}
		if m.starts[id] > 3+m.dead+m.stops {
			m.errorf("task %d was started %d times, with %d deaths and %d stops", i, m.starts[id], m.dead, m.stops)
		}
	}
	if st := m.fixture.in.Status(); st.Backlog.Live != 0 {
		m.errorf("%d tasks did not end", st.Backlog.Live)
	}
}
