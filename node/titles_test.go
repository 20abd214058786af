package node

import (
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/queue"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// titleMesh starts n nodes, of which the first and the third are admins.
func titleMesh(t *testing.T, n int) *simMesh {
	return newSimMeshWith(t, n, 1, transporttest.Link{Latency: 10 * time.Millisecond, Mbps: 100, Seed: 1}, quietMesh)
}

func (s *simNode) titles() queue.Titles { return queue.Titles{Queues: s.get().Queues} }

// A titleLog is what the watcher of a node was told, in words.
type titleLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *titleLog) watch(s *simNode) {
	s.titles().Watch(func(t queue.Title) {
		l.mu.Lock()
		defer l.mu.Unlock()
		what := t.Name + " at " + s.get().book.NameOf(t.Home)
		if t.Removed {
			what += ", removed"
		}
		l.lines = append(l.lines, what)
	})
}

// take returns what was told since the last call.
func (l *titleLog) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.lines = nil }()
	return strings.Join(l.lines, "; ")
}

// A mailbox or topic of the mesh has the node for its home that created it, with the
// signature of an admin. All nodes know that, also after they restart.
func TestTitles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := titleMesh(t, 3)
		defer w.close()
		time.Sleep(10 * time.Second)
		ctx, member, log := t.Context(), w.nodes[1], new(titleLog)
		log.watch(w.nodes[0])
		if err := member.titles().Title(ctx, "agent:ceo", proto.TitleMailbox); err != nil {
			t.Fatal(err)
		}
		if err := w.nodes[2].titles().Title(ctx, "topic:ceo", proto.TitleTopic); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		known := func() {
			t.Helper()
			for _, s := range w.nodes {
				for name, want := range map[string]*simNode{"agent:ceo": member, "topic:ceo": w.nodes[2]} {
					if home, generation, err := s.titles().HomeOf(name); err != nil || home != want.peer() || generation != 1 {
						t.Errorf("%s takes %s for the home of %s, in generation %d: %v", s.name, home.Short(), name, generation, err)
					}
				}
				if all := s.get().Queues.Driver.Titles(); len(all) != 2 {
					t.Errorf("%s knows %+v", s.name, all)
				}
				if all := s.get().Queues.List(ctx); len(all) != 0 {
					t.Errorf("%s lists %+v as queues", s.name, all)
				}
			}
		}
		known()
		if got := log.take(); got != "agent:ceo at n1; topic:ceo at n2" {
			t.Errorf("the watcher is told %q", got)
		}
		for _, s := range w.nodes {
			s.halt()
			s.start()
		}
		known() // from disk
		time.Sleep(2 * time.Minute)
		known()

		log.watch(w.nodes[0])
		for name, try := range map[string]func() error{
			"the home of agent:ceo is n1: remove it": func() error { return w.nodes[0].titles().Remove(ctx, "agent:ceo") },
			"the home of agent:ceo is n1":            func() error { return w.nodes[0].titles().Title(ctx, "agent:ceo", proto.TitleMailbox) },
		} {
			if err := try(); !errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), name) {
				t.Errorf("another node: %v, want %q", err, name)
			}
		}
		for range 2 {
			if err := member.titles().Remove(ctx, "agent:ceo"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			for _, s := range w.nodes {
				if _, _, err := s.titles().HomeOf("agent:ceo"); !errors.Is(err, wire.ErrNotFound) {
					t.Errorf("%s, after it was removed: %v", s.name, err)
				}
			}
			if err := member.titles().Title(ctx, "agent:ceo", proto.TitleMailbox); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Second)
			known()
		}
		if got, want := log.take(), strings.Repeat("; agent:ceo at n1, removed; agent:ceo at n1", 2)[2:]; got != want {
			t.Errorf("the watcher is told %q", got)
		}
	})
}

// A name of one kind is not used as another, and what is for queues refuses or ignores the
// names of mailboxes and topics.
func TestTitlesAreNotQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := titleMesh(t, 3)
		defer w.close()
		time.Sleep(10 * time.Second)
		ctx, n, home := t.Context(), w.nodes[0].get(), w.nodes[1]
		const name = "topic:orders"
		if err := home.titles().Title(ctx, name, proto.TitleTopic); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		for name, kind := range map[string]proto.TitleKind{"orders": proto.TitleQueue, "group:orders": proto.TitleGroup, "topic:orders": proto.TitleMailbox, "agent:orders": proto.TitleTopic, "agent:ceo@n1": proto.TitleMailbox, "agent:Ceo": proto.TitleMailbox, "": proto.TitleTopic} {
			if err := w.nodes[0].titles().Title(ctx, name, kind); !errors.Is(err, wire.ErrInvalid) {
				t.Errorf("%q as %v: %v", name, kind, err)
			}
		}
		for name, want := range map[string]error{"agent:orders": wire.ErrNotFound, "orders": wire.ErrInvalid, "group:orders": wire.ErrInvalid, "topic:": wire.ErrInvalid} {
			if _, _, err := w.nodes[0].titles().HomeOf(name); !errors.Is(err, want) {
				t.Errorf("the home of %q: %v, want %v", name, err, want)
			}
		}
		_, seize := n.Queues.Seize(ctx, name, home.name)
		_, handOff := home.get().Queues.HandOff(ctx, name, "n0")
		_, set := n.Queues.Set(ctx, name, wire.QueueSettings{Home: "here"})
		_, get := n.Queues.Get(ctx, name)
		_, unblock := home.get().Queues.UnblockLane(ctx, name, "key")
		_, submit := n.Submit(ctx, wire.Request{Target: proto.QueueTarget(name), Kind: "build"})
		_, submitHere := home.get().Submit(ctx, wire.Request{Target: name, Kind: "build"})
		_, timeline := n.Queues.Timeline(ctx, wire.TimelineQuery{Queue: name})
		for what, tt := range map[string]struct{ got, want error }{
			"seize": {seize, wire.ErrRefused}, "hand off": {handOff, wire.ErrRefused}, "set": {set, wire.ErrInvalid}, "get": {get, wire.ErrInvalid},
			"unblock": {unblock, wire.ErrInvalid}, "submit": {submit, wire.ErrInvalid}, "submit to the name": {submitHere, wire.ErrInvalid}, "timeline": {timeline, wire.ErrInvalid},
		} {
			if !errors.Is(tt.got, tt.want) {
				t.Errorf("%s: %v, want %v", what, tt.got, tt.want)
			}
		}
		if n.Queues.IsHome(name, home.peer()) || n.Queues.WasHome(name, home.peer()) {
			t.Error("its home may speak about tasks of a queue of that name")
		}
		if d, err := home.get().Queues.Drain(ctx, true); err != nil || len(d.Kept) != 0 || d.Going != 0 {
			t.Errorf("a drain moves or keeps %+v, %v", d, err)
		}
		peer := home.peer()
		home.halt()
		time.Sleep(10 * time.Minute)
		if all := n.Queues.Alarms(ctx); len(all) != 0 {
			t.Errorf("the alarms are %+v", all)
		}
		if got, _, err := w.nodes[0].titles().HomeOf(name); err != nil || got != peer {
			t.Errorf("while its home is off: %s, %v", got.Short(), err)
		}
	})
}

// A mailbox that two admins created in a partition has one home once they meet: that of the
// deed with the lower root. Each is told when it is not the home any more.
func TestATitleMadeTwiceHasOneHome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := titleMesh(t, 3)
		defer w.close()
		time.Sleep(10 * time.Second)
		const name = "agent:ceo"
		ctx, one, two := t.Context(), w.nodes[0], w.nodes[2]
		w.Partition([]int{0, 1}, []int{2})
		time.Sleep(5 * time.Minute)
		logs := [3]titleLog{}
		for i, s := range w.nodes {
			logs[i].watch(s)
		}
		for _, s := range []*simNode{one, two} {
			if err := s.titles().Title(ctx, name, proto.TitleMailbox); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		w.Heal()
		time.Sleep(10 * time.Minute)
		id := two.peer()
		low, other := identity.DeedRoot(name, one.get().mesh.Root), identity.DeedRoot(name, id[:])
		home, old := one, two
		if string(other[:]) < string(low[:]) {
			home, old = two, one
		}
		for i, s := range w.nodes {
			if got, _, err := s.titles().HomeOf(name); err != nil || got != home.peer() {
				t.Errorf("%s takes %s for the home: %v", s.name, got.Short(), err)
			}
			told := name + " at " + home.name
			if s == old || home == two && s == w.nodes[1] {
				told = name + " at " + old.name + "; " + told
			}
			if got := logs[i].take(); got != told {
				t.Errorf("%s is told %q, want %q", s.name, got, told)
			}
		}
		if err := old.titles().Title(ctx, name, proto.TitleMailbox); !errors.Is(err, wire.ErrRefused) {
			t.Errorf("the old home makes it again: %v", err)
		}
	})
}

// A member cannot claim a name without the deed of an admin, or by the deed of another name.
func TestMemberCannotTakeATitle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := titleMesh(t, 2)
		defer w.close()
		time.Sleep(10 * time.Second)
		ctx, n := t.Context(), w.nodes[0]
		if err := n.titles().Title(ctx, "agent:ceo", proto.TitleMailbox); err != nil {
			t.Fatal(err)
		}
		f := w.forger("mallory")
		defer f.Close()
		self := f.Peer()
		bySelf, err := f.Keys.SignDeed(f.Mesh, identity.Deed{Queue: "agent:ceo", Generation: 2, Root: [32]byte{1}, From: self, To: w.nodes[1].peer()})
		if err != nil {
			t.Fatal(err)
		}
		ofQueue, err := n.get().Queues.Driver.SignCreation(ctx, "orders", self)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range []*proto.QueueState{
			{Name: "agent:ceo", Kind: proto.TitleMailbox, Generation: 9, Home: self[:]},
			{Name: "agent:ceo", Kind: proto.TitleMailbox, Generation: 2, Home: self[:], Deeds: []*proto.Signed{bySelf}},
			{Name: "agent:ceo", Kind: proto.TitleMailbox, Generation: 1, Home: self[:], Removed: true},
			{Name: "topic:orders", Kind: proto.TitleTopic, Generation: 1, Home: self[:], Deeds: []*proto.Signed{ofQueue}},
			{Name: "topic:orders", Generation: 1, Home: self[:], Deeds: []*proto.Signed{ofQueue}},
			{Name: "orders", Kind: proto.TitleTopic, Generation: 1, Home: self[:], Deeds: []*proto.Signed{ofQueue}},
		} {
			for _, s := range w.nodes {
				f.Send(s.peer(), proto.StreamTask, f.Frame(proto.TypeQueues, &proto.QueueStates{Queues: []*proto.QueueState{q}}))
			}
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		for _, s := range w.nodes {
			home, _, err := s.titles().HomeOf("agent:ceo")
			if all := s.get().Queues.Driver.Titles(); len(all) != 1 || home != n.peer() {
				t.Errorf("%s knows %+v: %v", s.name, all, err)
			}
		}
	})
}

// A member that asks an admin again and again to sign the same name gets the same deed, and
// leaves one line in its audit.
func TestRepeatedCreationIsAuditedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := titleMesh(t, 1)
		defer w.close()
		f := w.forger("mallory", "send", "work")
		defer f.Close()
		time.Sleep(10 * time.Second)
		n := w.nodes[0]
		for range 5 {
			f.Send(n.peer(), proto.StreamTask, f.Frame(proto.TypeQueueAsk, &proto.QueueAsk{Number: 1, Queue: "orders", Generation: 1}))
			time.Sleep(time.Second)
		}
		if lines, err := audit.Read(filepath.Join(n.dir, audit.DirName), audit.Query{Action: "queue.sign"}); err != nil || len(lines) != 1 {
			t.Errorf("%d lines, want one: %v", len(lines), err)
		}
	})
}
