package nuts

import (
	"errors"
	"fmt"
)

// ErrCorrupt is what Open, Check and Snapshot return when data that was
// acknowledged is damaged or gone. The wrapping error says where and how much.
var ErrCorrupt = errors.New("nuts: acknowledged data is damaged")

// ErrLocked is returned by Open when another process has the store open.
var ErrLocked = errors.New("nuts: the store is in use")

// ErrForeign is returned by Open for a folder that another engine made.
var ErrForeign = errors.New("nuts: the folder holds another kind of store")

// A DamageError is an ErrCorrupt that knows the place.
type DamageError struct {
	Dir   string // generation folder
	File  string // file in it
	From  int64  // first byte that is damaged
	After int    // transactions that can still be read behind the damage
	What  string // what is wrong, in words
}

// Error says where the damage is, what is lost and what to do.
func (e *DamageError) Error() string {
	return fmt.Sprintf("%v: %s/%s from byte %d: %s (%d later transactions can be read); "+
		"keep a copy of the folder, then run `balefire-node store salvage` to bring every record that can be read into a new store",
		ErrCorrupt, e.Dir, e.File, e.From, e.What, e.After)
}

// Unwrap makes a DamageError an [ErrCorrupt].
func (e *DamageError) Unwrap() error { return ErrCorrupt }

func lockedError(dir string) error {
	return fmt.Errorf("%w: %s is locked by another process: stop the other node, or use another data folder", ErrLocked, dir)
}
