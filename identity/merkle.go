package identity

import (
	"crypto/sha256"
	"errors"
	"fmt"

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

// A tree is a binary hash tree whose last level is padded to a power of two with
// zero hashes, which no leaf has. So all paths of a group have the same length,
// and each (index, path) belongs to one leaf.
type tree struct {
	levels [maxSteps + 1][][32]byte // from the leaves to the root, without padding
	height int
}

// filling[h] is the hash of a subtree of height h that holds no leaf.
var filling = func() (f [maxSteps + 1][32]byte) {
	for h := range maxSteps {
		f[h+1] = hashNode(&f[h], &f[h])
	}
	return f
}()

// hashNode joins two hashes.
func hashNode(left, right *[32]byte) [32]byte {
	var b [65]byte
	b[0] = prefixNode
	copy(b[1:], left[:])
	copy(b[33:], right[:])
	return sha256.Sum256(b[:])
}

// newTree hashes 1 to proto.MaxGroup leaves together.
func newTree(leaves [][32]byte) tree {
	if len(leaves) < 1 || len(leaves) > proto.MaxGroup {
		panic(fmt.Sprintf("identity: a group of %d leaves", len(leaves)))
	}
	var t tree
	t.levels[0] = leaves
	nodes := 0
	for n := len(leaves); n > 1; n = (n + 1) / 2 {
		nodes += (n + 1) / 2
	}
	inner := make([][32]byte, 0, nodes)
	for n := len(leaves); n > 1; {
		below, start := t.levels[t.height], len(inner)
		for i := 0; i < n; i += 2 {
			inner = append(inner, hashNode(&below[i], t.node(t.height, i+1)))
		}
		t.height++
		t.levels[t.height] = inner[start:]
		n = len(inner) - start
	}
	return t
}

// node returns the hash of a node, which may be padding.
func (t *tree) node(level, i int) *[32]byte {
	if i < len(t.levels[level]) {
		return &t.levels[level][i]
	}
	return &filling[level]
}

func (t *tree) root() [32]byte { return t.levels[t.height][0] }

// proofs returns the proof of each leaf.
func (t *tree) proofs() []Proof {
	all := make([]Proof, len(t.levels[0]))
	paths := make([]byte, 0, len(all)*t.height*32)
	for i := range all {
		from := len(paths)
		for level := range t.height {
			paths = append(paths, t.node(level, i>>level^1)[:]...)
		}
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
	for i := range steps {
		sibling := (*[32]byte)(proof.Path[i*32:])
		if proof.Index>>i&1 == 0 {
			leaf = hashNode(&leaf, sibling)
		} else {
			leaf = hashNode(sibling, &leaf)
		}
	}
	return leaf, nil
}
