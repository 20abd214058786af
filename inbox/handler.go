package inbox

import (
	"errors"

	"github.com/balefire/balefire/handler"
)

// ErrNoRoom says that the disk has no room for a result. The task keeps what it wrote
// for a while, and then ends without.
var ErrNoRoom = errors.New("inbox: no room for the result")

// unusable is the outcome of a task that cannot be given to any handler, now or later.
const unusable handler.Outcome = 255
