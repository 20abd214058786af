// Package merkle joins hashes in a binary hash tree, so that one hash, the root, stands for all of
// them, and a short path proves that one of them is there.
//
// The last level is padded to a power of two with zero hashes, which no leaf has. So all paths of a
// tree have the same length, and each index and path belongs to one leaf.
package merkle

import (
	"crypto/sha256"
	"math/bits"
)

// What is hashed to a leaf and to an inner node begins with different bytes, so neither can be
// taken for the other.
const (
	PrefixLeaf = 0x00
	prefixNode = 0x01
)

// MaxPath is the most hashes on the way from a leaf to the root.
const MaxPath = 20

// Join returns the hash of the node above two others.
func Join(left, right *[32]byte) [32]byte {
	var b [65]byte
	b[0] = prefixNode
	copy(b[1:], left[:])
	copy(b[33:], right[:])
	return sha256.Sum256(b[:])
}

// padding[h] is the hash of a subtree of height h without leaves.
var padding = func() (p [MaxPath + 1][32]byte) {
	for h := range MaxPath {
		p[h+1] = Join(&p[h], &p[h])
	}
	return p
}()

// PathLen returns how many hashes a path has in a tree of n leaves.
func PathLen(n int) int { return bits.Len(uint(n - 1)) }

// A Tree holds the hashes of a tree, from the leaves to the root, without padding.
type Tree [][][32]byte

// New returns the tree of 1 to 2^MaxPath leaves.
func New(leaves [][32]byte) Tree {
	nodes := 0
	for n := len(leaves); n > 1; n = (n + 1) / 2 {
		nodes += (n + 1) / 2
	}
	inner := make([][32]byte, nodes)
	t := append(make(Tree, 0, PathLen(len(leaves))+1), leaves)
	for h := 0; len(t[h]) > 1; h++ {
		n := (len(t[h]) + 1) / 2
		for i := range n {
			inner[i] = Join(t.at(h, 2*i), t.at(h, 2*i+1))
		}
		t, inner = append(t, inner[:n]), inner[n:]
	}
	return t
}

func (t Tree) at(h, i int) *[32]byte {
	if i < len(t[h]) {
		return &t[h][i]
	}
	return &padding[h]
}

// Root returns the hash that stands for all leaves.
func (t Tree) Root() [32]byte { return t[len(t)-1][0] }

// Path appends the siblings of leaf i on the way to the root.
func (t Tree) Path(dst []byte, i int) []byte {
	for h := range len(t) - 1 {
		dst = append(dst, t.at(h, i>>h^1)[:]...)
	}
	return dst
}

// RootOf returns the root that leaf i and its path lead to. The path has whole hashes; the caller
// checks that a tree of its length has a leaf i.
func RootOf(leaf [32]byte, i int, path []byte) [32]byte {
	for h := range len(path) / 32 {
		sibling := (*[32]byte)(path[32*h:])
		if i>>h&1 == 0 {
			leaf = Join(&leaf, sibling)
		} else {
			leaf = Join(sibling, &leaf)
		}
	}
	return leaf
}
