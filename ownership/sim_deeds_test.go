package ownership

import (
	"errors"
	"slices"

	"github.com/balefire/balefire/proto"
)

// admin reports whether x may seize queues.
func (x *simNode) admin() bool { return x.i < simAdmins }

const simAdmins = 5 // the first nodes

// simDeeds are unsigned, but each node can sign only as itself.
type simDeeds struct{ of *simNode }

func (d simDeeds) Sign(x Deed) (*proto.Signed, error) {
	s, err := plainDeeds{}.Sign(x)
	if err == nil && (x.Seized || x.From.IsZero()) && !d.of.admin() {
		err = errors.New("it is not an admin")
	}
	s.Signer = slices.Clone(d.of.peer[:])
	return s, err
}

func (d simDeeds) Verify(s *proto.Signed) (Deed, error) {
	x, err := plainDeeds{}.Verify(s)
	by, perr := proto.PeerIDFrom(s.GetSigner())
	switch {
	case err != nil || perr != nil:
		return x, errors.Join(err, perr)
	case x.Admin && !d.of.s.nodeOf(by).admin(), !x.Admin && x.From != by:
		return x, errors.New("signed by a node that may not")
	}
	return x, nil
}

func (d simDeeds) ReadVerified(s *proto.Signed) (Deed, error) { return d.Verify(s) }

// createTitle lets two admins create the mailbox, if they have not heard of it.
func (s *sim) createTitle() {
	for range 2 {
		x := s.nodes[s.rng.IntN(simAdmins)]
		if !x.up || x.paused || x.home.titles.byName[simTitle].known() {
			continue
		}
		out, err := x.home.CreateQueue(simTitle, func(*proto.QueueState) {}, nil, x.clock())
		if err != nil {
			s.w.fail("node %d cannot create %s: %v", x.i, simTitle, err)
		}
		s.w.count("mailbox created")
		x.apply(out)
	}
}

// usurper lets a node that is neither admin nor home claim a queue, or hand over a task of
// it that it never had, with forged deeds of all kinds.
func (s *sim) usurper() {
	liar, x := s.nodes[len(s.nodes)-1], s.nodes[s.rng.IntN(len(s.nodes)-1)]
	name := simNames[s.rng.IntN(len(simNames))]
	q := x.home.titles.byName[name]
	if !x.up || x.paused || q == nil || q.state == nil || q.wasHome(liar.peer) {
		return
	}
	s.w.count("usurper")
	m := x.home.titles.stateOf(q)
	m.Generation, m.Home = m.Generation+1+uint64(s.rng.IntN(3)), slices.Clone(liar.peer[:])
	lie := func(d Deed) {
		d.Queue, d.Generation, d.To, d.Root = name, m.Generation, liar.peer, q.root
		signed, _ := plainDeeds{}.Sign(d)
		signed.Signer = slices.Clone(liar.peer[:])
		m.Deeds = append(m.Deeds, signed)
	}
	was := proto.PeerID(q.state.Home)
	switch s.rng.IntN(6) {
	case 0: // no deed at all
	case 1:
		m.Deeds = nil
	case 2:
		lie(Deed{From: liar.peer})
	case 3:
		lie(Deed{From: was})
	case 4:
		lie(Deed{From: was, Seized: true})
	case 5: // it created the queue too, and has the higher name
		m.Generation, m.Deeds = 1, nil
		lie(Deed{})
	}
	if s.chance(2) {
		x.receive(liar.peer, Send{Type: proto.TypeSync, Body: m})
	} else {
		x.receive(liar.peer, Send{Type: proto.TypeHandoff, Body: &proto.Handoff{Queue: m}})
	}
	if x.home.titles.byName[name].wasHome(liar.peer) {
		s.w.fail("usurper: node %d believes that node %d is the home of %s", x.i, liar.i, name)
	}
	for ts := range each[*taskState](x.home.live) {
		if ts.task.Queue != name || s.w.tasks[ts.task.ID].Sent == liar.peer {
			continue
		}
		l := proto.Clone(ts.record())
		l.Generation += 5
		l.State, l.Owner = proto.Accepted, slices.Clone(liar.peer[:])
		x.receive(liar.peer, Send{Type: proto.TypeHandoff, Body: &proto.Handoff{Lease: l}})
		if x.home.tasks[ts.task.ID] != ts {
			s.w.fail("usurper: node %d handed %v to node %d, and never had it", liar.i, ts.task.ID, x.i)
		}
		return
	}
}

// forks lets former homes of queues sign, with an accomplice, handoffs besides what an admin
// has stated since: at no node do they supersede that. Nothing is sent.
func (s *sim) forks() {
	accomplice := peerOf(len(s.nodes)) // no member
	for _, x := range s.nodes {
		if !x.up || x.paused {
			continue
		}
		for _, name := range simNames {
			q := x.home.titles.byName[name]
			if !q.known() {
				continue
			}
			at := slices.IndexFunc(q.deeds, func(d proof) bool {
				again := func(e proof) bool { return e.To == d.To && e.Generation > d.Generation }
				return d.Root == q.root && d.Generation < q.ancestry(q.deeds)[q.record()].stated && !slices.ContainsFunc(q.deeds, again)
			})
			if at < 0 {
				continue
			}
			from, to := q.deeds[at].To, accomplice
			m := x.home.titles.stateOf(q)
			m.ChangedMs++
			last := q.state.Generation + 2
			for m.Generation = q.deeds[at].Generation + 1; ; m.Generation++ {
				signed, _ := plainDeeds{}.Sign(Deed{Queue: name, Generation: m.Generation, From: from, To: to, Root: q.root})
				signed.Signer = slices.Clone(from[:])
				m.Deeds, m.Home = append(m.Deeds, signed), slices.Clone(to[:])
				if m.Generation == last {
					break
				}
				from, to = to, from
			}
			s.w.count("fork")
			if is := x.home.titles.assess(q, m); !is.valid {
				s.w.fail("fork: node %d does not see that deeds prove it: nothing is tested", x.i)
			} else if x.home.titles.supersedes(m, is, q) {
				s.w.fail("fork: a former home takes %s back at node %d", name, x.i)
			}
		}
	}
}
