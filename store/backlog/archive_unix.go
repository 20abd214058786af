//go:build !windows

package backlog

import (
	"errors"
	"os"
)

// syncDir makes the entry of a new file in dir durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
