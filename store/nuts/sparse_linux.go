package nuts

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// nextData returns where data may follow after off: a segment has its full size from the
// start, and reading its hole takes longer than reading its data.
func nextData(f *os.File, off int64) int64 {
	next, err := f.Seek(off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) { // only a hole up to the end
		if next, err = f.Seek(0, io.SeekEnd); err == nil {
			return next
		}
	}
	if err != nil {
		return off
	}
	return next
}
