package node

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// resultEvents returns the causes and codes of the events of a kind of a task.
func (s *simNode) resultEvents(kind, task string) (why []string) {
	for _, e := range s.node.Events.Read(s.mesh.t.Context(), 0, 1000, 0).Items {
		if e.Kind == kind && e.Fields["task"] == task {
			why = append(why, strings.TrimSpace(e.Fields["cause"]+" "+e.Fields["code"]))
		}
	}
	return why
}

// wantResultEvent checks that a task has one event of a kind, with this cause and code.
func (s *simNode) wantResultEvent(kind, task, why string) {
	s.mesh.t.Helper()
	if got := s.resultEvents(kind, task); len(got) != 1 || got[0] != why {
		s.mesh.t.Errorf("events %s: %q, want one with %q", kind, got, why)
	}
}

// wantCause checks what why says of a task.
func (s *simNode) wantCause(task string, code wire.NoteCode, peer, refusal string) wire.Blocker {
	s.mesh.t.Helper()
	why, err := s.node.Explainer.Why(s.mesh.t.Context(), task)
	if err != nil || why.Cause.Code != code || why.Cause.Peer != peer || why.Cause.Refusal != refusal {
		s.mesh.t.Errorf("why: %+v, %v, want %s by %s", why, err, code, peer)
	}
	return why
}

// newResultMesh creates two nodes that can sleep.
func newResultMesh(t *testing.T) (w *simMesh, c *sleepClock) {
	c = new(sleepClock)
	return newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, func(s *simNode, cfg *Config) {
		quietMesh(s, cfg)
		cfg.Clock = clock.WithSuspend(clock.Runtime(), func() time.Duration { return time.Duration(c.slept.Load()) })
	}), c
}

// A result that its home refuses again and again, here of a node that lost the role work
// while it ran the task, is in the warnings of the status, in one event and in why. After
// two months it is a dead letter, which why does not call refused for good.
func TestStatusWarnsOfRefusedResults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, c := newResultMesh(t)
		defer w.close()
		home, target := w.nodes[0], w.nodes[1]
		id := home.mustSubmit(sleepTask(15*time.Minute, "n1"))
		time.Sleep(10 * time.Minute)
		w.renewCertificate(t, target, identity.RoleSend)
		time.Sleep(10 * time.Minute)
		all := target.node.Views.Status(t.Context()).Warnings
		at := slices.IndexFunc(all, func(n wire.Note) bool { return n.Code == wire.NoteResultsRefused })
		if at < 0 {
			t.Fatalf("the warnings are %+v", all)
		}
		if n := all[at]; n.Count != 1 || n.Peer != "n0" || n.Refusal != "DENIED" || n.Task != id || n.Detail == "" {
			t.Errorf("the warning is %+v", n)
		}
		target.wantResultEvent(wire.EventResultRefused, id, "refused DENIED")
		if why := target.wantCause(id, wire.NoteRefused, "n0", "DENIED"); !why.Cause.Result || !noted(why.Steps, wire.StepResultFor) {
			t.Errorf("why: %+v", why)
		}
		if got := target.resultEvents(wire.EventResultDead, id); got != nil {
			t.Errorf("events of a dead result: %q", got)
		}
		c.sleep(70 * day)
		time.Sleep(10 * time.Minute)
		target.wantResultEvent(wire.EventResultDead, id, "expired DENIED")
		target.wantCause(id, wire.NoteResultExpired, "n0", "DENIED")
	})
}

// A result that comes after its task was redriven does not count (I4), and one that comes after
// its task was purged is refused for good: both are in the events, the latter also in why.
func TestResultsThatComeTooLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, c := newResultMesh(t)
		defer w.close()
		home, target := w.nodes[0], w.nodes[1]
		purged := home.mustSubmit(sleepTask(time.Minute, "n1"))
		time.Sleep(5 * time.Second)
		between := time.Now()
		redriven := home.mustSubmit(sleepTask(time.Minute, "n1"))
		time.Sleep(5 * time.Second)
		w.Unplug(1)
		c.sleep(9 * day)
		for _, id := range []string{redriven, purged} {
			home.waitState(id, "EXPIRED", 10*time.Minute)
		}
		if _, err := home.node.Redriver.Retry(t.Context(), redriven); err != nil {
			t.Fatal(err)
		}
		if _, err := home.node.Purge(t.Context(), wire.Query{States: []string{"EXPIRED"}, Before: between}, false); err != nil {
			t.Fatal(err)
		}
		w.Plug(1)
		time.Sleep(5 * time.Minute)
		target.wantResultEvent(wire.EventResultStale, redriven, "refused STALE")
		target.wantResultEvent(wire.EventResultDead, purged, "refused STALE")
		target.wantCause(purged, wire.NoteResultRefused, "n0", "STALE")
	})
}

// The dead letters of one role are listed and purged without those of the other one, nor are
// finished tasks of this home removed with what it ran for others.
func TestDeadLettersByRole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, c := newResultMesh(t)
		defer w.close()
		home, target := w.nodes[0], w.nodes[1]
		refused := home.mustSubmit(sleepTask(time.Minute, "n1"))
		time.Sleep(10 * time.Second)
		w.Unplug(1)
		expired := target.mustSubmit(sleepTask(time.Second, "n0"))
		c.sleep(9 * day)
		home.waitState(refused, "EXPIRED", 10*time.Minute)
		target.waitState(expired, "EXPIRED", 10*time.Minute)
		if p, err := home.node.Purge(t.Context(), wire.Query{States: []string{"EXPIRED"}}, false); err != nil || p.Tasks != 1 {
			t.Fatalf("%+v, %v", p, err)
		}
		w.Plug(1)
		done := target.mustSubmit(sleepTask(time.Second, "n0"))
		time.Sleep(5 * time.Minute)
		listed := func(role string) (ids []string) {
			page, err := target.node.Views.DeadLetters(wire.Query{Role: role})
			for _, task := range page.Items {
				ids = append(ids, task.ID)
			}
			if err != nil {
				t.Error(err)
			}
			return ids
		}
		if own, others := listed(wire.RoleHome), listed(wire.RoleOwner); !slices.Equal(own, []string{expired}) || !slices.Equal(others, []string{refused}) {
			t.Errorf("of its own %v, want %s; of others %v, want %s", own, expired, others, refused)
		}
		all := []string{"SUCCESS", "EXPIRED", "DEAD_LETTER"}
		for _, q := range []struct {
			wire.Query
			want int
		}{
			{wire.Query{Role: wire.RoleOwner}, 0}, {wire.Query{Role: wire.RoleOwner, States: all}, 1}, {wire.Query{Role: wire.RoleHome}, 1}, {wire.Query{Role: wire.RoleHome, States: all}, 1},
		} {
			if p, err := target.node.Purge(t.Context(), q.Query, false); err != nil || p.Tasks != q.want {
				t.Errorf("purged by %+v: %+v, %v, want %d", q.Query, p, err, q.want)
			}
		}
		if _, err := target.node.Views.Task(t.Context(), done); !errors.Is(err, wire.ErrNotFound) {
			t.Errorf("the task that ended: %v", err)
		}
	})
}

// A result for a node that is no longer known here is an event: nobody gets it. The task is
// not run again when the node is back and asks for it (I6): the checker reports that.
func TestResultForAForgottenHomeIsAnEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _ := newResultMesh(t)
		defer w.close()
		home, target := w.nodes[0], w.nodes[1]
		id := home.mustSubmit(sleepTask(time.Minute, "n1"))
		time.Sleep(10 * time.Second)
		home.waitState(home.mustSubmit(sleepTask(time.Second, "n1")), "SUCCESS", 30*time.Second) // both are settled
		w.Unplug(1)
		time.Sleep(10 * time.Second)
		if err := target.node.book.Forget(t.Context(), mustKeys(t, home).Peer()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Minute)
		target.wantResultEvent(wire.EventResultDead, id, "result_unsealed")
		w.Plug(1)
		time.Sleep(2 * time.Hour) // and the hourly lookup
		if task, err := home.node.Views.Task(t.Context(), id); err != nil || task.State != "RUNNING" {
			t.Errorf("at its home the task is %s, %v", task.State, err)
		}
	})
}

// A peer is not forgotten while a task of it is here, or the result waits for it: it would send
// the task again.
func TestHomeIsNotForgottenWhileItsTaskIsHere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, _ := newResultMesh(t)
		defer w.close()
		home, target := w.nodes[0], w.nodes[1]
		id := home.mustSubmit(sleepTask(time.Minute, "n1"))
		time.Sleep(10 * time.Second)
		w.Unplug(1)
		refused := func(text string) {
			t.Helper()
			if err := target.node.Pairing.Forget(t.Context(), "n0"); !errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), text) {
				t.Errorf("forget: %v, want %q", err, text)
			}
		}
		refused("1 tasks of it are here")
		time.Sleep(time.Minute)
		refused("1 tasks and results wait for it")
		w.Plug(1)
		home.waitState(id, "SUCCESS", 10*time.Minute)
		time.Sleep(time.Minute)
		if err := target.node.Pairing.Forget(t.Context(), "n0"); err != nil {
			t.Error(err)
		}
	})
}
