package command

import (
	"io/fs"
	"os"
	"path/filepath"
)

// unlock makes the folders below dir, and dir itself, readable and writable for this
// user, who owns them. It follows no symbolic link. Failures show when the folders are
// removed.
func unlock(dir string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			_ = os.Chmod(path, 0o700) // before it is read
		}
		return nil
	})
}
