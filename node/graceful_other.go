//go:build !windows

package node

import "time"

// gracefulTimeout is what service managers leave a process between the polite
// signal and the other one, with a margin.
const gracefulTimeout = 15 * time.Second
