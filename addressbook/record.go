package addressbook

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// A Peer is the book's knowledge about one node.
type Peer struct {
	Peer      proto.PeerID
	Name      string             // in its certificate; empty: unknown
	Alias     string             // set by an operator here; empty: none
	Member    identity.Member    // zero: its certificate is unknown
	KeyRecord identity.KeyRecord // the key to seal with; zero: unknown
	Addrs     []string           // addresses that it announced
	Relays    []proto.PeerID     // relays that it announced
	Blocked   bool
	Boot      uint64 // highest known
	BootID    proto.BootID
	LastSeen  time.Time // time of its last hello; zero: never
	Added     time.Time

	cert, key *proto.Signed // sources of Member and KeyRecord
}

// Label returns the peer's display name: its alias, its name, or its id if no name is
// known.
func (p *Peer) Label() string {
	if name := cmp.Or(p.Alias, p.Name); name != "" {
		return name
	}
	return p.Peer.String() // computed last, as it is slow
}

// Known returns an introduction of the peer, or nil if its certificate or key record is
// unknown.
func (p *Peer) Known() *proto.KnownPeer {
	if p.cert == nil || p.key == nil {
		return nil
	}
	return &proto.KnownPeer{Certificate: p.cert, KeyRecord: p.key, Addrs: p.Addrs[:min(len(p.Addrs), proto.MaxAddrs)]}
}

// A record is a Peer on disk.
type record struct {
	Certificate []byte   `json:"certificate,omitempty"` // proto.Signed
	KeyRecord   []byte   `json:"key_record,omitempty"`  // proto.Signed
	Alias       string   `json:"alias,omitempty"`
	Relays      [][]byte `json:"relays,omitempty"`
	Addrs       []string `json:"addrs,omitempty"`
	Blocked     bool     `json:"blocked,omitempty"`
	Boot        uint64   `json:"boot,omitempty"`
	BootID      []byte   `json:"boot_id,omitempty"`
	LastSeenMs  int64    `json:"last_seen_ms,omitempty"`
	AddedMs     int64    `json:"added_ms,omitempty"`
}

// errRecord is returned for an unreadable record of the book.
var errRecord = errors.New("addressbook: bad record")

func (p *Peer) encode() ([]byte, error) {
	r := record{
		Alias: p.Alias, Addrs: p.Addrs, Blocked: p.Blocked, Boot: p.Boot,
		BootID: p.BootID[:], LastSeenMs: millis(p.LastSeen), AddedMs: millis(p.Added),
	}
	for _, id := range p.Relays {
		r.Relays = append(r.Relays, id[:])
	}
	var err error
	if p.cert != nil {
		if r.Certificate, err = proto.Encode(nil, p.cert); err != nil {
			return nil, err
		}
	}
	if p.key != nil {
		if r.KeyRecord, err = proto.Encode(nil, p.key); err != nil {
			return nil, err
		}
	}
	return json.Marshal(r)
}

// decodePeer decodes the record of id. It verifies the signatures again, as data on disk
// may have been modified. A certificate of another mesh or an invalid key record is
// dropped without an error.
func decodePeer(id proto.PeerID, b []byte, mesh identity.Mesh, now time.Time) (*Peer, error) {
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errRecord, id, err)
	}
	p := &Peer{
		Peer: id, Alias: r.Alias, Addrs: r.Addrs, Blocked: r.Blocked, Boot: r.Boot,
		LastSeen: fromMillis(r.LastSeenMs), Added: fromMillis(r.AddedMs),
	}
	for _, b := range r.Relays {
		if relay, err := proto.PeerIDFrom(b); err == nil {
			p.Relays = append(p.Relays, relay)
		}
	}
	if len(r.BootID) == len(p.BootID) {
		p.BootID = proto.BootID(r.BootID)
	}
	if s := decodeSigned(r.Certificate); s != nil {
		if m, err := mesh.VerifyMember(s, now); genuine(err) && m.Peer == id {
			p.setCertificate(m, s)
		}
	}
	if s := decodeSigned(r.KeyRecord); s != nil {
		if k, err := identity.VerifyKeyRecord(s, id, now); genuine(err) {
			p.KeyRecord, p.key = k, s
		}
	}
	return p, nil
}

// setCertificate sets a verified certificate.
func (p *Peer) setCertificate(m identity.Member, s *proto.Signed) {
	p.Member, p.Name, p.cert = m, m.Name, s
}

// genuine reports whether a previously accepted statement is still genuine, even if the
// clock was set back since.
func genuine(err error) bool { return acceptable(err) || errors.Is(err, identity.ErrNotYet) }

// acceptable reports whether a statement is genuine, possibly expired.
func acceptable(err error) bool { return err == nil || errors.Is(err, identity.ErrExpired) }

func decodeSigned(b []byte) *proto.Signed {
	s := new(proto.Signed)
	if len(b) == 0 || proto.Decode(b, s) != nil {
		return nil
	}
	return s
}

// clone returns a copy that the caller may keep.
func (p *Peer) clone() Peer {
	c := *p
	c.Addrs, c.Relays = slices.Clone(p.Addrs), slices.Clone(p.Relays)
	return c
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
