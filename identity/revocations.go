package identity

import (
	"bytes"
	"crypto/sha256"
	"slices"

	"github.com/balefire/balefire/proto"
)

// Revocations is a set of revocations in force. Two sets that received the same
// statements are equal, whatever the order:
//
//   - Those of the root are final. Only the root admits admins, and only the root
//     revokes them: see [Revocation.Revokes].
//   - Those of an admin are void once the set has the root's revocation of the admin,
//     or of the certificate that the admin signed with, even those added before:
//     who signed them, and when, is unknown. They are removed and not accepted again.
//
// The zero value is empty. It is not safe for concurrent use.
type Revocations struct {
	byID    map[[32]byte]Revocation // by their ids
	ids     [][32]byte              // sorted
	peers   map[proto.PeerID][]Revocation
	serials map[[16]byte][]Revocation
	admins  int // how many are by admins

	digestValid bool
	digest      [32]byte
}

// Add adds r. It reports whether r is in the set now, and which others it has
// made void and removed.
func (s *Revocations) Add(r Revocation) (taken bool, void []Revocation) {
	id := r.ID()
	if s.Has(id) {
		return true, nil
	}
	if s.IsVoid(r) {
		return false, nil
	}
	if s.byID == nil {
		s.byID = make(map[[32]byte]Revocation)
		s.peers = make(map[proto.PeerID][]Revocation)
		s.serials = make(map[[16]byte][]Revocation)
	}
	void = s.VoidedBy(r)
	s.byID[id] = r
	at, _ := s.search(id)
	s.ids = slices.Insert(s.ids, at, id)
	s.digestValid = false
	if r.Peer.IsZero() {
		s.serials[r.Serial] = append(s.serials[r.Serial], r)
	} else {
		s.peers[r.Peer] = append(s.peers[r.Peer], r)
	}
	if r.Admin() {
		s.admins++
	}
	s.drop(void)
	return true, void
}

// VoidedBy returns the revocations in the set that r makes void.
func (s *Revocations) VoidedBy(r Revocation) (void []Revocation) {
	if r.Admin() || s.admins == 0 {
		return nil
	}
	for _, id := range s.ids {
		if o := s.byID[id]; o.Admin() && r.Revokes(o.Issuer) {
			void = append(void, o)
		}
	}
	return void
}

// drop removes these revocations.
func (s *Revocations) drop(void []Revocation) {
	if len(void) == 0 {
		return
	}
	for _, r := range void {
		delete(s.byID, r.ID())
	}
	s.ids = slices.DeleteFunc(s.ids, func(id [32]byte) bool { return !s.Has(id) })
	gone := func(r Revocation) bool { return !s.Has(r.ID()) }
	for _, r := range void {
		if r.Peer.IsZero() {
			prune(s.serials, r.Serial, gone)
		} else {
			prune(s.peers, r.Peer, gone)
		}
	}
	s.admins -= len(void)
}

// prune removes from the list of key the revocations for which gone returns true.
func prune[K comparable](lists map[K][]Revocation, key K, gone func(Revocation) bool) {
	if lists[key] = slices.DeleteFunc(lists[key], gone); len(lists[key]) == 0 {
		delete(lists, key)
	}
}

// IsVoid reports whether r has no effect: the root revoked its signer.
func (s *Revocations) IsVoid(r Revocation) bool {
	if !r.Admin() {
		return false
	}
	_, void := s.find(r.Issuer, func(o Revocation) bool { return !o.Admin() })
	return void
}

// Find returns a revocation that ends the membership of m.
func (s *Revocations) Find(m Member) (Revocation, bool) {
	return s.find(m, func(Revocation) bool { return true })
}

// Revokes reports whether m was revoked.
func (s *Revocations) Revokes(m Member) bool {
	_, is := s.Find(m)
	return is
}

func (s *Revocations) find(m Member, counts func(Revocation) bool) (Revocation, bool) {
	for _, all := range [][]Revocation{s.peers[m.Peer], s.serials[m.Serial]} {
		for _, r := range all {
			if counts(r) && r.Revokes(m) {
				return r, true
			}
		}
	}
	return Revocation{}, false
}

// Has reports whether the revocation with that id is in the set.
func (s *Revocations) Has(id [32]byte) bool { _, ok := s.byID[id]; return ok }

// Get returns the revocation with that id.
func (s *Revocations) Get(id [32]byte) (Revocation, bool) { r, ok := s.byID[id]; return r, ok }

// Len returns how many revocations there are, and how many of them are by admins.
func (s *Revocations) Len() (all, admins int) { return len(s.ids), s.admins }

// IDs returns the ids above after, up to and including until (zero: to the last),
// in order. The slice must not be modified and is valid until the next Add.
func (s *Revocations) IDs(after, until [32]byte) [][32]byte {
	from, found := s.search(after)
	if found {
		from++
	}
	to := len(s.ids)
	if until != ([32]byte{}) {
		if to, found = s.search(until); found {
			to++
		}
	}
	return s.ids[from:max(from, to)]
}

// Digest returns the SHA-256 of all ids in order, zero for none: two sets are
// equal if their digests are.
func (s *Revocations) Digest() [32]byte {
	if len(s.ids) == 0 {
		return [32]byte{}
	}
	if !s.digestValid {
		h := sha256.New()
		for i := range s.ids {
			h.Write(s.ids[i][:])
		}
		h.Sum(s.digest[:0])
		s.digestValid = true
	}
	return s.digest
}

// search returns the index where id is, or would be inserted.
func (s *Revocations) search(id [32]byte) (int, bool) {
	return slices.BinarySearchFunc(s.ids, id, func(a, b [32]byte) int { return bytes.Compare(a[:], b[:]) })
}
