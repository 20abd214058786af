package box

import (
	"iter"
	"maps"
	"slices"

	"github.com/balefire/balefire/fair"
	"github.com/balefire/balefire/proto"
)

// Boxes returns the boxes, ascending by id.
func (s *State) Boxes() []BoxID { return slices.Sorted(maps.Keys(s.boxes)) }

// Find returns the box with a name.
func (s *State) Find(name string) (BoxID, bool) {
	id, ok := s.names[name]
	return id, ok
}

// FindSub returns the subscription of a box with a name, "" of a mailbox.
func (s *State) FindSub(id BoxID, name string) (SubID, bool) {
	if b := s.boxes[id]; b != nil {
		for _, u := range b.subs {
			if u.settings.Name == name {
				return u.id, true
			}
		}
	}
	return 0, false
}

// NewBox returns the number for the next box.
func (s *State) NewBox() BoxID { return s.nextBox }

// NewSub returns the number for the next subscription of a topic, or 0.
func (s *State) NewSub(id BoxID) SubID {
	if b := s.boxes[id]; b != nil && b.settings.Kind == Topic {
		return b.nextSub
	}
	return 0
}

// NewOrigin returns the index for the next origin.
func (s *State) NewOrigin() uint32 { return uint32(len(s.peers)) + 1 }

// Origin returns the index of a peer from which mail came, or for which there is a PEER
// record; 0 if there is none.
func (s *State) Origin(p proto.PeerID) uint32 { return s.indexes[p] }

// OriginOf returns the index of the node that a mail which waits came from; 0: this one.
func (s *State) OriginOf(id BoxID, seq uint64) uint32 {
	if b := s.boxes[id]; b != nil {
		if m := b.mails.get(seq); m != nil {
			return m.origin
		}
	}
	return 0
}

// Peer returns the peer with an index.
func (s *State) Peer(index uint32) (proto.PeerID, bool) {
	if index == 0 || int64(index) > int64(len(s.peers)) {
		return proto.PeerID{}, false
	}
	return s.peers[index-1], true
}

// Boot returns the boot number of the newest start.
func (s *State) Boot() uint64 { return s.boot }

// Settings returns the settings of a box.
func (s *State) Settings(id BoxID) (BoxSettings, bool) {
	if b := s.boxes[id]; b != nil {
		return b.settings, true
	}
	return BoxSettings{}, false
}

// Limits returns the limits of the ledger.
func (s *State) Limits() Limits { return s.limits }

// An Info is what a box has.
type Info struct {
	Settings BoxSettings
	Next     uint64 // the sequence of the next mail
	Waiting  int    // mails that have not ended
	Bytes    int64  // of their letters
	Oldest   int64  // when the oldest of them was accepted, Unix milliseconds; 0: none
	Subs     []SubID
	Accepted [fair.Classes]uint64 // mails that it ever had, by class as package fair counts them
	ended    [mailStates]uint64
}

// EndedAs returns how many mails of the box have ended in a state.
func (i Info) EndedAs(state MailState) uint64 {
	if state >= mailStates {
		return 0
	}
	return i.ended[state]
}

// Info returns what a box has.
func (s *State) Info(id BoxID) (Info, bool) {
	b := s.boxes[id]
	if b == nil {
		return Info{}, false
	}
	i := Info{Settings: b.settings, Next: b.next, Accepted: b.accepted, Waiting: b.mails.count, Bytes: b.bytes, ended: b.ended}
	if _, m := b.mails.next(0); m != nil {
		i.Oldest = int64(m.accepted) * 1000
	}
	for _, u := range b.subs {
		i.Subs = append(i.Subs, u.id)
	}
	return i, true
}

// A SubInfo is what a subscription has.
type SubInfo struct {
	Settings SubSettings
	Leased   int
	Retrying int
	Dead     int
	Blocked  int // lanes
	Readers  []string
	Leaving  int // those of them that have deliveries and take no more
}

// SubInfo returns what a subscription has.
func (s *State) SubInfo(id BoxID, subID SubID) (SubInfo, bool) {
	u := s.find(id, subID)
	if u == nil {
		return SubInfo{}, false
	}
	i := SubInfo{Settings: u.settings, Retrying: len(u.retries), Dead: len(u.dead), Blocked: len(u.blocked)}
	for _, x := range u.sessions {
		i.Leased += x.held
		i.Readers = append(i.Readers, x.Reader)
		if x.leaving {
			i.Leaving++
		}
	}
	return i, true
}

// IsBlocked reports whether a dead letter blocks the lane of a key; origin is the index of
// the node whose lane it is, if the box separates them.
func (s *State) IsBlocked(id BoxID, subID SubID, origin uint32, key []byte) bool {
	u := s.find(id, subID)
	return u != nil && u.blocked[u.box.laneHash(origin, key)]
}

// A MailInfo is what is known of a mail without its letter.
type MailInfo struct {
	Seq      uint64
	Place    Place
	Length   int   // of the record at Place
	Size     int64 // of the letter
	Class    int   // as package fair counts them
	State    MailState
	Attempts uint8 // spent
	Abandons uint8
	Due      int64 // of a mail that is to be retried, Unix milliseconds; 0: not known
	Tries    []Try
}

// Mails returns the mails that have not ended for a subscription, or with subID 0 all that are in
// a spool or a topic, from a sequence on.
func (s *State) Mails(id BoxID, subID SubID, from uint64) iter.Seq[MailInfo] {
	return func(yield func(MailInfo) bool) {
		b, u := s.boxes[id], s.find(id, subID)
		if b == nil || u == nil && subID != 0 {
			return
		}
		for seq, m := b.mails.next(from); m != nil; seq, m = b.mails.next(seq + 1) {
			if (u == nil || u.wants(seq, m)) && !yield(u.mailInfo(seq, m)) {
				return
			}
		}
	}
}

// mailInfo returns what is known of a mail; of one in a spool, u is nil.
func (u *sub) mailInfo(seq uint64, m *mail) MailInfo {
	i := MailInfo{Seq: seq, Place: m.place, Length: m.length(), Size: m.bytes(), Class: m.class(), State: Waiting}
	if u == nil {
		return i
	}
	if r := u.retries[seq]; r != nil {
		i.State, i.Attempts, i.Abandons, i.Tries = Retrying, r.attempts, r.abandons, slices.Clone(r.tries)
		if r.at > 0 {
			i.Due = r.due
		}
	}
	if d := u.deliveries[seq]; d != nil && d.state == live {
		i.State = Leased
	}
	return i
}

// DeadLetters returns the dead letters of a subscription, from a sequence on.
func (s *State) DeadLetters(id BoxID, subID SubID, from uint64) iter.Seq[DeadLetter] {
	return func(yield func(DeadLetter) bool) {
		u := s.find(id, subID)
		if u == nil {
			return
		}
		i, _ := u.findDead(from)
		for _, d := range u.dead[i:] {
			if !yield(d) {
				return
			}
		}
	}
}

// A Kept is a record that the state refers to.
type Kept struct {
	Box    BoxID
	Seq    uint64
	Place  Place
	Length int   // of the record at Place
	Size   int64 // of the letter
}

// Mail returns the record of a mail that has not ended.
func (s *State) Mail(id BoxID, seq uint64) (Kept, bool) {
	if b := s.boxes[id]; b != nil {
		if m := b.mails.get(seq); m != nil {
			return Kept{id, seq, m.place, m.length(), m.bytes()}, true
		}
	}
	return Kept{}, false
}
