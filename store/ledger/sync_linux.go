package ledger

import (
	"fmt"
	"os"
	"syscall"
)

// syncData makes the content of f durable, and of its metadata only what is needed
// to read it: overwriting a segment changes nothing of that.
func syncData(f *os.File) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		switch err {
		case nil:
			return nil
		case syscall.EINTR:
		default:
			return fmt.Errorf("sync %s: %w", f.Name(), err)
		}
	}
}
