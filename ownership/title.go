package ownership

import (
	"bytes"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A name of another kind than a queue, a mailbox or a topic of the mesh, has a home by deeds
// as a queue has, under the same rules and limits: see [proto.TitleKindOf]. It has nothing
// else of a queue. It is known under its whole name, and no task or lane refers to it. Its
// home hands it over as a name alone: what the name stands for goes another way.

// validTitle reports whether m has the kind that its name says, and the id of a group or none.
func validTitle(m *proto.QueueState) bool {
	kind, valid := proto.TitleKindOf(m.GetName())
	return kind == m.GetKind() && (valid || kind == proto.TitleQueue) && (len(m.GetGroup()) == 0 || len(m.GetGroup()) == idSize)
}

// wasGivenBy reports whether p handed the name over to its home, as far as is known.
func (t *title) wasGivenBy(p proto.PeerID) bool {
	return slices.ContainsFunc(t.deeds, func(d proof) bool {
		return d.From == p && !d.Seized && d.Generation == t.state.GetGeneration() && string(d.To[:]) == string(t.state.GetHome())
	})
}

// wasHome reports whether p may speak about tasks of a queue: it is, or once was, its home,
// as far as is known. No node may of another name. That an origin sent a task to a node gives
// no such right; otherwise a node that colludes with an origin could bypass the rules of the
// queue.
func (ti *titles) wasHome(name string, p proto.PeerID) bool {
	return proto.NamesQueue(name) && ti.byName[name].wasHome(p)
}

// titles knows which node is the home of each queue and of each other name, what proves it,
// and what the names of one home use here.
type titles struct {
	cfg       Config
	self      proto.PeerID
	byName    map[string]*title
	order     []*title                    // in the order in which they were added
	creations map[string]proof            // by name: deeds of names that this node, as an admin, signed first
	usage     map[proto.PeerID]*homeUsage // by home
}

// A title is what is known about the home of a name.
type title struct {
	name        string
	state       *proto.QueueState // nil: unknown, and treated as at home here
	deeds       []proof           // the valid deeds of state
	root        Root              // of the deeds that prove state
	chargedTo   proto.PeerID      // whose usage includes the state
	stateBytes  int               // counted there
	announced   bool              // its home, another node, has confirmed it
	announcedAt time.Duration     // when it was last announced
}

// named returns the title of a name, a new one if there is none. That one is not kept unless
// a state is accepted for it.
func (ti *titles) named(name string) *title {
	if t := ti.byName[name]; t != nil {
		return t
	}
	return &title{name: name}
}

// keep adds t, unless that was done.
func (ti *titles) keep(t *title) *title {
	if ti.byName[t.name] == nil {
		ti.byName[t.name] = t
		ti.order = append(ti.order, t)
	}
	return t
}

// set makes s the state of t, and writes it.
func (ti *titles) set(t *title, s *proto.QueueState, o *Output) {
	was := t.isHome(ti.self) && (t.known() || proto.NamesQueue(t.name))
	ti.accept(t, s)
	o.put(queueKey(t.name), s)
	if t.isHome(ti.self) == was {
		return
	}
	if t.announced = false; was {
		o.Events = append(o.Events, Event{Kind: EventYielded, Queue: t.name, Peer: proto.PeerID(s.Home)})
	}
}

// accept makes s the state of t.
func (ti *titles) accept(t *title, s *proto.QueueState) {
	ti.keep(t)
	ti.charge(t, s)
	t.deeds, t.root, t.state = ti.proofs(s.Deeds), ti.rootOf(s, t), s
}

// rootOf returns the root of the deeds that prove m, the accepted state of t.
func (ti *titles) rootOf(m *proto.QueueState, t *title) (root Root) {
	found := false
	for _, d := range ti.proofs(m.Deeds) {
		if d.Generation == m.Generation && string(d.To[:]) == string(m.Home) && (!found || bytes.Compare(d.Root[:], root[:]) < 0) {
			root, found = d.Root, true
		}
	}
	if !found && len(m.Root) == len(root) {
		return Root(m.Root)
	} else if !found {
		return t.root
	}
	return root
}

// stateOf returns a copy of t's state, or its initial one.
func (ti *titles) stateOf(t *title) *proto.QueueState {
	if t.state != nil {
		return proto.Clone(t.state)
	}
	s := &proto.QueueState{Name: t.name, Generation: 1, Home: append([]byte(nil), ti.self[:]...)}
	s.Kind, _ = proto.TitleKindOf(t.name)
	return s
}

// isHome reports whether self is the home of t.
func (t *title) isHome(self proto.PeerID) bool {
	return t.state == nil || len(t.state.Home) == 0 || string(t.state.Home) == string(self[:])
}

// learn takes the state of a name from another node if deeds prove it. The lower root wins;
// with the same root, the higher generation. It reports whether the state was news.
func (ti *titles) learn(m *proto.QueueState, o *Output) bool {
	if m.GetName() == "" || len(m.GetHome()) != len(ti.self) || !validTitle(m) {
		return false
	}
	t := ti.named(m.Name)
	x := ti.assess(t, m)
	if !x.valid && ti.supersedes(m, x, t) {
		o.Events = append(o.Events, Event{Kind: EventForged, Queue: m.Name, Peer: proto.PeerID(m.Home), Cause: wire.LeaseUnproven})
		return false
	}
	if !ti.supersedes(m, x, t) {
		ti.mergeDeeds(t, m, x, o)
		return false
	}
	if !ti.mayBecomeHome(t, m, o) {
		return false
	}
	s := proto.Clone(m)
	s.Deeds, s.Root, s.Stated, s.Seizure = signedOf(x.deeds), nil, 0, 0
	if !ti.trimToFit(s) {
		o.Events = append(o.Events, Event{Kind: EventForged, Queue: m.Name, Peer: proto.PeerID(m.Home), Cause: wire.LeaseStatesTooLarge, Detail: ti.errFull(s).Error()})
		return false
	}
	t.reportCreatedTwice(x.deeds, o)
	ti.set(t, s, o)
	return true
}

// handedOff returns the state of t, whose home this node is, at another home.
func (ti *titles) handedOff(t *title, to proto.PeerID, now Now) (*proto.QueueState, error) {
	s := ti.stateOf(t)
	s.Generation, s.Home, s.SeizedFrom = s.Generation+1, slices.Clone(to[:]), nil
	s.ChangedMs = nextChangedMs(s, now)
	return s, ti.signDeed(s, t.root, Deed{From: ti.self})
}

// seize makes this node the home of a name whose home is lost.
func (ti *titles) seize(name string, from proto.PeerID, now Now, o *Output) error {
	t := ti.named(name)
	s := ti.stateOf(t)
	s.Generation++
	s.Home, s.SeizedFrom, s.ChangedMs = slices.Clone(ti.self[:]), slices.Clone(from[:]), nextChangedMs(s, now)
	root := t.root
	if t.state == nil {
		root = ti.creations[name].Root
	}
	if err := ti.signDeed(s, root, Deed{From: from, Seized: true, Admin: true}); err != nil {
		return err
	}
	ti.set(t, s, o)
	o.Events = append(o.Events, Event{Kind: EventSeized, Queue: name, Peer: from})
	return nil
}

// nextChangedMs returns the change time of s: later than any before, whatever the clock
// shows, since the latest wins.
func nextChangedMs(s *proto.QueueState, now Now) int64 { return max(now.Wall, s.ChangedMs+1) }

func queueKey(name string) string { return string(rune(keyQueue)) + name }
