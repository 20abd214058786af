package identity

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/balefire/balefire/proto"
)

// The fuzz targets check for arbitrary bytes what the bad-input tests check for chosen
// ones: no panic, a typed error, and nothing accepted that its author did not sign. Keys
// come from a fixed seed, so that a corpus is valid in every process; sealed content
// differs between processes.

// seeded returns deterministic randomness.
func seeded(n uint64) *rand.ChaCha8 {
	var seed [32]byte
	binary.BigEndian.PutUint64(seed[:], n)
	return rand.NewChaCha8(seed)
}

func fuzzFixture(f *testing.F) *sealFixture {
	p := newSealFixture(f, SuiteX25519AES)
	p.root, p.origin, p.target = NewRoot(seeded(1)), NewKeys(seeded(2), today), NewKeys(seeded(3), today)
	p.admit(f, p.origin, "origin")
	return p
}

func FuzzCheck(f *testing.F) {
	p := fuzzFixture(f)
	for _, in := range badEnvelopes(f, p) {
		if b, err := proto.Encode(nil, in.env); err == nil && in.env != nil {
			f.Add(b)
		}
	}
	good := p.good(f, []byte("run tests"), 3)
	b, err := proto.Encode(nil, good)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	c := p.checks()
	f.Fuzz(func(t *testing.T, b []byte) {
		var env proto.Envelope
		if proto.Decode(b, &env) != nil {
			return
		}
		got, err := c.Check(&env)
		if err != nil {
			codeOf(t, err)
		} else if got.Header.Origin != p.origin.Peer() || string(got.Content) != "run tests" {
			t.Fatal("a forged envelope was accepted")
		}
	})
}

func FuzzTicket(f *testing.F) {
	ticket, _ := someTicket()
	f.Add(ticket.Encode())
	f.Add("BALE1")
	f.Add("bale1 aaaa-aaaa")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseTicket(text)
		if err != nil {
			if !errors.Is(err, ErrTicket) {
				t.Fatalf("error of another type: %v", err)
			}
			return
		}
		again, err := ParseTicket(got.Encode())
		if err != nil || again.Encode() != got.Encode() || again.Secret != got.Secret {
			t.Fatalf("a ticket does not survive a round trip: %v", err)
		}
	})
}

// FuzzTicketAddrs fuzzes the code after the checksum.
func FuzzTicketAddrs(f *testing.F) {
	f.Add(appendAddrs(nil, homeAddrs, 100))
	f.Add([]byte{0x83, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		addrs, err := parseAddrs(b)
		if err != nil {
			return
		}
		for _, addr := range addrs {
			if _, ok := splitAddr(addr); !ok {
				t.Fatalf("address %q does not belong into a ticket", addr)
			}
		}
	})
}

func FuzzMember(f *testing.F) {
	c := &memberFixture{root: NewRoot(seeded(1)), admin: NewKeys(seeded(2), today), worker: NewKeys(seeded(3), today)}
	c.mesh = c.root.Mesh()
	var err error
	if c.adminCert, err = c.root.IssueMember(Member{Peer: c.admin.Peer(), Name: "boss", Roles: []string{RoleAdmin}}, today); err != nil {
		f.Fatal(err)
	}
	d := c.details()
	for _, cert := range []*proto.Signed{c.adminCert, signMember(f, c.admin.private, c.adminCert, d)} {
		b, err := proto.Encode(nil, cert)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, false)
		f.Add(cert.GetDetails(), true)
	}
	f.Fuzz(func(t *testing.T, b []byte, sign bool) {
		s := signDetails(c.root.private, domainMember, b) // to get past the signature check
		if !sign {
			if s = new(proto.Signed); proto.Decode(b, s) != nil {
				return
			}
		}
		m, err := c.mesh.VerifyMember(s, today)
		if err != nil {
			return
		}
		if !IsLabel(m.Name) || checkKey(m.Peer) != nil || m.NotAfter.Sub(m.NotBefore) > MaxMemberLife+2*proto.Skew {
			t.Fatalf("accepted: %+v", m)
		}
		if !sign && m.Peer != c.admin.Peer() && m.Peer != c.worker.Peer() {
			t.Fatalf("accepted a member that was never admitted: %+v", m)
		}
	})
}

func FuzzKeyRecord(f *testing.F) {
	k := NewKeys(seeded(1), today)
	for suite := SuiteX25519AES; suite <= SuiteHybridAES; suite++ {
		key, err := newSealingKey(seeded(uint64(suite)), suite, 7, today)
		if err != nil {
			f.Fatal(err)
		}
		k.add(key)
		f.Add(key.signed.GetDetails(), true)
	}
	b, err := proto.Encode(nil, k.KeyRecord())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, false)
	f.Fuzz(func(t *testing.T, b []byte, sign bool) {
		s := signDetails(k.private, domainKey, b)
		if !sign {
			if s = new(proto.Signed); proto.Decode(b, s) != nil {
				return
			}
		}
		r, err := VerifyKeyRecord(s, k.Peer(), today)
		if err != nil {
			return
		}
		if _, err := encapsulate(r); err != nil {
			t.Fatalf("accepted a key record that cannot be sealed to: %v", err)
		}
		if _, mine := k.find(r.ID); !sign && !mine {
			t.Fatal("accepted a key record that its peer did not sign")
		}
	})
}

// FuzzLiveness fuzzes node records, accusations and revocations: forged ones are refused,
// and accepted ones are well formed.
func FuzzLiveness(f *testing.F) {
	w := newLivenessFixture(f)
	for i, s := range []*proto.Signed{w.record, w.accusation, w.revocation, w.byAdmin} {
		b, err := proto.Encode(nil, s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), false, b)
		f.Add(uint8(i), true, s.GetDetails())
	}
	f.Fuzz(func(t *testing.T, kind uint8, sign bool, b []byte) {
		domain, key := domainNode, w.keys.private
		switch kind % 3 {
		case 1:
			domain = domainAccusation
		case 2:
			domain, key = domainRevocation, w.root.private
		}
		s := signDetails(key, domain, b)
		if !sign {
			if s = new(proto.Signed); proto.Decode(b, s) != nil {
				return
			}
		}
		if r, err := w.mesh.VerifyNode(s); err == nil && (proto.PeerID(r.GetPeer()) != w.keys.Peer() || r.GetIncarnation()+1 == 0) {
			t.Fatalf("a node record was accepted: %v", r)
		}
		if a, err := w.mesh.VerifyAccusation(s); err == nil && (proto.PeerID(a.GetAccuser()) != w.keys.Peer() || bytes.Equal(a.GetPeer(), a.GetAccuser())) {
			t.Fatalf("an accusation was accepted: %v", a)
		}
		if r, err := w.mesh.VerifyRevocation(s); err == nil && r.Peer.IsZero() == (r.Serial == [16]byte{}) && !sign {
			t.Fatalf("a revocation was accepted: %+v", r)
		}
	})
}

func FuzzWrappedKey(f *testing.F) {
	k := NewKeys(seeded(1), today)
	s := NewSealer(newSealFixture(f, SuiteX25519AES).clock.Clock())
	header, key := []byte("some header"), [32]byte{1, 2, 3}
	for suite := SuiteX25519AES; suite <= SuiteHybridAES; suite++ {
		own, err := newSealingKey(seeded(uint64(suite)), suite, 7, today)
		if err != nil {
			f.Fatal(err)
		}
		k.add(own)
		wrapped, err := s.WrapKey(header, own.record, key)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wrapped)
		f.Add(wrapped[:len(wrapped)-1])
	}
	f.Fuzz(func(t *testing.T, wrapped []byte) {
		got, err := k.unwrapKey(header, wrapped)
		if err != nil && (!errors.Is(err, ErrBadKey) || got != [32]byte{}) {
			t.Fatalf("%v, with a key %v", err, got != [32]byte{})
		}
	})
}

func FuzzReceipt(f *testing.F) {
	k := NewKeys(seeded(1), today)
	said := statements(k, 5)
	receipts := k.Receipts(said)
	for _, r := range receipts {
		b, err := proto.Encode(nil, r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{})
	v := NewVerifier()
	f.Fuzz(func(t *testing.T, b []byte) {
		var r proto.Receipt
		if proto.Decode(b, &r) != nil {
			return
		}
		s, err := VerifyReceipt(v, &r)
		if err != nil || s.Node != k.Peer() { // signed with its own key, so it is valid
			return
		}
		for _, known := range said {
			if bytes.Equal(known, r.GetStatement()) {
				return
			}
		}
		t.Fatalf("a forged receipt was accepted: %+v", s)
	})
}

func FuzzKeyFile(f *testing.F) {
	f.Add([]byte("-----BEGIN BALEFIRE NODE KEY-----\nAAAA\n-----END BALEFIRE NODE KEY-----\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		body, err := parseKeyFile("node.key", nodeKeyType, b)
		if err != nil && (!errors.Is(err, ErrKeyFile) || body != nil) {
			t.Fatalf("error of another type, or with a key: %v", err)
		}
	})
}
