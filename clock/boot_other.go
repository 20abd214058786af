//go:build !linux

package clock

import "time"

var processStart = time.Now()

// machineStart returns "": the boot time below counts from the start of the
// process.
func machineStart() string { return "" }

// bootTime falls back to the runtime's monotonic clock, which on Windows counts
// suspended time and on macOS does not.
func bootTime() time.Duration { return time.Since(processStart) }
