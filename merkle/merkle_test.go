package merkle

import "testing"

// TestEveryPathLeadsToTheRoot checks that the path of each leaf leads to the root, and with it no
// other leaf, index or path.
func TestEveryPathLeadsToTheRoot(t *testing.T) {
	for n := 1; n <= 70; n++ {
		leaves := make([][32]byte, n)
		for i := range leaves {
			leaves[i] = [32]byte{1, byte(i)}
		}
		tree := New(leaves)
		for i, leaf := range leaves {
			path := tree.Path(nil, i)
			if len(path) != 32*PathLen(n) || RootOf(leaf, i, path) != tree.Root() {
				t.Fatalf("leaf %d of %d: the path of %d bytes leads elsewhere", i, n, len(path))
			}
			for j := range 1 << PathLen(n) {
				if j != i && RootOf(leaf, j, path) == tree.Root() {
					t.Errorf("leaf %d of %d is also at %d", i, n, j)
				}
			}
			if RootOf([32]byte{2}, i, path) == tree.Root() {
				t.Errorf("any leaf is at %d of %d", i, n)
			}
		}
	}
}
