package bodies

import (
	"crypto/sha256"
	"math/bits"
)

// The hash of a leaf and that of an inner node begin with different bytes, so neither can
// be taken for the other.
const (
	prefixLeaf = 0x00
	prefixNode = 0x01
)

// maxPath is the most hashes on the way from a chunk to the root.
const maxPath = 20

func leafHash(chunk []byte) (sum [32]byte) {
	h := sha256.New()
	h.Write([]byte{prefixLeaf})
	h.Write(chunk)
	h.Sum(sum[:0])
	return sum
}

func nodeHash(left, right *[32]byte) [32]byte {
	var b [65]byte
	b[0] = prefixNode
	copy(b[1:], left[:])
	copy(b[33:], right[:])
	return sha256.Sum256(b[:])
}

// padding[h] is the hash of a subtree of height h without chunks: all paths of an object
// have the same length.
var padding = func() (p [maxPath + 1][32]byte) {
	for h := range maxPath {
		p[h+1] = nodeHash(&p[h], &p[h])
	}
	return p
}()

// pathLen returns how many hashes a path has in an object of n chunks.
func pathLen(n int) int { return bits.Len(uint(n - 1)) }

// A tree holds the hashes of an object, from the leaves to the root, without padding.
type tree [][][32]byte

func newTree(leaves [][32]byte) tree {
	t := tree{leaves}
	for h := 0; len(t[h]) > 1; h++ {
		up := make([][32]byte, (len(t[h])+1)/2)
		for i := range up {
			up[i] = nodeHash(t.at(h, 2*i), t.at(h, 2*i+1))
		}
		t = append(t, up)
	}
	return t
}

func (t tree) at(h, i int) *[32]byte {
	if i < len(t[h]) {
		return &t[h][i]
	}
	return &padding[h]
}

func (t tree) root() [32]byte { return t[len(t)-1][0] }

// path appends the siblings of leaf i on the way to the root.
func (t tree) path(dst []byte, i int) []byte {
	for h := range len(t) - 1 {
		dst = append(dst, t.at(h, i>>h^1)[:]...)
	}
	return dst
}

// rootOf returns the root that leaf i and its path lead to; ok is false for a path that no
// leaf among n has.
func rootOf(leaf [32]byte, i, n int, path []byte) (root [32]byte, ok bool) {
	if i < 0 || i >= n || len(path) != 32*pathLen(n) {
		return root, false
	}
	for h := range len(path) / 32 {
		sibling := (*[32]byte)(path[32*h:])
		if i>>h&1 == 0 {
			leaf = nodeHash(&leaf, sibling)
		} else {
			leaf = nodeHash(sibling, &leaf)
		}
	}
	return leaf, true
}
