package wire

import "errors"

// Errors that callers act on. The API maps each to a status, the command line to an exit
// code.
var (
	ErrNotFound    = errors.New("not found")
	ErrInvalid     = errors.New("invalid request")
	ErrTooLarge    = errors.New("too large") // a mail, for any box
	ErrRefused     = errors.New("refused")
	ErrKeyConflict = errors.New("idempotency key used for another request")
	ErrFull        = errors.New("full")
	ErrDenied      = errors.New("denied")
	ErrDraining    = errors.New("node is stopping")
	ErrStarting    = errors.New("the node is starting") // it is still opening its store
	ErrBounced     = errors.New("not delivered")
	ErrNoAdmin     = errors.New("no admin is connected") // who could sign the creation of a queue
)
