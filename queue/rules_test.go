package queue

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// newRules returns queues that know the members of a mesh, and nothing else: home, which is
// this node, and the named ones with their roles. The time is now.
func newRules(t *testing.T, now *clock.Manual, roles map[string][]string) (*Queues, map[string]proto.PeerID) {
	t.Helper()
	s, err := store.Open(mem.New(), store.Config{Clock: now.Clock(), SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	at := now.Clock().Now()
	root, own := identity.NewRoot(nil), identity.NewKeys(nil, at)
	issue := func(k *identity.Keys, name string, roles []string) *proto.Signed {
		cert, err := root.IssueMember(identity.Member{Peer: k.Peer(), Name: name, Roles: roles}, at)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	book, err := addressbook.Open(s, root.Mesh(), own, issue(own, "home", identity.DefaultRoles()), now.Clock(), transport.Multiaddrs{})
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]proto.PeerID{"home": own.Peer()}
	for name, r := range roles {
		k := identity.NewKeys(nil, at)
		ids[name] = k.Peer()
		if err := book.Learn(t.Context(), &proto.KnownPeer{Certificate: issue(k, name, r), KeyRecord: k.KeyRecord()}); err != nil {
			t.Fatal(err)
		}
	}
	return &Queues{parts: Parts{Book: book}, self: own.Peer()}, ids
}

var birth = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// The order of homes is stored as ids, and each node is on it once.
func TestHomeOrder(t *testing.T) {
	qs, ids := newRules(t, clock.NewManual(birth), map[string][]string{"a": {identity.RoleWork}, "b": {identity.RoleWork}})
	many := make([]string, maxHomes+1)
	for _, tt := range []struct {
		name  string
		nodes []string
		want  []string // names of the nodes
		is    error
		says  string
	}{
		{"nobody", []string{}, []string{}, nil, ""},
		{"as listed, this node too", []string{"b", " home ", "a"}, []string{"b", "home", "a"}, nil, ""},
		{"twice by its name", []string{"a", "b", "a"}, nil, wire.ErrInvalid, "a is listed twice"},
		{"twice, by its name and its id", []string{"a", ids["a"].String()}, nil, wire.ErrInvalid, "is listed twice"},
		{"an unknown node", []string{"a", "nobody"}, nil, wire.ErrNotFound, "homes: "},
		{"too many", many, nil, wire.ErrInvalid, "33 nodes: at most 32"},
	} {
		got, err := qs.homeOrder(tt.nodes)
		var want []string
		for _, n := range tt.want {
			want = append(want, ids[n].String())
		}
		if tt.is == nil && (err != nil || !slices.Equal(got, want)) {
			t.Errorf("%s: %v, %v, want %v", tt.name, got, err, want)
		}
		if tt.is != nil && (!errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: error %v, want %q", tt.name, err, tt.says)
		}
	}
}

// The rules of members name known nodes, each once, with numbers within the limit.
func TestMemberRules(t *testing.T) {
	qs, ids := newRules(t, clock.NewManual(birth), map[string][]string{"a": {identity.RoleWork}, "b": {identity.RoleWork}})
	a := ids["a"]
	for _, tt := range []struct {
		name  string
		rules []wire.MemberRule
		is    error
		says  string
	}{
		{"all fields", []wire.MemberRule{{Node: " a", Weight: 3, Priority: 2, Concurrency: wire.MaxQueueLimit, Draining: true}, {Node: "b"}}, nil, ""},
		{"an unknown node", []wire.MemberRule{{Node: "nobody"}}, wire.ErrNotFound, "members: "},
		{"twice", []wire.MemberRule{{Node: "a"}, {Node: a.String()}}, wire.ErrInvalid, "is listed twice"},
		{"a negative weight", []wire.MemberRule{{Node: "a", Weight: -1}}, wire.ErrInvalid, "a: numbers must be from 0"},
		{"a priority above the limit", []wire.MemberRule{{Node: "a", Priority: wire.MaxQueueLimit + 1}}, wire.ErrInvalid, "numbers must be"},
		{"a concurrency above the limit", []wire.MemberRule{{Node: "a", Concurrency: wire.MaxQueueLimit + 1}}, wire.ErrInvalid, "numbers must be"},
		{"too many", make([]wire.MemberRule, maxRules+1), wire.ErrInvalid, "65 nodes: at most 64"},
	} {
		got, err := qs.memberRules(tt.rules)
		if tt.is != nil {
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: error %v, want %q", tt.name, err, tt.says)
			}
			continue
		}
		want := &proto.QueueMember{Peer: a[:], Weight: 3, Priority: 2, Concurrency: wire.MaxQueueLimit, Draining: true}
		if err != nil || len(got) != 2 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
			t.Errorf("%s: %v, %v, want %v first", tt.name, got, err, want)
		}
	}
}

// What is stored of nodes is shown with their names; one that is no longer known keeps its id.
func TestNodeRulesAreShownWithNames(t *testing.T) {
	qs, ids := newRules(t, clock.NewManual(birth), map[string][]string{"a": {identity.RoleWork}})
	a := ids["a"]
	homes, rules := qs.nodeRules(&proto.QueueState{
		NextHomes: []string{a.String(), ids["home"].String(), "no id"},
		Members:   []*proto.QueueMember{{Peer: a[:], Weight: 3, Draining: true}, {Peer: []byte("short")}},
	})
	if want := []string{"a", "home", "no id"}; !slices.Equal(homes, want) {
		t.Errorf("homes %q, want %q", homes, want)
	}
	if want := []wire.MemberRule{{Node: "a", Weight: 3, Draining: true}, {}}; !reflect.DeepEqual(rules, want) {
		t.Errorf("rules %+v, want %+v", rules, want)
	}
}

// A change sets what it names, and leaves the rest of a queue as it is.
func TestChangeLeavesTheRest(t *testing.T) {
	qs, ids := newRules(t, clock.NewManual(birth), map[string][]string{"a": {identity.RoleWork}})
	a := ids["a"]
	before := func() *proto.QueueState {
		return &proto.QueueState{
			Concurrency: 1, NodeConcurrency: 2, LeaseMs: 6000, Strategy: "fair", Paused: true, Draining: true, Labels: []string{"x"}, Allow: []string{"role:send"},
			OnLostLease: "stop", SharedLanes: true, Kinds: []*proto.KindLimit{{Kind: "k", Concurrency: 1}}, NextHomes: []string{"h"}, Members: []*proto.QueueMember{{Weight: 1}},
		}
	}
	for _, tt := range []struct {
		name   string
		change wire.QueueSettings
		set    func(*proto.QueueState)
	}{
		{"nothing", wire.QueueSettings{Home: "here"}, func(*proto.QueueState) {}},
		{"numbers", wire.QueueSettings{Concurrency: new(7), NodeConcurrency: new(0), LeaseMs: new(9000)}, func(q *proto.QueueState) { q.Concurrency, q.NodeConcurrency, q.LeaseMs = 7, 0, 9000 }},
		{"switches", wire.QueueSettings{Paused: new(false), Draining: new(false)}, func(q *proto.QueueState) { q.Paused, q.Draining = false, false }},
		{"lanes of each origin", wire.QueueSettings{Lanes: new(wire.LanesOrigin)}, func(q *proto.QueueState) { q.SharedLanes = false }},
		{"lists that become empty", wire.QueueSettings{Labels: &[]string{}, Allow: &[]string{}, Kinds: &[]wire.KindLimit{}, Homes: &[]string{}, MemberRules: &[]wire.MemberRule{}}, func(q *proto.QueueState) {
			q.Labels, q.Allow, q.Kinds, q.NextHomes, q.Members = nil, nil, nil, nil, nil
		}},
		{"nodes", wire.QueueSettings{Homes: &[]string{"a"}, MemberRules: &[]wire.MemberRule{{Node: "a", Weight: 5}}}, func(q *proto.QueueState) {
			q.NextHomes, q.Members = []string{a.String()}, []*proto.QueueMember{{Peer: a[:], Weight: 5}}
		}},
		{"kinds", wire.QueueSettings{Kinds: &[]wire.KindLimit{{Kind: "gpu", NodeConcurrency: 1}}}, func(q *proto.QueueState) {
			q.Kinds = []*proto.KindLimit{{Kind: "gpu", NodeConcurrency: 1}}
		}},
	} {
		got, want := before(), before()
		apply, err := qs.change(tt.change)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		apply(got)
		if tt.set(want); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", tt.name, got, want)
		}
	}
	if _, err := qs.change(wire.QueueSettings{MemberRules: &[]wire.MemberRule{{Node: "nobody"}}}); !errors.Is(err, wire.ErrNotFound) {
		t.Errorf("an unknown node: %v", err)
	}
}

// The home of a queue is a member that may work, is connected and says of itself that it can.
func TestCandidates(t *testing.T) {
	now := clock.NewManual(birth)
	qs, ids := newRules(t, now, map[string][]string{"worker": {identity.RoleWork}, "sender": {identity.RoleSend}})
	for _, tt := range []struct {
		name      string
		of        string
		paused    bool
		silent    bool // it has not announced a record
		away      bool // it is not connected
		after     time.Duration
		candidate bool
	}{
		{"a worker", "worker", false, false, false, 0, true},
		{"one that has paused itself", "worker", true, false, false, 0, false},
		{"one without a record", "worker", false, true, false, 0, false},
		{"one that is not connected", "worker", false, false, true, 0, false},
		{"a member that may not work", "sender", false, false, false, 0, false},
		{"an unknown node", "nobody", false, false, false, 0, false},
		{"one whose certificate can be renewed", "worker", false, false, false, identity.MaxMemberLife + time.Hour, true},
		{"one whose certificate cannot be renewed any more", "worker", false, false, false, identity.MemberGrace, false},
	} {
		now.Advance(tt.after)
		m := gossip.Member{Peer: ids[tt.of], Eligible: !tt.paused, Record: &proto.NodeRecord{}}
		if tt.silent {
			m.Record = nil
		}
		got := qs.candidates([]gossip.Member{m}, func(proto.PeerID) bool { return !tt.away })
		if (len(got) == 1) != tt.candidate {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.candidate)
		}
	}
}
