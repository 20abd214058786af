package identity

import (
	"bytes"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// today is the current time in the tests.
var today = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// A sealFixture is an origin and a target in one mesh.
type sealFixture struct {
	root           *Root
	origin, target *Keys
	members        map[proto.PeerID]Member
	sealer         *Sealer
	clock          *clock.Manual
}

// newSealFixture creates a pair whose target has a sealing key of the suite.
func newSealFixture(tb testing.TB, suite byte) *sealFixture {
	tb.Helper()
	p := &sealFixture{
		root: NewRoot(nil), origin: NewKeys(nil, today), target: NewKeys(nil, today),
		members: make(map[proto.PeerID]Member), clock: clock.NewManual(today),
	}
	p.sealer = NewSealer(p.clock.Clock())
	if err := p.target.Rotate(suite, today); err != nil {
		tb.Fatal(err)
	}
	p.admit(tb, p.origin, "origin")
	p.admit(tb, p.target, "target")
	return p
}

func (p *sealFixture) admit(tb testing.TB, k *Keys, name string, roles ...string) *proto.Signed {
	tb.Helper()
	cert, err := p.root.IssueMember(Member{Peer: k.Peer(), Name: name, Roles: roles}, today)
	if err != nil {
		tb.Fatal(err)
	}
	m, err := p.root.Mesh().VerifyMember(cert, today)
	if err != nil {
		tb.Fatal(err)
	}
	p.members[k.Peer()] = m
	return cert
}

func (p *sealFixture) checks() *Checks {
	return &Checks{
		Mesh: p.root.Mesh(), Self: p.target.Peer(), Now: today, Verifier: NewVerifier(), Keys: p.target,
		Member: func(id proto.PeerID) (Member, bool) { m, ok := p.members[id]; return m, ok },
	}
}

// header returns the header of a valid task from the origin to the target.
func (p *sealFixture) header() *proto.Header {
	return &proto.Header{
		What: proto.WhatTask, Mesh: p.root.Mesh().ID, ID: proto.NewTaskID(today),
		Origin: p.origin.Peer(), Target: p.target.Peer(), Seq: proto.Seq{Boot: 7, Counter: 9},
		Created: today.UnixMilli(), NotAfter: today.Add(time.Hour).UnixMilli(),
	}
}

// seal seals content behind h for the target.
func (p *sealFixture) seal(tb testing.TB, h *proto.Header, content []byte) *proto.Envelope {
	tb.Helper()
	env, _, err := p.sealer.Seal(h, p.target.SealingKey(), content)
	if err != nil {
		tb.Fatal(err)
	}
	return env
}

// sign signs envelopes as one group.
func sign(k *Keys, envs ...*proto.Envelope) {
	leaves := make([][32]byte, len(envs))
	for i, env := range envs {
		leaves[i] = EnvelopeLeaf(env.GetHeader(), env.GetBody(), env.GetHeader()[1])
	}
	sig, proofs := k.SignGroup(leaves)
	for i, env := range envs {
		env.Signature, env.Index, env.Path = sig, proofs[i].Index, proofs[i].Path
	}
}

// good returns a valid envelope in a group of n.
func (p *sealFixture) good(tb testing.TB, content []byte, n int) *proto.Envelope {
	tb.Helper()
	envs := make([]*proto.Envelope, n)
	for i := range envs {
		envs[i] = p.seal(tb, p.header(), content)
	}
	sign(p.origin, envs...)
	return envs[n/2]
}

// codeOf returns the refusal in err, and fails for an error of another type.
func codeOf(tb testing.TB, err error) proto.Code {
	tb.Helper()
	refused, ok := errors.AsType[*CheckError](err)
	if !ok {
		tb.Fatalf("error is %T %v, want a *CheckError", err, err)
	}
	if refused.Code == proto.CodeOK || refused.Error() == "" {
		tb.Fatalf("a refusal without code or reason: %v", refused)
	}
	return refused.Code
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

// I9, I18: sealed content comes out unchanged for every suite and size, and no part of it
// is readable in the envelope.
func TestSealedContentComesOutUnchanged(t *testing.T) {
	text := bytes.Repeat([]byte("a canary sings in the mine. "), 2000)
	for suite := SuiteX25519AES; suite <= SuiteHybridAES; suite++ {
		p := newSealFixture(t, suite)
		for _, content := range [][]byte{{}, {7}, text[:1000], text, randomBytes(300), randomBytes(proto.MaxInlineBody), randomBytes(proto.MaxSealed - sealOverhead)} {
			h := p.header()
			env, key, err := p.sealer.Seal(h, p.target.SealingKey(), content)
			if err != nil {
				t.Fatal(err)
			}
			sign(p.origin, env)
			got, err := p.checks().Check(env)
			if err != nil {
				t.Fatalf("suite %d, %d bytes: %v", suite, len(content), err)
			}
			if !bytes.Equal(got.Content, content) || got.Key != key || got.Header.ID != h.ID {
				t.Errorf("suite %d, %d bytes: changed", suite, len(content))
			}
			carried, err := proto.Encode(nil, env)
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i+16 <= len(content); i += max(1, len(content)/100) {
				if bytes.Contains(carried, content[i:i+16]) {
					t.Fatalf("suite %d: the envelope shows bytes %d to %d of its content", suite, i, i+16)
				}
			}
		}
		if _, _, err := p.sealer.Seal(p.header(), p.target.SealingKey(), make([]byte, proto.MaxSealed)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("suite %d: oversized content: %v", suite, err)
		}
	}
}

// Text is compressed, noise is not, and neither grows by more than the documented overhead.
func TestSealCompressesOnlyWhatPays(t *testing.T) {
	p := newSealFixture(t, SuiteX25519AES)
	text := bytes.Repeat([]byte("a canary sings in the mine. "), 200)
	if env := p.seal(t, p.header(), text); len(env.GetBody()) > len(text)/4 {
		t.Errorf("%d bytes of text became %d", len(text), len(env.GetBody()))
	}
	if env := p.seal(t, p.header(), randomBytes(5000)); len(env.GetBody()) != 5000+sealOverhead {
		t.Errorf("5000 bytes of noise became %d", len(env.GetBody()))
	}
}

// Sealing to the key of a peer other than the target fails at once.
func TestSealRefusesAKeyOfAnotherPeer(t *testing.T) {
	p := newSealFixture(t, SuiteX25519AES)
	h := p.header()
	if _, _, err := p.sealer.Seal(h, p.origin.SealingKey(), nil); !errors.Is(err, ErrBadRecord) {
		t.Errorf("err = %v, want ErrBadRecord", err)
	}
}

// One encapsulation serves many tasks for at most an hour, and a new key of the recipient
// is used at once. Each wrapped key opens on its own, old ones too.
func TestEncapsulationIsSharedForAnHour(t *testing.T) {
	p := newSealFixture(t, SuiteX25519AES)
	enc := func() []byte { return p.good(t, []byte("x"), 1).GetSlot()[:wrappedKeyHead+32] }
	first := enc()
	p.clock.Advance(59 * time.Minute)
	if !bytes.Equal(enc(), first) {
		t.Error("a new encapsulation within the hour")
	}
	p.clock.Advance(time.Minute)
	second := enc()
	if bytes.Equal(second, first) {
		t.Error("the same encapsulation after an hour")
	}
	old := p.good(t, []byte("old"), 3)
	if err := p.target.Rotate(0, today); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(enc()[:wrappedKeyHead], second[:wrappedKeyHead]) {
		t.Error("the old key is used after a rotation")
	}
	if got, err := p.checks().Check(old); err != nil || string(got.Content) != "old" {
		t.Errorf("content sealed to the old key: %q, %v", got.Content, err)
	}
	w, err := p.sealer.encapsulation(p.target.SealingKey())
	if err != nil {
		t.Fatal(err)
	}
	w.uses.Store(maxEncapsulationUses)
	if again, err := p.sealer.encapsulation(p.target.SealingKey()); err != nil || again == w {
		t.Errorf("one encapsulation for more than %d wrapped keys: %v", maxEncapsulationUses, err)
	}
}

// Rewrapping its key makes a task readable with a new sealing key without a new signature.
func TestKeyCanBeRewrapped(t *testing.T) {
	p := newSealFixture(t, SuiteX25519AES)
	h := p.header()
	env, key, err := p.sealer.Seal(h, p.target.SealingKey(), []byte("again"))
	if err != nil {
		t.Fatal(err)
	}
	sign(p.origin, env)
	for suite := SuiteX25519AES; suite <= SuiteHybridAES; suite++ {
		if err := p.target.Rotate(suite, today); err != nil {
			t.Fatal(err)
		}
		if env.Slot, err = p.sealer.WrapKey(env.GetHeader(), p.target.SealingKey(), key); err != nil {
			t.Fatal(err)
		}
		if got, err := p.checks().Check(env); err != nil || string(got.Content) != "again" {
			t.Errorf("suite %d: %q, %v", suite, got.Content, err)
		}
	}
}
