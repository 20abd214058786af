//go:build !windows

package node

import "time"

// gracefulTimeout is how long service managers wait between SIGTERM and SIGKILL, with
// a margin.
const gracefulTimeout = 15 * time.Second
