package identity

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

var update = flag.Bool("update", false, "rewrite testdata: breaks all existing records")

// goldenFixture uses fixed seeds; its target has a key of each suite.
func goldenFixture(t *testing.T) *sealFixture {
	p := newSealFixture(t, SuiteX25519AES)
	p.root, p.origin, p.target = NewRoot(seeded(1)), NewKeys(seeded(2), today), NewKeys(seeded(3), today)
	for suite := SuiteX25519AES; suite <= SuiteHybridAES; suite++ {
		key, err := newSealingKey(seeded(10+uint64(suite)), suite, 1+uint64(suite), today)
		if err != nil {
			t.Fatal(err)
		}
		p.target.add(key)
	}
	p.admit(t, p.origin, "origin")
	return p
}

// golden returns the stored bytes of an earlier version, or stores fresh ones with -update.
func golden(t *testing.T, name string, fresh func() []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(hex.EncodeToString(fresh())+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Envelopes of an earlier version still open, for each suite (S56).
func TestGoldenEnvelopesOpen(t *testing.T) {
	p := goldenFixture(t)
	for suite := SuiteX25519AES; suite <= SuiteHybridAES; suite++ {
		want := bytes.Repeat([]byte("kept for years. "), 20)
		b := golden(t, fmt.Sprint("envelope-suite", suite), func() []byte {
			key, _ := newSealingKey(seeded(10+uint64(suite)), suite, 1, today)
			key.record.Peer = p.target.Peer()
			env, _, err := p.sealer.Seal(p.header(), key.record, want)
			if err != nil {
				t.Fatal(err)
			}
			sign(p.origin, env, p.good(t, nil, 1), p.good(t, nil, 1))
			b, err := proto.Encode(nil, env)
			if err != nil {
				t.Fatal(err)
			}
			return b
		})
		var env proto.Envelope
		if err := proto.Decode(b, &env); err != nil {
			t.Fatal(err)
		}
		if got, err := p.checks().Check(&env); err != nil || !bytes.Equal(got.Content, want) || got.Header.Suite != suite {
			t.Errorf("suite %d: %q, %v", suite, got.Content, err)
		}
	}
}

// Values derived from fixed input are the same in every version.
func TestGoldenValues(t *testing.T) {
	p := goldenFixture(t)
	signed := func(s *proto.Signed) []byte {
		b, err := proto.Encode(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	cert, err := p.root.IssueMember(Member{Peer: p.origin.Peer(), Name: "origin", Serial: [16]byte{1}}, today)
	if err != nil {
		t.Fatal(err)
	}
	sig, proofs := p.origin.SignGroup(someLeaves(5))
	ticket := Ticket{
		Mesh: p.root.Mesh().ID, RootFingerprint: p.root.Mesh().Fingerprint(), Inviter: p.origin.Peer(),
		Addrs: homeAddrs, Secret: [16]byte{1, 2, 3}, Expires: today.Add(time.Hour),
	}
	header := p.header()
	header.ID, header.Commitment = proto.TaskID{1}, commitment(&[32]byte{7})
	task := EnvelopeLeaf(header.Append(nil), []byte("body"), proto.WhatTask)
	result := EnvelopeLeaf(header.Append(nil), []byte("body"), proto.WhatResult)
	for name, got := range map[string][]byte{
		"certificate":    signed(cert),
		"key-record":     signed(p.target.KeyRecord()),
		"group":          append(bytes.Clone(sig), proofs[4].Path...),
		"receipts":       p.origin.SignAck(statements(p.origin, 3)),
		"ticket":         []byte(ticket.Encode()),
		"join-proof":     JoinProof(ticket.Secret, p.target.Peer(), ticket.Inviter),
		"leaf-of-task":   task[:],
		"leaf-of-result": result[:],
		"node-record":    signed(newLivenessFixture(t).record),
		"accusation":     signed(newLivenessFixture(t).accusation),
		"revocation":     signed(newLivenessFixture(t).byAdmin),
	} {
		if want := golden(t, name, func() []byte { return got }); !bytes.Equal(got, want) {
			t.Errorf("%s = %x, want %x", name, got, want)
		}
	}
}
