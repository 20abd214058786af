package proto

import (
	"strings"
	"testing"
)

func TestValidKind(t *testing.T) {
	for _, good := range []string{"a", "7", "build", "build-go1.26", "a_b", "x.", strings.Repeat("k", MaxKind)} {
		if !ValidKind(good) {
			t.Errorf("ValidKind(%q) = false", good)
		}
	}
	for _, bad := range []string{"", "-a", ".a", "_a", "A", "a b", "a/b", "ä", "a\n", "a\x00", strings.Repeat("k", MaxKind+1)} {
		if ValidKind(bad) {
			t.Errorf("ValidKind(%q) = true", bad)
		}
	}
}
