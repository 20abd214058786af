package bodies

import (
	"crypto/sha256"

	"github.com/balefire/balefire/merkle"
)

func leafHash(chunk []byte) (sum [32]byte) {
	h := sha256.New()
	h.Write([]byte{merkle.PrefixLeaf})
	h.Write(chunk)
	h.Sum(sum[:0])
	return sum
}

// rootOf returns the root that leaf i and its path lead to; ok is false for a path that no
// leaf among n has.
func rootOf(leaf [32]byte, i, n int, path []byte) (root [32]byte, ok bool) {
	if i < 0 || i >= n || len(path) != 32*merkle.PathLen(n) {
		return root, false
	}
	return merkle.RootOf(leaf, i, path), true
}
