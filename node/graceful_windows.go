package node

import "time"

// gracefulTimeout is what Windows leaves a process after a console close event.
const gracefulTimeout = 5 * time.Second
