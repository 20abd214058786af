package ledger

import (
	"errors"
	"strings"
	"testing"

	"github.com/balefire/balefire/store"
)

func TestDamageErrorNamesThePlace(t *testing.T) {
	var err error = &DamageError{File: "a.seg", Offset: 64, What: "a bad checksum"}
	if !errors.Is(err, store.ErrCorrupt) {
		t.Error("it is not an ErrCorrupt")
	}
	for _, want := range []string{"a.seg", "byte 64", "a bad checksum", "store check", "store salvage"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}
