package node

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/wire"
)

// Kind and output type of the simulated handler.
const (
	simKind     = "work"
	simAttempts = 3
)

// A checker records what was promised about each task of a simulated mesh and what was
// done. It reports a broken promise as soon as it is broken.
type checker struct {
	t *testing.T

	mu      sync.Mutex
	entries map[proto.TaskID]*taskEntry
	keys    map[string]proto.TaskID // acknowledged, by home and idempotency key
	busy    map[string]int          // active runs by place and ordering key
	starts  int
}

// A taskEntry is one task. A start by a handler may be recorded before its submit has
// returned.
type taskEntry struct {
	acknowledged bool // Submit returned it
	home, target int
	sent         plan
	envelope     *proto.Message // to be replayed; nil for most
	runs         []*taskRun
	end          proto.TaskState // as seen at the home, once terminal
	digest       string          // of its result then
}

// A taskRun is one start of the handler.
type taskRun struct {
	place, life int
	attempt     uint32
	open        bool
	lost        bool // interrupted by a crash or a stop before its end was durable
	end         handler.Outcome
	body        string // hash of what the handler read
}

func newChecker(t *testing.T) *checker {
	return &checker{t: t, entries: map[proto.TaskID]*taskEntry{}, keys: map[string]proto.TaskID{}, busy: map[string]int{}}
}

// entry returns the entry of a task. The caller holds mu.
func (c *checker) entry(id proto.TaskID) *taskEntry {
	e := c.entries[id]
	if e == nil {
		e = new(taskEntry)
		c.entries[id] = e
	}
	return e
}

// submitted records the result of Submit. A task whose submit returned an error may be
// on disk or not; nothing was promised about it.
func (c *checker) submitted(home, target int, p plan, s wire.Submitted, err error) {
	id, perr := proto.ParseTaskID(s.ID)
	if perr != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entry(id)
	if !s.Known {
		e.home, e.target, e.sent = home, target, p
	}
	if err != nil {
		return
	}
	e.acknowledged = true
	if p.key == "" {
		return
	}
	name := fmt.Sprint(home, " ", p.key)
	if first, ok := c.keys[name]; ok && first != id {
		c.t.Errorf("I6: key %s is task %s and task %s", name, first, id)
	}
	c.keys[name] = id
}

// start checks a handler's start against everything that is known about the task.
func (c *checker) start(place, life int, r *handler.Run, body []byte) *taskRun {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.starts++
	e := c.entry(r.ID)
	spent := 0
	for _, old := range e.runs {
		switch {
		case old.lost:
		case old.open:
			c.t.Errorf("I6: %s runs twice at the same time", r.ID)
		case old.end == handler.Success:
			c.t.Errorf("I6: %s started after a success", r.ID)
		default:
			spent++
		}
	}
	if spent >= simAttempts {
		c.t.Errorf("I6: %s started after %d failures", r.ID, spent)
	}
	if e.end != 0 {
		c.t.Errorf("I3: %s started after it had ended %s", r.ID, e.end.Name())
	}
	if name := laneName(place, r); name != "" {
		if c.busy[name]++; c.busy[name] > 1 {
			c.t.Errorf("I10: %s overtakes the head of %s", r.ID, name)
		}
	}
	sum := sha256.Sum256(body)
	now := &taskRun{place: place, life: life, attempt: uint32(r.Attempt), open: true, body: hex.EncodeToString(sum[:])}
	e.runs = append(e.runs, now)
	return now
}

func (c *checker) finish(ctx context.Context, r *taskRun, in *handler.Run, end handler.Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.open, r.end = false, end
	if end == handler.Cancelled && errors.Is(context.Cause(ctx), handler.ErrStopping) {
		r.lost = true // its attempt does not count
	}
	if name := laneName(r.place, in); name != "" {
		c.busy[name]--
	}
}

func laneName(place int, r *handler.Run) string {
	if r.Content.GetOrderingKey() == "" {
		return ""
	}
	return fmt.Sprint(place, " ", r.Origin.Short(), " ", r.Content.GetOrderingKey())
}

// nodeClosed records the end of a node's life, which ends all its runs.
func (c *checker) nodeClosed(place, life int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		for _, r := range e.runs {
			if r.place == place && r.life == life && r.open {
				r.lost = true
			}
		}
	}
}

// nodeOpened checks the state that a node finds on its disk against its acknowledgements
// (I1, I8), and determines which ends of its last life are durable.
func (c *checker) nodeOpened(place int, n *Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, e := range c.entries {
		if e.acknowledged && e.home == place {
			c.checkKept(n, id, e)
		}
		if len(e.runs) == 0 {
			continue
		}
		if r := e.runs[len(e.runs)-1]; r.place == place && !r.lost && !durable(n, id) {
			r.lost = true
		}
	}
}

// durable reports whether the node knows the end of a task that it ran, or an earlier
// attempt.
func durable(n *Node, id proto.TaskID) bool {
	rec, err := n.inbox.Get(id)
	return err != nil || rec.GetState().Terminal() || rec.GetState() == proto.Retrying
}

// checkKept checks that a home still has a task and that an ended task stays as it ended
// (I1, I3). The caller holds mu.
func (c *checker) checkKept(n *Node, id proto.TaskID, e *taskEntry) {
	rec, err := n.outbox.Get(id)
	if err != nil {
		c.t.Errorf("I1: %s was acknowledged and is lost: %v", id, err)
		return
	}
	state, digest := rec.GetState(), hex.EncodeToString(rec.GetResultDigest())
	switch {
	case e.end == 0 && state.Terminal():
		e.end, e.digest = state, digest
	case e.end != 0 && (state != e.end || digest != e.digest):
		c.t.Errorf("I3: %s had ended %s with %s, now it is %s with %s", id, e.end.Name(), e.digest, state.Name(), digest)
	}
}

// countOpen checks all running homes and returns how many acknowledged tasks have not
// ended.
func (c *checker) countOpen(nodes []*simNode) (open int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, e := range c.entries {
		if !e.acknowledged {
			continue
		}
		if n := nodes[e.home].get(); n != nil {
			c.checkKept(n, id, e)
			c.checkCustody(n, nodes[e.target].get(), id)
		}
		if e.end == 0 {
			open++
		}
	}
	return open
}

// checkCustody checks that an owner has the task or its result on disk while the home
// relies on it (I8).
func (c *checker) checkCustody(home, owner *Node, id proto.TaskID) {
	accepted := func() bool {
		rec, err := home.outbox.Get(id)
		return err == nil && (rec.GetState() == proto.Accepted || rec.GetState() == proto.Running)
	}
	if owner == nil || !accepted() {
		return
	}
	if _, err := owner.inbox.Get(id); err == nil {
		return
	}
	result := append(id[:], byte(backlog.PartResult), 0)
	if _, err := owner.storage.Store.Get(store.PendingTasks, result); err != nil && accepted() && owner.Healthy() == nil {
		c.t.Errorf("I8: %s was acknowledged by its owner, which has neither the task nor its result: %v", id, err)
	}
}

// checkAll runs the final checks after all activity has ended.
func (c *checker) checkAll(nodes []*simNode) map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := map[string]int{}
	for id, e := range c.entries {
		if e.sent.body == nil && e.runs != nil {
			c.t.Errorf("I2: %s was started but never submitted", id)
		}
		if e.acknowledged {
			counts[e.end.Name()]++
			c.checkEnd(nodes[e.home].get(), id, e)
		}
	}
	for _, s := range nodes {
		c.checkListed(s)
	}
	return counts
}

// checkListed checks the task list of a home: every task was submitted and none is
// listed twice (I11).
func (c *checker) checkListed(s *simNode) {
	seen := map[proto.TaskID]bool{}
	for span := (backlog.Span{}); ; {
		page, next, err := s.get().outbox.List(outbox.Query{}, span, 1000)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, p := range page {
			if seen[p.ID] {
				c.t.Errorf("I11: %s is listed twice", p.ID)
			}
			seen[p.ID] = true
			if e := c.entries[p.ID]; e == nil || e.home != s.place {
				c.t.Errorf("I11: %s has a task %s that was never submitted", s.name, p.ID)
			}
		}
		if span.From = next; next.IsZero() {
			break
		}
	}
	for id, e := range c.entries {
		if e.acknowledged && e.home == s.place && !seen[id] {
			c.t.Errorf("I11: %s is not listed by its home", id)
		}
	}
}

// checkEnd checks the end of one task.
func (c *checker) checkEnd(n *Node, id proto.TaskID, e *taskEntry) {
	rec, err := n.outbox.Get(id)
	if err != nil {
		return // already reported
	}
	sum := sha256.Sum256(e.sent.body)
	successes := 0
	for _, r := range e.runs {
		if r.body != hex.EncodeToString(sum[:]) {
			c.t.Errorf("I9: the handler of %s read a body that differs from the sent one", id)
		}
		if r.end == handler.Success && !r.lost {
			successes++
		}
	}
	switch e.end {
	case 0:
		c.t.Errorf("I20: %s is still %s: %v %s", id, rec.GetState().Name(), rec.GetCause(), rec.GetReason())
	case proto.Success:
		if successes != 1 {
			c.t.Errorf("I6: %s is SUCCESS after %d successful runs", id, successes)
		}
		c.checkResult(n, id, e)
	default:
		if rec.GetCause() == 0 {
			c.t.Errorf("I11: %s ended %s without a cause", id, e.end.Name())
		}
		if successes > 0 && e.end != proto.Expired {
			c.t.Errorf("I6: %s ended %s although a run succeeded", id, e.end.Name())
		}
		if e.end == proto.Failed && len(rec.GetHistory()) == 0 {
			c.t.Errorf("I11: %s failed without a list of attempts", id)
		}
	}
}

// checkResult checks a result against the task.
func (c *checker) checkResult(n *Node, id proto.TaskID, e *taskEntry) {
	r, _, err := n.Views.Result(context.Background(), id.String())
	if err != nil {
		c.t.Errorf("result of %s: %v", id, err)
		return
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, e.sent.answer()) {
		c.t.Errorf("I9: the result of %s is %.60q, %v", id, got, err)
	}
}

// frame returns a captured frame of a task, and its sender and target.
func (c *checker) frame(id proto.TaskID) (m *proto.Message, home, target int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[id]
	return e.envelope, e.home, e.target
}

func (c *checker) startCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.starts
}

// replayable returns the tasks that have a captured frame and were started.
func (c *checker) replayable() (ids []proto.TaskID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, e := range c.entries {
		if e.envelope != nil && len(e.runs) > 0 {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, proto.TaskID.Compare)
	return ids
}

// planHandler is the handler of a simulated node: it follows the plan in the body.
type planHandler struct {
	checker     *checker
	place, life int
}

// Run implements [handler.Handler].
func (h planHandler) Run(ctx context.Context, r *handler.Run) *handler.Result {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return &handler.Result{Outcome: handler.Retry, Reason: err.Error()}
	}
	noted := h.checker.start(h.place, h.life, r, body)
	ran := h.work(ctx, r, planOf(body))
	h.checker.finish(ctx, noted, r, ran.Outcome)
	return ran
}

func (h planHandler) work(ctx context.Context, r *handler.Run, p plan) *handler.Result {
	t := time.NewTimer(p.takes)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return &handler.Result{Outcome: handler.Cancelled, Reason: context.Cause(ctx).Error()}
	}
	switch {
	case p.refuses:
		return &handler.Result{Outcome: handler.Fail, Code: 65, Reason: "the plan says no"}
	case r.Attempt <= p.fails:
		return &handler.Result{Outcome: handler.Retry, Code: 75, Reason: "the plan says later"}
	}
	return &handler.Result{Outcome: handler.Success, Output: p.answer()}
}
