package nuts

import (
	"fmt"

	"github.com/balefire/balefire/store"
)

// A DamageError is a [store.ErrCorrupt] that knows the place: data that was
// acknowledged is damaged or gone.
type DamageError struct {
	Dir   string // generation folder
	File  string // file in it
	From  int64  // first byte that is damaged
	After int    // transactions that can still be read behind the damage
	What  string // what is wrong, in words
}

// Error says where the damage is, what is lost and what to do.
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
