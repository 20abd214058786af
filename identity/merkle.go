package identity

import (
	"errors"
	"fmt"

	"github.com/balefire/balefire/merkle"
	"github.com/balefire/balefire/proto"
)

// ErrProof is returned for a proof that no group of this protocol can have.
var ErrProof = errors.New("identity: impossible proof")

// maxSteps bounds a path: 2^10 leaves, more than a group may have.
const maxSteps = 10

// A Proof leads from a leaf to the root of its group.
type Proof struct {
	Index uint32 // the leaf's index, below 2^steps
	Path  []byte // the sibling hashes on the way to the root, 32 bytes each
}

// newTree hashes 1 to proto.MaxGroup leaves together.
func newTree(leaves [][32]byte) merkle.Tree {
	if len(leaves) < 1 || len(leaves) > proto.MaxGroup {
		panic(fmt.Sprintf("identity: a group of %d leaves", len(leaves)))
	}
	return merkle.New(leaves)
}

// proofsOf returns the proof of each leaf.
func proofsOf(t merkle.Tree) []Proof {
	all := make([]Proof, len(t[0]))
	paths := make([]byte, 0, len(all)*32*(len(t)-1))
	for i := range all {
		from := len(paths)
		paths = t.Path(paths, i)
		all[i] = Proof{Index: uint32(i), Path: paths[from:len(paths):len(paths)]}
	}
	return all
}

// RootOf returns the root that a leaf and its proof lead to, or ErrProof.
func RootOf(leaf [32]byte, proof Proof) ([32]byte, error) {
	steps := len(proof.Path) / 32
	if len(proof.Path)%32 != 0 || steps > maxSteps {
		return leaf, fmt.Errorf("%w: a path of %d bytes", ErrProof, len(proof.Path))
	}
	if proof.Index>>steps != 0 {
		return leaf, fmt.Errorf("%w: place %d in a group of at most %d", ErrProof, proof.Index, 1<<steps)
	}
	return merkle.RootOf(leaf, int(proof.Index), proof.Path), nil
}
