package identity

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/balefire/balefire/merkle"
	"github.com/balefire/balefire/proto"
)

func someLeaves(n int) [][32]byte {
	leaves := make([][32]byte, n)
	for i := range leaves {
		leaves[i] = sha256.Sum256(binary.BigEndian.AppendUint32(nil, uint32(i)))
	}
	return leaves
}

// slowRoot is the definition: fill up to a power of two, then hash pairs.
func slowRoot(leaves [][32]byte) [32]byte {
	level := append([][32]byte(nil), leaves...)
	for n := len(level); n&(n-1) != 0; n = len(level) {
		level = append(level, [32]byte{})
	}
	for len(level) > 1 {
		var up [][32]byte
		for i := 0; i < len(level); i += 2 {
			up = append(up, sha256.Sum256(append(append([]byte{1}, level[i][:]...), level[i+1][:]...)))
		}
		level = up
	}
	return level[0]
}

// Every leaf of a group of any size verifies at its index and at no other.
func TestEveryLeafOfAnyGroupVerifies(t *testing.T) {
	k, v := NewKeys(nil, today), NewVerifier()
	for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 255, 256, 257, 511, 512} {
		leaves := someLeaves(n)
		tree := newTree(leaves)
		if got, want := tree.Root(), slowRoot(leaves); got != want {
			t.Fatalf("root of %d leaves differs from its definition", n)
		}
		sig, proofs := k.SignGroup(leaves)
		for i, leaf := range leaves {
			if err := v.Verify(k.Peer(), leaf, proofs[i], sig); err != nil {
				t.Fatalf("leaf %d of %d: %v", i, n, err)
			}
		}
		last := proofs[n-1]
		for index := range uint32(1 << (len(last.Path) / 32)) {
			err := v.Verify(k.Peer(), leaves[n-1], Proof{index, last.Path}, sig)
			if (err == nil) != (index == last.Index) {
				t.Fatalf("leaf %d of %d at index %d: %v", n-1, n, index, err)
			}
			if n > 32 && index > 40 { // one signature check each
				break
			}
		}
	}
}

// A proof has one canonical form: no other index or path length proves the same leaf.
func TestImpossibleProofsAreRefused(t *testing.T) {
	k, v := NewKeys(nil, today), NewVerifier()
	leaves := someLeaves(5)
	sig, proofs := k.SignGroup(leaves)
	good := proofs[4]
	if err := v.Verify(k.Peer(), leaves[4], good, sig); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name  string
		proof Proof
		want  error
	}{
		{"an index beyond the path", Proof{good.Index + 8, good.Path}, ErrProof},
		{"the highest bit of the index", Proof{good.Index | 1<<31, good.Path}, ErrProof},
		{"half a step", Proof{good.Index, good.Path[:80]}, ErrProof},
		{"one byte more", Proof{good.Index, append(bytes.Clone(good.Path), 0)}, ErrProof},
		{"more steps than any group", Proof{0, make([]byte, 32*(maxSteps+1))}, ErrProof},
		{"a step less", Proof{0, good.Path[:64]}, ErrSignature},
		{"a step more", Proof{good.Index, append(bytes.Clone(good.Path), make([]byte, 32)...)}, ErrSignature},
		{"no path", Proof{}, ErrSignature},
		{"the path of a sibling", proofs[3], ErrSignature},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := v.Verify(k.Peer(), leaves[4], tt.proof, sig); !errors.Is(err, tt.want) {
				t.Errorf("err = %v, want %v", err, tt.want)
			}
		})
	}
	// An inner node is not a leaf: its path leads to the root, but leaf hashes have a
	// different prefix byte.
	inner := merkle.Join(&leaves[0], &leaves[1])
	if err := v.Verify(k.Peer(), inner, Proof{0, proofs[0].Path[32:]}, sig); err != nil {
		t.Errorf("a subtree's root does not lead to the root: %v", err)
	}
	for what := range byte(3) {
		if EnvelopeLeaf(leaves[0][:], leaves[1][:], what) == inner {
			t.Error("an envelope's leaf equals an inner node")
		}
	}
}

// A cached group matches only the same signer, root and signature.
func TestVerifierCachesWhatItVerified(t *testing.T) {
	k, other, v := NewKeys(nil, today), NewKeys(nil, today), NewVerifier()
	leaves := someLeaves(4)
	sig, proofs := k.SignGroup(leaves)
	otherSig, _ := other.SignGroup(leaves)
	if err := v.Verify(k.Peer(), leaves[0], proofs[0], sig); err != nil {
		t.Fatal(err)
	}
	changed := bytes.Clone(sig)
	changed[63] ^= 0x10
	for name, err := range map[string]error{
		"another signer":          v.Verify(other.Peer(), leaves[0], proofs[0], sig),
		"another's signature":     v.Verify(k.Peer(), leaves[0], proofs[0], otherSig),
		"a changed signature":     v.Verify(k.Peer(), leaves[0], proofs[0], changed),
		"a signature cut short":   v.Verify(k.Peer(), leaves[0], proofs[0], sig[:63]),
		"no signature":            v.Verify(k.Peer(), leaves[0], proofs[0], nil),
		"another leaf, same path": v.Verify(k.Peer(), leaves[1], proofs[0], sig),
	} {
		if !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v, want ErrSignature", name, err)
		}
	}
	if n := len(v.verified.current); n != 1 {
		t.Errorf("%d groups cached, want 1: failures are not cached", n)
	}
}

// I15: the cache is bounded and keeps values in use.
func TestCacheEvictsTheOldest(t *testing.T) {
	r := newCache[int, int](10)
	for i := range 1000 {
		r.put(i, i)
		if got, ok := r.get(0); !ok || got != 0 {
			t.Fatalf("the value in use was evicted after %d", i)
		}
		if n := len(r.current) + len(r.previous); n > 20 {
			t.Fatalf("%d values cached, want at most 20", n)
		}
	}
	for i := 991; i < 1000; i++ {
		if _, ok := r.get(i); !ok {
			t.Errorf("value %d is among the last ten and was evicted", i)
		}
	}
	if _, ok := r.get(500); ok {
		t.Error("an old value was kept")
	}
}

func statements(k *Keys, n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		s := proto.Statement{Fact: proto.FactAccepted, Task: proto.TaskID{0: 1, 15: byte(i)}, Node: k.Peer(), Time: today.UnixMilli()}
		out[i] = s.Append(nil)
	}
	return out
}

// One signature in an Ack gives every task a self-contained receipt.
func TestAckGivesEachTaskAReceipt(t *testing.T) {
	node, stranger := NewKeys(nil, today), NewKeys(nil, today)
	for _, n := range []int{1, 2, 3, 100, proto.MaxGroup} {
		said := statements(node, n)
		sig := node.SignAck(said)
		receipts, err := NewVerifier().AckReceipts(node.Peer(), said, sig)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range receipts {
			b, err := proto.Encode(nil, r)
			if err != nil {
				t.Fatal(err)
			}
			var back proto.Receipt
			if err := proto.Decode(b, &back); err != nil {
				t.Fatal(err)
			}
			s, err := VerifyReceipt(NewVerifier(), &back)
			if err != nil || s.Node != node.Peer() || s.Fact != proto.FactAccepted || s.Task[15] != byte(i) {
				t.Fatalf("receipt %d of %d: %v, %v", i, n, s, err)
			}
			if i > 20 { // one signature check each
				break
			}
		}
		if _, err := NewVerifier().AckReceipts(stranger.Peer(), said, sig); !errors.Is(err, ErrSignature) {
			t.Errorf("an ack in another node's name: %v", err)
		}
		if n > 1 {
			said[0], said[1] = said[1], said[0]
			if _, err := NewVerifier().AckReceipts(node.Peer(), said, sig); !errors.Is(err, ErrSignature) {
				t.Errorf("an ack with reordered statements: %v", err)
			}
		}
	}
	for _, n := range []int{0, proto.MaxGroup + 1} {
		if _, err := NewVerifier().AckReceipts(node.Peer(), statements(node, n), nil); !errors.Is(err, ErrProof) {
			t.Errorf("an ack of %d statements: %v", n, err)
		}
	}
}

// A receipt is valid only for its statement, node and index.
func TestChangedReceiptsAreRefused(t *testing.T) {
	node, other := NewKeys(nil, today), NewKeys(nil, today)
	fresh := func() *proto.Receipt { return node.Receipts(statements(node, 3))[1] }
	if _, err := VerifyReceipt(NewVerifier(), fresh()); err != nil {
		t.Fatal(err)
	}
	fields := map[string]func(*proto.Receipt) []byte{
		"statement": (*proto.Receipt).GetStatement, "path": (*proto.Receipt).GetPath, "signature": (*proto.Receipt).GetSignature,
	}
	for name, field := range fields {
		for i := range field(fresh()) {
			r := fresh()
			field(r)[i] ^= 1 << (i % 8)
			if _, err := VerifyReceipt(NewVerifier(), r); err == nil {
				t.Errorf("accepted with byte %d of its %s changed", i, name)
			}
		}
	}
	r := fresh()
	r.Index = 2
	if _, err := VerifyReceipt(NewVerifier(), r); !errors.Is(err, ErrSignature) {
		t.Errorf("another index: %v", err)
	}
	said := statements(node, 1) // signed by other instead of node
	if _, err := VerifyReceipt(NewVerifier(), other.Receipts(said)[0]); !errors.Is(err, ErrSignature) {
		t.Errorf("a statement in another's name: %v", err)
	}
	// A signature over the same bytes as an envelope is not valid as a statement.
	leaf := EnvelopeLeaf(said[0], nil, proto.WhatTask)
	sig, _ := node.SignGroup([][32]byte{leaf})
	if _, err := VerifyReceipt(NewVerifier(), &proto.Receipt{Statement: said[0], Signature: sig}); !errors.Is(err, ErrSignature) {
		t.Errorf("a signature of another domain: %v", err)
	}
	if _, err := VerifyReceipt(NewVerifier(), nil); !errors.Is(err, proto.ErrBadStatement) {
		t.Errorf("no receipt: %v", err)
	}
}

func TestGroupSizesOutOfRangePanic(t *testing.T) {
	for _, n := range []int{0, proto.MaxGroup + 1} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a group of %d was signed", n)
				}
			}()
			newTree(make([][32]byte, n))
		}()
	}
}

func BenchmarkSignGroup(b *testing.B) {
	k := NewKeys(nil, today)
	for _, n := range []int{1, 64, 512} {
		leaves := someLeaves(n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				k.SignGroup(leaves)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/task")
		})
	}
}
