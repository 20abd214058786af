package node

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// A restoreTest is the state of two nodes after snapshots of their stores were taken:
// each task left a mark when it was started.
type restoreTest struct {
	a, b         *testNode
	marks        string
	snaps        [2]string
	accepted     []string // accepted by b at the snapshot: one runs, two wait
	waiting      string   // not accepted yet at the snapshot
	after        string   // submitted after it
	boots        [2]uint64
	startsBefore string
}

// newRestoreTest runs all tasks, with snapshots taken in between.
func newRestoreTest(t *testing.T, engine string) *restoreTest {
	t.Helper()
	a, b := pair(t, func(_ string, c *Config) { c.Store.Engine, c.Net.Listen = engine, []string{freeAddr(t)} })
	dir := t.TempDir()
	p := &restoreTest{a: a, b: b, marks: filepath.Join(dir, "marks"), snaps: [2]string{filepath.Join(dir, "snap-a"), filepath.Join(dir, "snap-b")}}
	gate := filepath.Join(dir, "gate")
	mark := wire.HandlerSpec{
		Kind: "mark", Allow: []string{"peer:a"}, OnCrash: "retry", Concurrency: 1,
		Exec: []string{"/bin/sh", "-c", fmt.Sprintf("echo $BALEFIRE_TASK_ID >> %s; while [ ! -e %s ]; do sleep 0.02; done", p.marks, gate)},
	}
	add := func(kind string) {
		mark.Kind = kind
		if err := b.Handlers.Add(t.Context(), mark); err != nil {
			t.Fatal(err)
		}
	}
	add("mark")
	for _, mode := range []string{"", "at_most_once", ""} {
		p.accepted = append(p.accepted, a.submit(t, wire.Request{Target: "b", Kind: "mark", Mode: mode}))
	}
	p.waiting = a.submit(t, wire.Request{Target: "b", Kind: "later"})
	eventually(t, func() bool {
		for i, id := range append(p.accepted, p.waiting) {
			task, err := a.Views.Task(t.Context(), id)
			if err != nil || i < 3 && task.State == "PENDING" {
				return false
			}
		}
		why, err := a.Explainer.Why(t.Context(), p.waiting)
		return err == nil && why.Cause.Refusal == "NO_HANDLER" && p.starts(t) != ""
	}, func() string { return "the tasks have not arrived" })
	for i, n := range []*testNode{a, b} {
		if err := n.Snapshot(t.Context(), p.snaps[i], ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	add("later")
	p.after = a.submit(t, wire.Request{Target: "b", Kind: "mark"})
	for _, id := range append(p.accepted, p.waiting, p.after) {
		a.waitEnd(t, id, "SUCCESS")
	}
	p.boots = [2]uint64{a.outbox.Boot(), b.outbox.Boot()}
	a.halt()
	b.halt()
	p.startsBefore = p.starts(t)
	return p
}

func (rt *restoreTest) starts(t *testing.T) string {
	b, err := os.ReadFile(rt.marks)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}

func (rt *restoreTest) restore(t *testing.T, which int, cfg Config) {
	t.Helper()
	r, err := RestoreStore(cfg, rt.snaps[which], "")
	if err != nil || r.Records == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if _, err := os.Stat(filepath.Join(r.Aside, "ENGINE")); err != nil {
		t.Errorf("the old store was not moved aside: %v", err)
	}
}

// salvage loses what the log of a stopped node has after the snapshot, and replaces the store by
// the salvaged one.
func (rt *restoreTest) salvage(t *testing.T, which int, cfg Config) {
	t.Helper()
	snap, err := filepath.Glob(filepath.Join(rt.snaps[which], "*", "0.dat"))
	if err != nil || len(snap) != 1 {
		t.Fatal(snap, err)
	}
	kept, err := os.ReadFile(snap[0])
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(cfg.Dir, datadir.Store)
	log := filepath.Join(at, datadir.EngineNuts, filepath.Base(filepath.Dir(snap[0])), "0.dat")
	kept = bytes.TrimRight(kept, "\x00")
	if b, err := os.ReadFile(log); err != nil || !bytes.HasPrefix(b, kept) || os.Truncate(log, int64(len(kept))) != nil || os.Truncate(log, int64(len(b))) != nil {
		t.Fatal("the log does not begin with the snapshot", err)
	}
	dst := filepath.Join(t.TempDir(), "new")
	if r, err := SalvageStore(cfg, dst); err != nil || r.Clean {
		t.Fatalf("%+v, %v", r, err)
	}
	if err := errors.Join(os.Rename(at, at+".damaged"), os.Rename(filepath.Join(dst, datadir.Store), at)); err != nil {
		t.Fatal(err)
	}
}

// restartAndCheck starts both nodes and finally checks that nothing ran twice, that boot
// numbers increased and that new work is done.
func (rt *restoreTest) restartAndCheck(t *testing.T, settled func(a, b *testNode) bool) {
	t.Helper()
	a, b := start(t, rt.a.cfg), start(t, rt.b.cfg)
	eventually(t, func() bool { return settled(a, b) }, func() string {
		page, err := a.Views.Tasks(wire.Query{})
		text := fmt.Sprintf("the nodes do not settle: %d accepted, %d results, %v", inCustody(b), b.outbox.Results(), err)
		for _, task := range page.Items {
			text += fmt.Sprintf("\n%s %s %s", task.ID, task.State, task.Reason)
		}
		return text
	})
	if got := rt.starts(t); got != rt.startsBefore {
		t.Errorf("after the restore the starts were\n%s, before it\n%s", got, rt.startsBefore)
	}
	if a.outbox.Boot() <= rt.boots[0] || b.outbox.Boot() <= rt.boots[1] {
		t.Errorf("boot numbers %d and %d, before %v", a.outbox.Boot(), b.outbox.Boot(), rt.boots)
	}
	a.waitEnd(t, a.submit(t, wire.Request{Target: "b", Kind: "mark"}), "SUCCESS")
}

// freeAddr returns an address that a node can use at every start.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return fmt.Sprintf("/ip4/127.0.0.1/tcp/%d", l.Addr().(*net.TCPAddr).Port)
}

// inCustody counts the accepted tasks of a node that have not ended.
func inCustody(n *testNode) int {
	live := 0
	for state, count := range n.inbox.Status().Backlog.ByState {
		if !state.Terminal() {
			live += count
		}
	}
	return live
}

// stateOf returns the state of a task at n.
func stateOf(t *testing.T, n *testNode, id string) string {
	task, err := n.Views.Task(t.Context(), id)
	if err != nil {
		return err.Error()
	}
	return task.State
}

// After a snapshot was restored, or a log salvaged that had lost its end, nothing runs twice:
// neither the tasks that the node had accepted nor those that such a home sends again (I6, S51).
// Boot numbers increase (I5).
func TestNothingRunsTwiceAfterRestore(t *testing.T) {
	t.Parallel()
	idle := func(b *testNode) bool { return inCustody(b) == 0 && b.outbox.Results() == 0 }
	tests := []struct {
		name, engine string
		restored     []int // 0: the home, 1: the receiver
		salvaged     bool
		settled      func(p *restoreTest, a, b *testNode) bool
	}{
		{"the receiver", datadir.EngineNuts, []int{1}, false, func(p *restoreTest, a, b *testNode) bool {
			return idle(b) && stateOf(t, a, p.accepted[0]) == "SUCCESS" && stateOf(t, a, p.waiting) == "SUCCESS"
		}},
		{"the home", datadir.EnginePebble, []int{0}, false, func(p *restoreTest, a, b *testNode) bool {
			return idle(b) && stateOf(t, a, p.waiting) != "PENDING"
		}},
		{"both", datadir.EngineNuts, []int{0, 1}, false, func(p *restoreTest, a, b *testNode) bool {
			for _, id := range append(p.accepted, p.waiting) {
				if stateOf(t, a, id) != "DEAD_LETTER" {
					return false
				}
			}
			task, err := a.Views.Task(t.Context(), p.waiting)
			return idle(b) && err == nil && task.Cause == proto.TaskRestored.Name()
		}},
		{"the receiver, salvaged", datadir.EngineNuts, []int{1}, true, func(p *restoreTest, a, b *testNode) bool {
			return idle(b) && stateOf(t, a, p.accepted[0]) == "SUCCESS"
		}},
		{"the home, salvaged", datadir.EngineNuts, []int{0}, true, func(p *restoreTest, a, b *testNode) bool {
			return idle(b) && stateOf(t, a, p.waiting) != "PENDING"
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newRestoreTest(t, tt.engine)
			for _, i := range tt.restored {
				rescue := p.restore
				if tt.salvaged {
					rescue = p.salvage
				}
				rescue(t, i, []Config{p.a.cfg, p.b.cfg}[i])
			}
			p.restartAndCheck(t, func(a, b *testNode) bool { return tt.settled(p, a, b) })
		})
	}
}

// TestRestoredScheduleStartsAtTheLoss checks that a restored node makes up for no due time of
// a schedule that the replaced store may have made a task for.
func TestRestoredScheduleStartsAtTheLoss(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, t.TempDir())
	if _, err := pairing.Init(pairing.InitOptions{Dir: cfg.Dir, Name: "a", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	n := start(t, cfg)
	began := time.Now()
	key := []byte("schedule/q/yearly")
	val, err := proto.Encode(nil, &proto.Schedule{Queue: "q", Name: "yearly", Cron: "0 0 1 1 *", MarkMs: began.Add(-time.Hour).UnixMilli()})
	if err != nil {
		t.Fatal(err)
	}
	var b store.Batch
	b.Put(store.Meta, key, val)
	if err := n.storage.Store.Apply(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	snap := filepath.Join(t.TempDir(), "snap")
	if err := n.Snapshot(t.Context(), snap, ""); err != nil {
		t.Fatal(err)
	}
	n.halt()
	if _, err := RestoreStore(n.cfg, snap, ""); err != nil {
		t.Fatal(err)
	}
	n = start(t, n.cfg)
	val, err = n.storage.Store.Get(store.Meta, key)
	m := new(proto.Schedule)
	if err != nil || proto.Decode(val, m) != nil || m.MarkMs < began.UnixMilli() {
		t.Errorf("the schedule begins at %v, %v", proto.Time(m.MarkMs), err)
	}
}

// An interrupted restore leaves either the old store or the complete new one at the next
// start; the boot number also exceeds that of the audit, in case the clock was set back.
func TestInterruptedRestore(t *testing.T) {
	t.Parallel()
	p := newRestoreTest(t, datadir.EngineNuts)
	dir := p.b.cfg.Dir
	for _, name := range []string{"store.part", "store.restored"} { // before the old store is moved
		if err := os.CopyFS(filepath.Join(dir, name, datadir.EngineNuts), os.DirFS(p.snaps[1])); err != nil {
			t.Fatal(err)
		}
	}
	n := start(t, p.b.cfg)
	if got := inCustody(n); got != 0 {
		t.Errorf("the old store has %d live tasks, want none", got)
	}
	boot := n.outbox.Boot()
	n.halt()
	p.restore(t, 1, p.b.cfg)
	if err := os.Rename(filepath.Join(dir, datadir.Store), filepath.Join(dir, "store.restored")); err != nil { // after it was moved
		t.Fatal(err)
	}
	n = start(t, p.b.cfg)
	id, err := proto.ParseTaskID(p.accepted[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.inbox.Get(id); err != nil {
		t.Errorf("the restored store does not know %s: %v", p.accepted[0], err)
	}
	if n.outbox.Boot() <= boot {
		t.Errorf("boot number %d, before the restore %d", n.outbox.Boot(), boot)
	}
}

// A folder without a snapshot, or with a damaged one, changes nothing.
func TestRestoreRefusesBadSnapshots(t *testing.T) {
	t.Parallel()
	p := newRestoreTest(t, datadir.EngineNuts)
	cfg := p.b.cfg
	torn := filepath.Join(t.TempDir(), "torn")
	if err := os.CopyFS(torn, os.DirFS(p.snaps[1])); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(torn, "*", "0.dat"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	f, err := os.OpenFile(files[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("garbage"), 100); err != nil {
		t.Fatal(err)
	}
	f.Close()
	for name, dir := range map[string]string{"no snapshot": t.TempDir(), "a damaged one": torn} {
		if _, err := RestoreStore(cfg, dir, ""); err == nil {
			t.Errorf("%s was restored", name)
		}
	}
	running := start(t, cfg)
	if _, err := RestoreStore(cfg, p.snaps[1], ""); err == nil {
		t.Error("the store of a running node was replaced")
	}
	if !slices.ContainsFunc(running.Handlers.List(), func(h wire.Handler) bool { return h.Kind == "later" }) {
		t.Error("the store has lost a handler that was added after the snapshot")
	}
}

// A task that was granted to a node and not started at a snapshot may have been started
// since: the restored node does not report that it was not.
func TestRestoredOwnerReportsUnknownStarts(t *testing.T) {
	t.Parallel()
	a, _ := pair(t, nil)
	claim := &proto.Claim{Task: make([]byte, 16), Token: make([]byte, 16), EpochBoot: 1}
	val, err := proto.Encode(nil, &proto.OwnerLease{Claim: claim, Phase: proto.LeaseReceived})
	if err != nil {
		t.Fatal(err)
	}
	key := append([]byte("o"), claim.Task...)
	var b store.Batch
	b.Put(store.Leases, key, val)
	if err := a.storage.Store.Apply(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	snap := filepath.Join(t.TempDir(), "snap")
	if err := a.Snapshot(t.Context(), snap, ""); err != nil {
		t.Fatal(err)
	}
	a.halt()
	if _, err := RestoreStore(a.cfg, snap, ""); err != nil {
		t.Fatal(err)
	}
	d, err := datadir.Open(a.cfg.Storage())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	m := new(proto.OwnerLease)
	if val, err = d.Store.Get(store.Leases, key); err == nil {
		err = proto.Decode(val, m)
	}
	if err != nil || m.Cause != proto.CauseUnknown {
		t.Errorf("it is returned as %v, %v", m.Cause, err)
	}
}

// A queue task that must not start twice, and may have been started since a snapshot,
// becomes a dead letter at the restored home of its queue.
func TestRestoredHomeStartsNothingTwice(t *testing.T) {
	t.Parallel()
	a, _ := pair(t, nil)
	if _, err := a.Queues.Set(t.Context(), "q", wire.QueueSettings{Home: "here"}); err != nil {
		t.Fatal(err)
	}
	once := a.submit(t, wire.Request{Target: "queue:q", Kind: "nobody", Mode: proto.AtMostOnce.Name()})
	often := a.submit(t, wire.Request{Target: "queue:q", Kind: "nobody"})
	eventually(t, func() bool { return inCustody(a) == 2 }, func() string { return "the queue has not accepted them" })
	snap := filepath.Join(t.TempDir(), "snap")
	if err := a.Snapshot(t.Context(), snap, ""); err != nil {
		t.Fatal(err)
	}
	a.halt()
	if _, err := RestoreStore(a.cfg, snap, ""); err != nil {
		t.Fatal(err)
	}
	n := start(t, a.cfg)
	n.waitEnd(t, once, "DEAD_LETTER")
	if task, err := n.Views.Task(t.Context(), once); err != nil || task.Cause != proto.TaskHomeRestoredOnce.Name() {
		t.Errorf("the cause is %q, %v", task.Cause, err)
	}
	if s := stateOf(t, n, often); s == "DEAD_LETTER" {
		t.Error("a task that may run again is a dead letter too")
	}
}

// A node is restored from a sealed snapshot; without its key, or with a folder and a
// key, the error suggests what to do, the store is unchanged and no decrypted copy is
// left.
func TestRestoreOfASealedSnapshot(t *testing.T) {
	a := startAlone(t)
	public, private, err := datadir.NewSnapshotKey()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "copy.age")
	if err := a.Snapshot(t.Context(), file, "age1nonsense"); !errors.Is(err, wire.ErrInvalid) || !strings.HasSuffix(err.Error(), "begins with age1; balefire-node store key FILE creates a key pair and prints the public key") {
		t.Errorf("with an invalid key: %v", err)
	}
	if err := a.Snapshot(t.Context(), file, private); !errors.Is(err, wire.ErrInvalid) || strings.Contains(err.Error(), private) || !strings.Contains(err.Error(), "is a private key") {
		t.Errorf("with the private key: %v", err)
	}
	if err := a.Snapshot(t.Context(), file, public); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	a.halt()
	if _, err := RestoreStore(a.cfg, file, ""); !errors.Is(err, wire.ErrInvalid) || !strings.Contains(err.Error(), "--key-file") {
		t.Errorf("without the key: %v", err)
	}
	if _, err := RestoreStore(a.cfg, filepath.Dir(file), private); !errors.Is(err, wire.ErrInvalid) {
		t.Errorf("a folder with a key: %v", err)
	}
	if r, err := RestoreStore(a.cfg, file, private); err != nil || r.Records == 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := os.Stat(filepath.Join(a.cfg.Dir, "snapshot.part")); !os.IsNotExist(err) {
		t.Errorf("a decrypted copy is left: %v", err)
	}
}

// A restore under a clock that is ahead deletes no open ticket of the snapshot: nothing knows
// then whether that clock is right.
func TestRestoreKeepsTickets(t *testing.T) {
	a := startAlone(t)
	inv, err := a.Pairing.Invite(t.Context(), wire.InviteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := identity.ParseTicket(inv.Ticket)
	if err != nil {
		t.Fatal(err)
	}
	snap := filepath.Join(t.TempDir(), "snap")
	if err := a.Snapshot(t.Context(), snap, ""); err != nil {
		t.Fatal(err)
	}
	a.halt()
	cfg := a.cfg
	cfg.Clock = clock.WithOffset(clock.System(), func() time.Duration { return 20 * year })
	if _, err := RestoreStore(cfg, snap, ""); err != nil {
		t.Fatal(err)
	}
	a = start(t, a.cfg)
	joiner := identity.NewKeys(nil, time.Now()).Peer()
	if !a.Pairing.HoldsTicket(joiner, &proto.JoinRequest{TicketId: ticket.ID[:], Proof: identity.JoinProof(ticket.Secret, joiner, ticket.Inviter)}) {
		t.Error("the ticket is gone")
	}
}
