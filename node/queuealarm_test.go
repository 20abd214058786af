package node

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/wire"
)

// audited reports whether the audit of a node contains an action on a subject.
func (c *cluster) audited(s *simNode, action, subject string) bool {
	c.t.Helper()
	found, err := audit.Read(filepath.Join(s.dir, audit.DirName), audit.Query{Action: action})
	if err != nil {
		c.t.Fatal(err)
	}
	return slices.ContainsFunc(found, func(l audit.Record) bool { return strings.Contains(l.Detail["subject"], subject) })
}

// The alarm about a home that has been dead for so long that it was pruned tells since when, and
// not how long this node has run.
func TestAlarmOfAPrunedHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClusterOf(t, newSimMeshWith(t, 3, 1, lanLink, func(s *simNode, cfg *Config) {
			smallMesh(s, cfg)
			cfg.Mesh.PruneAge, cfg.Mesh.PruneInterval = 2*time.Minute, time.Minute
		}), time.Second)
		defer c.close()
		time.Sleep(20 * time.Minute)
		c.nodes[0].crash()
		time.Sleep(10 * time.Minute)
		q, err := c.nodes[1].node.Queues.Get(t.Context(), "build")
		if a := q.Alarm; err != nil || a == nil || a.State != "UNKNOWN" || a.Seconds < 9*60 || a.Seconds > 11*60 {
			t.Errorf("%+v, %v", q.Alarm, err)
		}
	})
}

// Each node reports what waits for the lost home of a queue and what runs for it; a
// seizure by an operator ends that. When the old home returns it hands over what it has
// and is a member like any other. Nothing counts twice (I3, I5).
func TestQueueHomeIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 40*time.Second)
		defer c.close()
		rules := []wire.MemberRule{{Node: "n2", Concurrency: 4}}
		if _, err := c.nodes[0].node.Queues.Set(t.Context(), "build", wire.QueueSettings{MemberRules: &rules}); err != nil {
			t.Fatal(err)
		}
		ids := c.submitMany(1, 10)
		time.Sleep(5 * time.Second)
		origin, owner := c.nodes[1].node, c.nodes[2].node
		if q, err := origin.Queues.Get(t.Context(), "build"); err != nil || q.Alarm != nil || len(origin.Views.Status(t.Context()).Warnings) > 0 {
			t.Fatalf("an alarm without a cause: %+v, %v, %v", q.Alarm, origin.Views.Status(t.Context()).Warnings, err)
		}
		c.nodes[0].crash()
		time.Sleep(time.Minute)

		q, err := origin.Queues.Get(t.Context(), "build")
		if a := q.Alarm; err != nil || a == nil || a.State != "DEAD" || a.Count != 10 || a.Held != 0 || a.Seconds <= 0 {
			t.Fatalf("at the origin: %+v, %v", q.Alarm, err)
		}
		if w := origin.Views.Status(t.Context()).Warnings; !slices.ContainsFunc(w, func(n wire.Note) bool { return n.Code == wire.NoteQueueHomeLost && n.Count == 10 && n.Peer == "n0" }) {
			t.Errorf("status warnings: %+v", w)
		}
		if _, err := origin.Submit(t.Context(), wire.Request{Target: "n0", Kind: "build"}); err != nil {
			t.Fatal(err)
		}
		waits := wire.Note{Code: wire.NoteTasksWait, NoteArgs: wire.NoteArgs{Peer: "n0", State: "DEAD", Count: 1}}
		for what, notes := range map[string][]wire.Note{"warnings": origin.Views.Status(t.Context()).Warnings, "risks": origin.Views.MeshSummary(t.Context()).Risks} {
			if !slices.ContainsFunc(notes, func(n wire.Note) bool { return reflect.DeepEqual(n, waits) }) {
				t.Errorf("%s are %+v, without %+v", what, notes, waits) // the same note in both places, so that it is recognized
			}
		}
		if q, err = owner.Queues.Get(t.Context(), "build"); err != nil || q.Alarm == nil || q.Alarm.Held != 4 {
			t.Errorf("at the owner: %+v, %v", q.Alarm, err)
		}
		for _, subject := range []string{ids[0], "queue:build"} {
			if b, err := origin.Explainer.Why(t.Context(), subject); err != nil || b.Cause.Code != wire.NoteQueueHomeLost || b.Cause.Peer != "n0" || b.Cause.State != "DEAD" || b.Cause.Seconds <= 0 || b.Cause.Queue != "build" {
				t.Errorf("why %s: %+v, %v", subject, b, err)
			}
		}
		if b, err := owner.Explainer.Why(t.Context(), ids[0]); err != nil || b.Cause.Code != wire.NoteQueueHomeLost || !b.Cause.Result {
			t.Errorf("why at the owner: %+v, %v", b, err)
		}
		if p := origin.Events.Read(t.Context(), 0, 1000, 0); !slices.ContainsFunc(p.Items, func(e wire.NodeEvent) bool { return e.Kind == "queue.home_gone" && e.Fields["queues"] == "build" }) {
			t.Error("no event reports that the home is lost")
		}

		if q, err = owner.Queues.Seize(t.Context(), "build", "n0"); err != nil || q.Generation != 2 || !q.Here || q.SeizedFrom != "n0" {
			t.Fatalf("seized it is %+v: %v", q, err)
		}
		if !c.audited(c.nodes[2], "queue.seize", "build from ") {
			t.Error("I19: the seizure is not in the audit")
		}
		c.waitHome(2, time.Minute)
		if q, err = origin.Queues.Get(t.Context(), "build"); err != nil || q.Alarm != nil {
			t.Errorf("the alarm stays: %+v, %v", q.Alarm, err)
		}
		c.waitAll(1, c.submitMany(1, 4), 2*time.Minute)

		c.nodes[0].start()
		c.serve(c.nodes[0], time.Second)
		c.waitHome(2, time.Minute)
		c.waitAll(1, ids, 10*time.Minute)
		if q, err = c.nodes[0].node.Queues.Get(t.Context(), "build"); err != nil || q.Here || q.Generation != 2 || q.Waiting+q.Owned+q.Going != 0 {
			t.Errorf("at the old home it is %+v: %v", q, err)
		}
		if _, err := owner.Queues.Set(t.Context(), "build", wire.QueueSettings{MemberRules: &[]wire.MemberRule{{Node: "n0"}}}); err != nil {
			t.Fatal(err)
		}
		if by := c.waitAll(1, c.submitMany(1, 5), 2*time.Minute); by[0] != 5 {
			t.Errorf("run by %v, want the old home as a member", by)
		}
	})
}

// unreached are the codes of a peer that nobody blocks and that cannot be reached.
var unreached = []wire.NoteCode{wire.NotePeerLost, wire.NoteRelaysAway, wire.NoteRelaysFail, wire.NoteDialing, wire.NoteNoAnswer}

// An unreachable home is also reported by a node that has received nothing about it
// since its own start, while no member reports it dead.
func TestQueueHomeIsUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Second)
		defer c.close()
		c.nodes[0].crash()
		c.nodes[1].crash()
		c.nodes[1].start()
		time.Sleep(10 * time.Second)
		b, err := c.nodes[1].node.Explainer.Why(t.Context(), "queue:build")
		if err != nil || !slices.Contains(unreached, b.Cause.Code) || b.Cause.Peer != "n0" || len(b.Steps) < 2 {
			t.Errorf("why queue:build: %+v, %v", b, err)
		}
	})
}

// TestLeasesAtRiskAreReported: the home of a queue reports, in the mesh summary and in
// its status, how many of its tasks a possibly lost member has, as long as that is so.
func TestLeasesAtRiskAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, 40*time.Second)
		defer c.close()
		home := c.nodes[0].node
		if s := home.Views.MeshSummary(t.Context()); len(s.Leases) != 0 {
			t.Errorf("without leases %+v are at risk", s.Leases)
		}
		ids := c.submitMany(1, 12)
		time.Sleep(3 * time.Second)
		c.nodes[2].crash()
		reported := false
		for range 600 {
			time.Sleep(100 * time.Millisecond)
			s := home.Views.MeshSummary(t.Context())
			if len(s.Leases) == 0 {
				continue
			}
			reported = true
			l := s.Leases[0]
			if l.Owner != "n2" || l.State != "SUSPECT" && l.State != "DEAD" || l.Tasks < 1 || len(s.Leases) != 1 {
				t.Errorf("at risk: %+v", s.Leases)
			}
			for what, notes := range map[string][]wire.Note{"risks": s.Risks, "warnings": home.Views.Status(t.Context()).Warnings} {
				if !slices.ContainsFunc(notes, func(n wire.Note) bool {
					return n.Code == wire.NoteLeaseRisk && n.Peer == "n2" && n.State == l.State && n.Count > 0
				}) {
					t.Errorf("the %s do not contain it: %+v", what, notes)
				}
			}
			break
		}
		if !reported {
			t.Error("the tasks of a killed member were not reported")
		}
		c.waitAll(1, ids, 10*time.Minute)
		if s := home.Views.MeshSummary(t.Context()); len(s.Leases) != 0 {
			t.Errorf("when all has ended %+v are at risk", s.Leases)
		}
	})
}

// The alarm about a home of which there is no row, because an operator forgot it, does not begin
// again each time that it is asked for.
func TestAlarmOfAForgottenHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, time.Second)
		defer c.close()
		time.Sleep(20 * time.Minute)
		c.nodes[0].crash()
		time.Sleep(10 * time.Minute)
		n := c.nodes[1].node
		if err := n.Pairing.Forget(t.Context(), "n0"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		q, err := n.Queues.Get(t.Context(), "build")
		if a := q.Alarm; err != nil || a == nil || a.State != "UNKNOWN" || a.Seconds < 60 {
			t.Errorf("%+v, %v", q.Alarm, err)
		}
	})
}
