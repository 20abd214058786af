package gossip

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// A Line of a digest states the newest that a node knows about another.
type Line struct {
	Peer        proto.PeerID
	Incarnation uint64
	Revision    uint64
	Liveness    proto.Liveness
}

// supersedes ranks liveness: a node that missed a verdict does not make a dead node
// appear alive.
func (l Line) supersedes(o Line) bool { return l.Liveness > o.Liveness }

// An Ask begins or continues an exchange: it holds the asker's lines of the peers after
// After, up to and including Until.
type Ask struct {
	Lines   []Line
	After   proto.PeerID // zero: from the beginning
	Until   proto.PeerID // zero: to the end
	Updates []*Update    // requested by the previous answer
}

// covers reports whether p is in the range of a.
func (a *Ask) covers(p proto.PeerID) bool {
	return p.Compare(a.After) > 0 && (a.Until.IsZero() || p.Compare(a.Until) <= 0)
}

// An Answer contains what the asker is missing, and requests what the asker knows better,
// both in order of peers. More: there is more after the last of them and LastRevocation.
type Answer struct {
	Updates        []*Update
	Wanted         []proto.PeerID
	LastRevocation proto.PeerID // id of the last revocation received with it; zero: none
	More           bool
}

// lastKey returns the key up to which the answer is complete.
func (a *Answer) lastKey() proto.PeerID {
	last := a.LastRevocation
	if n := len(a.Updates); n > 0 && a.Updates[n-1].Peer.Compare(last) > 0 {
		last = a.Updates[n-1].Peer
	}
	if n := len(a.Wanted); n > 0 && a.Wanted[n-1].Compare(last) > 0 {
		last = a.Wanted[n-1]
	}
	return last
}

// A digest is what this node knows, in order of peers, with its hash. It is cached until
// something changes and never modified: others hold its lines.
type digest struct {
	lines  []Line
	root   [32]byte
	hashed bool
}

// digest returns what this node knows, including itself, in order of peers.
func (c *Core) digest() *digest {
	if c.cachedDigest != nil {
		return c.cachedDigest
	}
	d := &digest{lines: make([]Line, 0, len(c.members)+1)}
	d.lines = append(d.lines, Line{c.self, c.own.incarnation, c.own.revision, proto.Alive})
	for _, m := range c.members {
		if m.status != Unknown {
			d.lines = append(d.lines, Line{m.id, m.incarnation, m.revision(), m.status.liveness()})
		}
	}
	slices.SortFunc(d.lines, func(a, b Line) int { return a.Peer.Compare(b.Peer) })
	c.cachedDigest = d
	return d
}

// Root returns the hash of what this node knows about all nodes that are not gone. Two
// nodes with the same root know the same.
func (c *Core) Root() [32]byte {
	d := c.digest()
	if d.hashed {
		return d.root
	}
	h := sha256.New()
	var b [32 + 8 + 8 + 1]byte
	for _, l := range d.lines {
		if l.Liveness == proto.Dead {
			continue // each node forgets the dead at a different time
		}
		copy(b[:], l.Peer[:])
		binary.BigEndian.PutUint64(b[32:], l.Incarnation)
		binary.BigEndian.PutUint64(b[40:], l.Revision)
		b[48] = byte(l.Liveness)
		h.Write(b[:])
	}
	h.Sum(d.root[:0])
	d.hashed = true
	return d.root
}

// Ask returns the next step of an exchange: the lines after after, as many as fit in one
// message, and the wanted updates.
func (c *Core) Ask(after proto.PeerID, wanted []proto.PeerID) *Ask {
	a := &Ask{After: after}
	lines := c.digest().lines
	at, found := slices.BinarySearchFunc(lines, after, func(l Line, p proto.PeerID) int { return l.Peer.Compare(p) })
	if found {
		at++
	}
	a.Lines = lines[at:]
	if len(a.Lines) > proto.MaxDigests {
		a.Lines = a.Lines[:proto.MaxDigests]
		a.Until = a.Lines[proto.MaxDigests-1].Peer
	}
	for _, p := range wanted {
		if updates := c.updatesFor(p); len(a.Updates)+len(updates) <= proto.MaxRumors {
			a.Updates = append(a.Updates, updates...)
		}
	}
	return a
}

// recentlyDead is how long a dead node is reported to nodes that never heard of it.
const recentlyDead = 10 * time.Minute

// Answer processes another node's ask: it applies its updates and returns what the asker
// is missing.
func (c *Core) Answer(now time.Duration, from proto.PeerID, a *Ask) (*Answer, []Action) {
	c.begin(now)
	c.lastHeard = now
	c.learn(now, from, a.Updates)
	if m := c.members[from]; m != nil {
		m.synced = now
	}
	ans := &Answer{}
	mine := c.digest().lines
	at, _ := slices.BinarySearchFunc(mine, a.After, func(l Line, p proto.PeerID) int { return l.Peer.Compare(p) })
	for rest := a.Lines; ; {
		for at < len(mine) && !a.covers(mine[at].Peer) && mine[at].Peer.Compare(a.After) <= 0 {
			at++
		}
		have := at < len(mine) && a.covers(mine[at].Peer)
		if !have && len(rest) == 0 {
			break
		}
		// Stop before the largest step, a record and some accusations, might not fit.
		if len(ans.Updates) > proto.MaxRumors-4 || len(ans.Wanted) >= proto.MaxRumors {
			ans.More = true
			break
		}
		switch {
		case !have || len(rest) > 0 && rest[0].Peer.Compare(mine[at].Peer) < 0:
			c.answerUnknown(ans, rest[0])
			rest = rest[1:]
		case len(rest) == 0 || mine[at].Peer.Compare(rest[0].Peer) < 0:
			c.answerMissing(now, ans, mine[at])
			at++
		default:
			c.answerKnown(ans, mine[at], rest[0])
			at, rest = at+1, rest[1:]
		}
	}
	return ans, c.end(now)
}

// answerUnknown answers a line of a node that is unknown here.
func (c *Core) answerUnknown(ans *Answer, theirs Line) {
	switch {
	case !c.tombstones.covers(theirs.Peer, theirs.Incarnation):
		if c.members[theirs.Peer] == nil && len(c.members) >= c.t.MaxMembers {
			return // the member table is full
		}
		ans.Wanted = append(ans.Wanted, theirs.Peer)
	case theirs.Liveness != proto.Dead:
		ans.Updates = append(ans.Updates, c.signer.Accuse(theirs.Peer, theirs.Incarnation, proto.Dead))
	}
}

// answerMissing answers for a member that the asker does not have.
func (c *Core) answerMissing(now time.Duration, ans *Answer, mine Line) {
	if m := c.members[mine.Peer]; m != nil && m.gone() && now-m.since > recentlyDead {
		return // the asker may have pruned it
	}
	ans.Updates = append(ans.Updates, c.updatesFor(mine.Peer)...)
}

// answerKnown answers a line that both nodes have.
func (c *Core) answerKnown(ans *Answer, mine, theirs Line) {
	newer := mine.Incarnation > theirs.Incarnation ||
		mine.Incarnation == theirs.Incarnation && (mine.Revision > theirs.Revision || mine.supersedes(theirs))
	older := mine.Incarnation < theirs.Incarnation ||
		mine.Incarnation == theirs.Incarnation && (mine.Revision < theirs.Revision || theirs.supersedes(mine))
	if newer {
		ans.Updates = append(ans.Updates, c.updatesFor(mine.Peer)...)
	}
	if older {
		ans.Wanted = append(ans.Wanted, mine.Peer)
	}
}

// updatesFor returns what is known about p: its record and, if it is SUSPECT or DEAD, the
// accusations.
func (c *Core) updatesFor(p proto.PeerID) []*Update {
	if p == c.self {
		return []*Update{c.own.record}
	}
	m := c.members[p]
	if m == nil || m.record == nil {
		return nil
	}
	updates := []*Update{m.record}
	if m.suspicion != nil {
		updates = append(updates, m.suspicion.by[:min(len(m.suspicion.by), 3)]...)
	}
	return updates
}

// Answered processes the answer to an ask. It returns the next ask; nil: the exchange is
// complete.
func (c *Core) Answered(now time.Duration, from proto.PeerID, a *Ask, ans *Answer) (*Ask, []Action) {
	c.begin(now)
	c.lastHeard = now
	c.learn(now, from, ans.Updates)
	if m := c.members[from]; m != nil {
		m.synced = now
	}
	var next *Ask
	switch {
	case ans.More && ans.lastKey().Compare(a.After) > 0:
		next = c.Ask(ans.lastKey(), ans.Wanted)
	case !a.Until.IsZero():
		next = c.Ask(a.Until, ans.Wanted)
	case len(ans.Wanted) > 0:
		// Only the wanted updates: all lines have been compared.
		next = c.Ask(maxPeerID, ans.Wanted)
	}
	return next, c.end(now)
}

// maxPeerID sorts after every peer.
var maxPeerID = func() (p proto.PeerID) {
	for i := range p {
		p[i] = 0xff
	}
	return p
}()
