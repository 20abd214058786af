package ledger

import (
	"fmt"

	"github.com/balefire/balefire/store"
)

// A DamageError is a [store.ErrCorrupt] with a location: something that was on
// disk is damaged or missing.
type DamageError struct {
	File   string // path
	Offset int64  // first byte that is wrong
	What   string // description of the damage
}

// Error states where the damage is and what to do.
func (e *DamageError) Error() string {
	return fmt.Sprintf("%v: %s from byte %d: %s; keep a copy of the folder, then see with `balefire-node store check` what is damaged and run `balefire-node store salvage` to bring all that can be read into a new folder",
		store.ErrCorrupt, e.File, e.Offset, e.What)
}

// Unwrap makes a DamageError a [store.ErrCorrupt].
func (e *DamageError) Unwrap() error { return store.ErrCorrupt }
