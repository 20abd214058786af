package why

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/view"
	"github.com/balefire/balefire/wire"
)

var birth = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A scene is a node, named a, that knows one peer, b.
type scene struct {
	*Explainer
	peer    proto.PeerID
	unknown proto.PeerID // of a node that it does not know
	lease   *ownership.LeaseView
	alarm   *wire.Note // of each queue
	lost    bool       // each home of a queue
}

func newScene(t *testing.T) *scene {
	t.Helper()
	clk := clock.NewManual(birth).Clock()
	s, err := store.Open(mem.New(), store.Config{Clock: clk, SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	root, own, peer := identity.NewRoot(nil), identity.NewKeys(nil, birth), identity.NewKeys(nil, birth)
	issue := func(k *identity.Keys, name string) *proto.Signed {
		cert, err := root.IssueMember(identity.Member{Peer: k.Peer(), Name: name, Roles: identity.DefaultRoles()}, birth)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	book, err := addressbook.Open(s, root.Mesh(), own, issue(own, "a"), clk, transport.Multiaddrs{})
	if err != nil {
		t.Fatal(err)
	}
	if err := book.Learn(t.Context(), &proto.KnownPeer{Certificate: issue(peer, "b"), KeyRecord: peer.KeyRecord()}); err != nil {
		t.Fatal(err)
	}
	x := &scene{peer: peer.Peer(), unknown: identity.NewKeys(nil, birth).Peer()}
	x.Explainer = New(view.New(view.Parts{Book: book}, view.Config{Self: book.Self().Member, Clock: clk}), x, nil)
	return x
}

// Get implements [Queues].
func (x *scene) Get(context.Context, string) (wire.Queue, error) {
	if x.alarm == nil {
		return wire.Queue{}, wire.ErrNotFound
	}
	return wire.Queue{Alarm: x.alarm}, nil
}

// HomeGone implements [Queues].
func (x *scene) HomeGone(proto.PeerID) (string, time.Time, bool) { return "DEAD", birth, x.lost }

// LeaseOf implements [Queues].
func (x *scene) LeaseOf(context.Context, string) (v ownership.LeaseView, ok bool) {
	if x.lease == nil {
		return v, false
	}
	return *x.lease, true
}

func (x *scene) walk() *walk {
	return &walk{Explainer: x.Explainer, Blocker: wire.Blocker{Subject: "t1"}}
}

// want checks the cause, and the codes of the steps before it.
func (w *walk) want(t *testing.T, name string, cause wire.Note, steps string) {
	t.Helper()
	var codes []string
	for _, s := range w.Steps {
		codes = append(codes, string(s.Code))
	}
	if got := strings.Join(codes, " "); got != steps || !reflect.DeepEqual(w.Cause, cause) {
		t.Errorf("%s: %+v after %q, want %+v after %q", name, w.Cause, got, cause, steps)
	}
}

func about(code wire.NoteCode, a wire.NoteArgs) wire.Note { return wire.Note{Code: code, NoteArgs: a} }

// What a task that this node sent waits for is told by its state, its place and the last
// answer.
func TestTaskThatThisNodeSent(t *testing.T) {
	x := newScene(t)
	behind := proto.TaskID{7}
	self := x.Self.Peer
	refused := func(code proto.Code, cause wire.NoteCode) (outbox.Why, wire.Note) {
		return outbox.Why{State: proto.Pending, Peer: self, Place: "waiting", Kind: "k", Code: code, Detail: "so", At: birth.Add(-time.Minute)},
			about(cause, wire.NoteArgs{Peer: "a", Self: "a", Kind: "k", Refusal: code.Name(), Detail: "so"})
	}
	busy, busyCause := refused(proto.CodeBusy, wire.NoteRefused)
	clocks, clocksCause := refused(proto.CodeClock, wire.NoteRefusedClock)
	program, programCause := refused(proto.CodeCannotStart, wire.NoteRefusedProgram)
	for _, tt := range []struct {
		name   string
		o      outbox.Why
		target string
		want   wire.Note
		steps  string
	}{
		{"it has ended", outbox.Why{State: proto.Failed, Peer: x.peer, Reason: "why", Code: proto.CodeDenied}, "", about(wire.NoteEnded, wire.NoteArgs{State: "FAILED", Cause: proto.TaskCause(0).Name(), Detail: "why", Refusal: "DENIED"}), "record"},
		{"it was accepted", outbox.Why{State: proto.Accepted, Peer: x.peer}, "", about(wire.NoteRunsThere, wire.NoteArgs{Peer: "b", Task: "t1"}), "record accepted_there"},
		{"it runs", outbox.Why{State: proto.Running, Peer: x.peer}, "", about(wire.NoteStartedThere, wire.NoteArgs{Peer: "b", Task: "t1"}), "record accepted_there"},
		{"a task of a queue was accepted", outbox.Why{State: proto.Running, Peer: x.peer}, "queue:build", about(wire.NoteGrantsThere, wire.NoteArgs{Peer: "b", Queue: "build", Task: "t1"}), "record accepted_there"},
		{"its owner has forgotten it", outbox.Why{State: proto.Indeterminate, Peer: x.peer}, "", about(wire.NoteForgottenThere, wire.NoteArgs{Peer: "b", Task: "t1"}), "record"},
		{"its record was damaged", outbox.Why{State: proto.Indeterminate, Cause: proto.TaskRecordDamaged, Peer: x.peer}, "", about(wire.NoteRecordDamaged, wire.NoteArgs{Peer: "b", Task: "t1"}), "record"},
		{"another one with its key comes first", outbox.Why{State: proto.Pending, Peer: x.peer, Place: "behind", Behind: behind}, "", about(wire.NoteBehind, wire.NoteArgs{Task: behind.String()}), "record"},
		{"its peer is not known", outbox.Why{State: proto.Pending, Peer: x.unknown, Place: "ready"}, "", about(wire.NotePeerUnknown, wire.NoteArgs{Peer: x.unknown.Short()}), "record"},
		{"it is for this node and not due", outbox.Why{State: proto.Pending, Peer: self, Place: "waiting"}, "", about(wire.NoteNotDue, wire.NoteArgs{}), "record addressed_to_self"},
		{"it is for this node and sent", outbox.Why{State: proto.Pending, Peer: self, Place: "taken"}, "", about(wire.NoteUnacknowledged, wire.NoteArgs{Peer: "a"}), "record addressed_to_self"},
		{"it is for this node and next", outbox.Why{State: proto.Pending, Peer: self, Place: "ready"}, "", about(wire.NoteSentNext, wire.NoteArgs{}), "record addressed_to_self"},
		{"it was refused", busy, "", busyCause, "record addressed_to_self last_answer"},
		{"it was refused because of the clocks", clocks, "", clocksCause, "record addressed_to_self last_answer"},
		{"its program does not start", program, "", programCause, "record addressed_to_self last_answer"},
	} {
		w := x.walk()
		w.home(tt.o, tt.target)
		w.want(t, tt.name, tt.want, tt.steps)
	}
}

// A result that has ended says so; one on its way has the cause of a task, marked as that of a
// result, and the time of the next try.
func TestResultOfATaskThatRanHere(t *testing.T) {
	x := newScene(t)
	ended := wire.NoteArgs{Peer: "b", Task: "t1", Cause: proto.TaskCause(0).Name(), Detail: "why"}
	expired, refused := ended, ended
	expired.State, refused.State = "EXPIRED", "FAILED"
	onItsWay := about(wire.NoteNotDue, wire.NoteArgs{})
	onItsWay.Result = true
	for _, tt := range []struct {
		name  string
		o     outbox.Why
		want  wire.Note
		steps string
		next  time.Duration
	}{
		{"nobody took it in time", outbox.Why{State: proto.Expired, Peer: x.peer, Reason: "why"}, about(wire.NoteResultExpired, expired), "result_for", 0},
		{"its home refused it", outbox.Why{State: proto.Failed, Peer: x.peer, Reason: "why"}, about(wire.NoteResultRefused, refused), "result_for", 0},
		{"it is tried again", outbox.Why{State: proto.Pending, Peer: x.Self.Peer, Place: "waiting", Next: time.Minute}, onItsWay, "result_for addressed_to_self", time.Minute},
	} {
		w := x.walk()
		w.result(tt.o)
		w.want(t, tt.name, tt.want, tt.steps)
		if (w.Next != nil) != (tt.next > 0) || w.Next != nil && !w.Next.Equal(birth.Add(tt.next)) {
			t.Errorf("%s: the next try is at %v", tt.name, w.Next)
		}
	}
}

// What a leased task waits for, at its owner.
func TestTaskThatThisNodeLeased(t *testing.T) {
	x := newScene(t)
	alarm := about(wire.NoteQueueHomeLost, wire.NoteArgs{Queue: "build"})
	resultOf := alarm
	resultOf.Result = true
	received, started, finished := proto.LeaseReceived.Name(), proto.LeaseStarted.Name(), proto.LeaseFinished.Name()
	at := wire.NoteArgs{Peer: "b"}
	for _, tt := range []struct {
		name  string
		lease ownership.LeaseView
		alarm *wire.Note
		lost  bool
		want  wire.Note
	}{
		{"it runs", ownership.LeaseView{State: started}, &alarm, true, about(wire.NoteRuns, wire.NoteArgs{})},
		{"it runs although its lease has ended", ownership.LeaseView{State: started, Lapsed: true}, &alarm, true, about(wire.NoteRunsUnleased, at)},
		{"its body comes", ownership.LeaseView{State: received, Fetching: true}, &alarm, true, about(wire.NoteFetchingBody, at)},
		{"its home does not know it", ownership.LeaseView{State: finished, Unknown: true}, &alarm, true, about(wire.NoteHomeForgot, at)},
		{"the home of its queue is lost", ownership.LeaseView{State: finished}, &alarm, true, resultOf},
		{"its home is lost, which is no longer that of the queue", ownership.LeaseView{State: finished}, nil, true, about(wire.NoteResultHomeLost, at)},
		{"its result is sent", ownership.LeaseView{State: finished}, nil, false, about(wire.NoteResultSent, at)},
	} {
		w := x.walk()
		tt.lease.Queue, tt.lease.Peer = "build", x.peer
		x.lease, x.alarm, x.lost = &tt.lease, tt.alarm, tt.lost
		if !w.leased(t.Context(), "t1") || w.State != tt.lease.State {
			t.Errorf("%s: state %q", tt.name, w.State)
		}
		w.want(t, tt.name, tt.want, "queue_home lease_here")
	}
	if x.lease = nil; x.walk().leased(t.Context(), "t1") {
		t.Error("a lease that is not here is explained")
	}
}

// Mail whose home is not known has that as its cause; mail of this node keeps its own.
func TestMailToAHome(t *testing.T) {
	x := newScene(t)
	waits := about(wire.NoteMailSent, wire.NoteArgs{Box: "agent:ceo"})
	lost := about(wire.NoteBoxHomeLost, wire.NoteArgs{Box: "agent:ceo", Peer: x.unknown.Short(), State: "DEAD"})
	unknown := about(wire.NotePeerUnknown, wire.NoteArgs{Box: "agent:ceo", Peer: x.unknown.Short()})
	there := about(wire.NotePeerUnknown, wire.NoteArgs{Box: "agent:ceo@b", Peer: x.unknown.Short()})
	for _, tt := range []struct {
		name string
		box  string
		home proto.PeerID
		lost bool
		want wire.Note
	}{
		{"no home", "agent:ceo", proto.PeerID{}, true, waits},
		{"this node", "agent:ceo", x.Self.Peer, true, waits},
		{"an unknown node", "agent:ceo", x.unknown, false, unknown},
		{"a node that is lost", "agent:ceo", x.unknown, true, lost},
		{"a box of a node that is lost, which no other can have", "agent:ceo@b", x.unknown, true, there},
	} {
		w := x.walk()
		x.lost = tt.lost
		w.cause(wire.NoteMailSent, wire.NoteArgs{Box: tt.box})
		w.toHome(tt.home)
		w.want(t, tt.name, tt.want, "")
	}
}

// What cannot be the id of a task or a mail is not looked for.
func TestSubjectsThatAreNoIDs(t *testing.T) {
	for subject, want := range map[string]bool{
		"01a206d9-3c5e-7838-8157-1936a50bdeb9": true, "01a206": true, "01A206": true,
		"01a20": false, "": false, "laptop": false, "agent:ceo": false, "01a206d9-3c5e-7838-8157-1936a50bdeb90": false,
	} {
		if got := idRE.MatchString(subject); got != want {
			t.Errorf("%q: %v, want %v", subject, got, want)
		}
	}
}

// A kind is full when it runs as many tasks as it may; without a limit it never is.
func TestKindUse(t *testing.T) {
	specs := []inbox.Spec{{Kind: "two", Concurrency: 2}, {Kind: "free"}}
	running := func(kind string, n int) []inbox.KindStatus {
		return []inbox.KindStatus{{Kind: "other", Running: 9}, {Kind: kind, Running: n}}
	}
	for _, tt := range []struct {
		name, kind       string
		uses             []inbox.KindStatus
		registered, full bool
	}{
		{"no handler", "gone", running("gone", 3), false, false},
		{"nothing runs", "two", nil, true, false},
		{"below its limit", "two", running("two", 1), true, false},
		{"at its limit", "two", running("two", 2), true, true},
		{"no limit", "free", running("free", 100), true, false},
	} {
		if registered, full := kindUse(tt.kind, specs, tt.uses); registered != tt.registered || full != tt.full {
			t.Errorf("%s: %v, %v", tt.name, registered, full)
		}
	}
}

// The last refusal is how the newest grant ended, or why its owner could not start the task.
func TestLastRefusal(t *testing.T) {
	grants := func(ended ...string) (all []*proto.Granting) {
		for _, e := range ended {
			all = append(all, &proto.Granting{Ended: e})
		}
		return all
	}
	for _, tt := range []struct {
		name   string
		grants []*proto.Granting
		reason string
		want   string
	}{
		{"never granted", nil, "why", ""},
		{"the newest counts", grants("result", "BUSY"), "why", "BUSY"},
		{"it could not be started", grants("BUSY", proto.Unstarted.Name()), "no program", "no program"},
		{"nobody said why it could not", grants(proto.Unstarted.Name()), "", proto.Unstarted.Name()},
	} {
		if got := lastRefusal(tt.grants, tt.reason); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// A task of a queue whose home is this node waits for the first of these that is so.
func TestTaskOfAQueueHere(t *testing.T) {
	x := newScene(t)
	view := func(state proto.TaskState, change func(*ownership.TaskView)) ownership.TaskView {
		v := ownership.TaskView{
			LeaseView: ownership.LeaseView{State: state.Name(), Epoch: proto.Seq{Boot: 4, Counter: 1}},
			AtHead:    true, Active: true, Serving: 2, Available: 1,
		}
		change(&v)
		return v
	}
	refused := []*proto.Granting{{Ended: "BUSY"}}
	rec := &proto.Record{Queue: "build", Kind: "k", OrderingKey: "key", Options: &proto.TaskOptions{Require: []string{"gpu"}}}
	for _, tt := range []struct {
		name  string
		v     ownership.TaskView
		want  wire.Note
		steps string
		next  time.Duration
	}{
		{"it is leased", view(proto.Running, func(v *ownership.TaskView) {
			v.Leased, v.Peer, v.Left, v.Grants, v.Paused = true, x.peer, time.Minute, refused, true
		}), about(wire.NoteLeased, wire.NoteArgs{Peer: "b", Task: "t1"}), "queue_task granted", time.Minute},
		{"it may run without a lease", view(proto.Indeterminate, func(v *ownership.TaskView) { v.Peer, v.Grants = x.peer, refused }), about(wire.NoteMayRun, wire.NoteArgs{Peer: "b"}), "queue_task granted", 0},
		{"its queue is paused", view(proto.Pending, func(v *ownership.TaskView) { v.Paused, v.Blocked = true, true }), about(wire.NoteQueuePaused, wire.NoteArgs{Queue: "build"}), "queue_task", 0},
		{"its lane is blocked", view(proto.Pending, func(v *ownership.TaskView) { v.Blocked, v.AtHead = true, false }), about(wire.NoteLaneBlocked, wire.NoteArgs{Queue: "build", Key: "key"}), "queue_task", 0},
		{"another one of its lane comes first", view(proto.Pending, func(v *ownership.TaskView) { v.AtHead, v.Due = false, time.Minute }), about(wire.NoteLaneWaits, wire.NoteArgs{}), "queue_task", 0},
		{"it is tried again later", view(proto.Retrying, func(v *ownership.TaskView) { v.Due, v.Reason, v.Serving = time.Hour, "so", 0 }), about(wire.NoteRetryWaits, wire.NoteArgs{Detail: "so"}), "queue_task", time.Hour},
		{"no member has its kind", view(proto.Pending, func(v *ownership.TaskView) { v.Serving, v.Available = 0, 0 }), about(wire.NoteKindUnserved, wire.NoteArgs{Kind: "k", Names: []string{"gpu"}}), "queue_task", 0},
		{"members have refused it", view(proto.Pending, func(v *ownership.TaskView) { v.Available, v.BackedOff, v.Grants = 0, 1, refused }), about(wire.NoteMembersRefused, wire.NoteArgs{Count: 1, Of: 2, Detail: "BUSY"}), "queue_task granted", 0},
		{"all members are busy", view(proto.Pending, func(v *ownership.TaskView) { v.Available = 0 }), about(wire.NoteMembersBusy, wire.NoteArgs{Queue: "build", Of: 2}), "queue_task", 0},
		{"it is granted next", view(proto.Pending, func(*ownership.TaskView) {}), about(wire.NoteGrantedNext, wire.NoteArgs{}), "queue_task", 0},
	} {
		w := x.walk()
		w.grants(tt.v, rec)
		w.want(t, tt.name, tt.want, tt.steps)
		if (w.Next != nil) != (tt.next > 0) || w.Next != nil && !w.Next.Equal(birth.Add(tt.next)) {
			t.Errorf("%s: the next step is at %v", tt.name, w.Next)
		}
	}
}

// A task whose queue has moved is on its way, refused, or there; one that is not known, or has
// ended, is about to end here too.
func TestTaskOfAQueueThatMoved(t *testing.T) {
	x := newScene(t)
	for _, tt := range []struct {
		name  string
		past  ownership.FormerTask
		known bool
		want  wire.Note
		steps string
	}{
		{"it is not known", ownership.FormerTask{}, false, about(wire.NoteEnding, wire.NoteArgs{}), ""},
		{"it has ended", ownership.FormerTask{State: proto.Success, Peer: x.peer}, true, about(wire.NoteEnding, wire.NoteArgs{}), ""},
		{"the other home refuses it", ownership.FormerTask{Peer: x.peer, Going: true, Code: proto.CodeFull, Refused: "so"}, true, about(wire.NoteMoveRefused, wire.NoteArgs{Peer: "b", Refusal: "FULL", Detail: "so"}), "handoff"},
		{"the other home has it", ownership.FormerTask{Peer: x.peer}, true, about(wire.NoteMoved, wire.NoteArgs{Peer: "b", Task: "t1"}), ""},
	} {
		w := x.walk()
		w.former(tt.past, tt.known)
		w.want(t, tt.name, tt.want, tt.steps)
	}
}
