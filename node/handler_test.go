package node

import (
	"strings"
	"testing"
)

func TestAKindIsAShortWord(t *testing.T) {
	for _, good := range []string{"a", "7", "build", "build-go1.26", "a_b", "x.", strings.Repeat("k", maxKind)} {
		if !validKind(good) {
			t.Errorf("validKind(%q) = false", good)
		}
	}
	for _, bad := range []string{"", "-a", ".a", "_a", "A", "a b", "a/b", "ä", "a\n", "a\x00", strings.Repeat("k", maxKind+1)} {
		if validKind(bad) {
			t.Errorf("validKind(%q) = true", bad)
		}
	}
}

// An allow list that can name nobody is a mistake, and is told as one.
func TestAnAllowListNamesSomebody(t *testing.T) {
	for allow, good := range map[string]bool{
		"peer:laptop": true, "role:work": true, "peer:12D3KooWAULqkVkhpk1K2bYTnPmYT4iRayo7JPcfbMPhQ3hWdxRc": true,
		"peer:*": false, "peer:Laptop": false, "peer:": false, "laptop": true, "*": false, "peer:a b": false,
	} {
		if err := (HandlerSpec{Kind: "x", Type: TypeEcho, Allow: []string{allow}}).Validate(); (err == nil) != good {
			t.Errorf("allow %q: %v", allow, err)
		}
	}
}
