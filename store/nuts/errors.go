package nuts

import (
	"fmt"

	"github.com/balefire/balefire/store"
)

// A DamageError is a [store.ErrCorrupt] with a location: acknowledged data is damaged or
// missing.
type DamageError struct {
	Dir   string // generation folder
	File  string // file in it
	From  int64  // first damaged byte
	After int    // readable transactions after the damage
	What  string // description of the damage
}

// Error states where the damage is, what is lost and what to do.
func (e *DamageError) Error() string {
	return fmt.Sprintf("%v: acknowledged data is lost: %s/%s from byte %d: %s (%d later transactions can be read); "+
		"keep a copy of the folder, then run `balefire-node store salvage` to bring every record that can be read into a new store",
		store.ErrCorrupt, e.Dir, e.File, e.From, e.What, e.After)
}

// Unwrap makes a DamageError a [store.ErrCorrupt].
func (e *DamageError) Unwrap() error { return store.ErrCorrupt }

func lockedError(dir string) error {
	return fmt.Errorf("%w: another process has %s open", store.ErrLocked, dir)
}
