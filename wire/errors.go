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
	ErrMoved       = errors.New("moved")                 // a box: it has another home
	ErrHeld        = errors.New("held")                  // a box: it has one reader at a time, and that is another one
)

// A HomeError is an error about a box, with the node that is its home.
type HomeError struct {
	Home string // name; of ErrMoved that of the new one
	Err  error
}

// Error returns the text of the error alone.
func (e *HomeError) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e *HomeError) Unwrap() error { return e.Err }
