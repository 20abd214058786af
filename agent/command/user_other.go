//go:build !linux

package command

import (
	"errors"
	"os"
	"runtime"
)

// An account is the user that a program runs as: here it is the node's own.
type account struct {
	name, home string
}

func accountOf(string) (*account, error) {
	return nil, errors.New("run_as: programs run as the node's own user on " + runtime.GOOS + ": run_as needs Linux; leave it out")
}

// MayRunAs says why this node cannot run programs as another user.
func MayRunAs(runAs, _ string) error { _, err := accountOf(runAs); return err }

func (a *account) runAs(f func() error) error { return f() }

func (a *account) makeFolder(run string) (string, error) { return run, nil }

// RemoveAll removes the folder of a run, whatever the modes of the folders in it are.
func RemoveAll(run string) error {
	unlock(run)
	return os.RemoveAll(run)
}
