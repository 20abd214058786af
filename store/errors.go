package store

import (
	"errors"
	"fmt"
)

// What callers test for with errors.Is.
var (
	// ErrNotFound means that there is no record at the key, or only an expired one.
	ErrNotFound = errors.New("store: not found")
	// ErrConflict means that a requirement of the batch did not hold: nothing of it
	// was written, and the record that it conflicts with is on disk.
	ErrConflict = errors.New("store: a requirement of the batch does not hold")
	// ErrKey means that a key is empty, longer than [MaxKey] or in no bucket.
	ErrKey = errors.New("store: bad key")
	// ErrTooLarge means that a value or a batch exceeds its limit: store it as a
	// blob.
	ErrTooLarge = errors.New("store: too large")
	// ErrFull refuses new work while the disk is below its reserve, or memory is
	// short: see [ErrNoDisk] and [ErrNoMemory], which wrap it. Batches that are not
	// marked as new work still pass.
	ErrFull     = errors.New("store: new work is refused")
	ErrNoDisk   = fmt.Errorf("%w: the disk is below its reserve", ErrFull)
	ErrNoMemory = fmt.Errorf("%w: the records use as much memory as they may; let tasks end, give the node more memory, or move its store to pebble", ErrFull)
	// ErrNeedsMemory refuses to open a store whose records do not fit into the
	// memory that the node may use. Nothing was allocated or changed.
	ErrNeedsMemory = errors.New("store: needs more memory than there is")
	// ErrFailed follows the first commit error, whose outcome is unknown. Close the
	// store, open its engine again and read.
	ErrFailed = errors.New("store: a commit failed, the store must be opened again")
	// ErrClosed means that the store is closed; nothing was written.
	ErrClosed = errors.New("store: closed")
	// ErrUnknown means that the caller's context ended while the batch was being
	// written: it may or may not have been written. Read to find out, and do not use
	// the batch again.
	ErrUnknown = errors.New("store: outcome unknown")
	// ErrCorrupt means that the data on disk is damaged or not a store. Engines wrap
	// it.
	ErrCorrupt = errors.New("store: damaged")
	// ErrNewerSchema refuses a store that a newer version of the program wrote.
	ErrNewerSchema = errors.New("store: written by a newer version")
	// ErrLocked means that another process has locked the folder.
	ErrLocked = errors.New("store: folder is in use")
	// ErrOtherEngine means that the folder belongs to an engine other than the
	// configured one.
	ErrOtherEngine = errors.New("store: folder belongs to another engine")
)
