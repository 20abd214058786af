package inbox

import (
	"errors"

	"github.com/balefire/balefire/handler"
)

// ErrNoRoom says that the disk has no room for a result. A task keeps what it wrote to a
// file for a while, and then ends without; any other result waits for room.
var ErrNoRoom = errors.New("inbox: no room for the result")

// unusable is the outcome of a task that cannot be given to any handler, now or later.
const unusable handler.Outcome = 255
