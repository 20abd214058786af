//go:build unix

package ledger

import (
	"os"
	"syscall"
)

func link(from, to string) error { return os.Link(from, to) }

// linked reports whether a file has another name, or that is not known.
func linked(name string) bool {
	info, err := os.Lstat(name)
	if err != nil {
		return true
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return !ok || st.Nlink > 1
}
