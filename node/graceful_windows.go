package node

import "time"

// gracefulTimeout is how long Windows lets a process run after a console close event.
const gracefulTimeout = 5 * time.Second
