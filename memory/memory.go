// Package memory tells how much memory this process may use: the least of the
// limits of its control groups, their parents included, and the machine's RAM.
//
// Its promise: a limit that the kernel enforces on this process is never missed
// where it can be read, and what cannot be read is no limit.
package memory

// A Limit is how much memory the process may use.
type Limit struct {
	Bytes int64 // 0: not known
	Group bool  // a control group sets it: nobody else uses this memory
}

// Available returns the limit that counts for this process.
func Available() Limit { return available() }

// Default returns the memory limit of a process's Go runtime, in bytes, where
// nobody has set one: at most most, five eighths of what the process has for
// itself, half of what it shares with others. The rest is for what the runtime
// does not count: the program text, the kernel's buffers, a spike.
func (l Limit) Default(most int64) int64 {
	switch {
	case l.Bytes <= 0:
		return most
	case l.Group:
		return min(most, max(l.Bytes/8*5, minDefault))
	}
	return min(most, max(l.Bytes/2, minDefault))
}

// minDefault is the least default, in bytes: a node does not work with less.
const minDefault = 48 << 20
