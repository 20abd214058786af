package disk

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// maxLines is the size at which AppendLines starts a new file, in bytes.
const maxLines = 100 << 20

// AppendLines appends complete lines to the file at path, which only its owner may read, and
// returns when they are durable. A file that has 100 MiB is renamed with the time now first,
// and a new one is started. What a call that failed, or a crash, left of a line is
// removed: it was not acknowledged. One caller at a time may write to a file.
func AppendLines(path string, lines []byte, now time.Time) error {
	if err := appendLines(path, lines, maxLines, now); err != nil {
		return fmt.Errorf("append to %s: %w", path, err)
	}
	return nil
}

func appendLines(path string, lines []byte, limit int64, now time.Time) error {
	f, end, err := openLines(path)
	if err == nil && end >= limit {
		if err = os.Rename(path, path+"."+now.UTC().Format("20060102T150405.000")); err == nil {
			if err = f.Close(); err == nil {
				f, end, err = openLines(path)
			}
		}
	}
	if f == nil {
		return err
	}
	if err == nil {
		if _, err = f.WriteAt(lines, end); err != nil {
			err = errors.Join(err, f.Truncate(end)) // no room: it is needed for the next try
		}
	}
	return errors.Join(err, f.Sync(), f.Close(), SyncDir(filepath.Dir(path)))
}

// openLines opens or makes a file of lines, and returns the size of its complete lines.
func openLines(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, err
	}
	end, err := endOfLines(f)
	return f, end, err
}

// endOfLines cuts the last line of f off if it is not complete, and returns the size.
func endOfLines(f *os.File) (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	var buf [4 << 10]byte
	end := fi.Size()
	for end > 0 {
		part := buf[:min(end, int64(len(buf)))]
		if _, err := f.ReadAt(part, end-int64(len(part))); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			end -= int64(len(part) - i - 1)
			break
		}
		end -= int64(len(part))
	}
	if end == fi.Size() {
		return end, nil
	}
	return end, f.Truncate(end)
}
