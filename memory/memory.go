// Package memory determines how much memory this process may use: the smallest of
// the limits of its control groups, including their parents, and the machine's RAM.
//
// Its promise: a limit that the kernel enforces on this process is never missed if
// it can be read; a limit that cannot be read is ignored.
package memory

// A Limit is how much memory the process may use.
type Limit struct {
	Bytes int64 // 0: not known
	Group bool  // set by a control group: no other process shares this memory
}

// Default returns the default memory limit of the Go runtime, in bytes: at most
// most, five eighths of memory that the process has for itself, half of memory
// that it shares. The rest is for what the runtime does not count: the program
// text, the kernel's buffers, spikes.
func (l Limit) Default(most int64) int64 {
	switch {
	case l.Bytes <= 0:
		return most
	case l.Group:
		return min(most, max(l.Bytes/8*5, minDefault))
	}
	return min(most, max(l.Bytes/2, minDefault))
}

// minDefault is the smallest default, in bytes: a node does not work with less.
const minDefault = 48 << 20
