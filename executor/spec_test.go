package executor

import (
	"testing"

	"github.com/balefire/balefire/wire"
)

// An allow list that cannot match any peer is reported as a mistake.
func TestAllowListMustNameSomeone(t *testing.T) {
	for allow, good := range map[string]bool{
		"peer:laptop": true, "role:work": true, "peer:12D3KooWAULqkVkhpk1K2bYTnPmYT4iRayo7JPcfbMPhQ3hWdxRc": true,
		"peer:*": false, "peer:Laptop": false, "peer:": false, "laptop": true, "*": false, "peer:a b": false,
	} {
		if err := Validate(wire.HandlerSpec{Kind: "x", Type: wire.TypeEcho, Allow: []string{allow}}); (err == nil) != good {
			t.Errorf("allow %q: %v", allow, err)
		}
	}
}
