// Package oserror takes the place of its namesake in github.com/cockroachdb/errors: the
// errors of package os and their tests, which find wrapped ones too.
package oserror

import (
	"os"

	"github.com/cockroachdb/errors"
)

// The errors of package os.
var (
	ErrInvalid    = os.ErrInvalid
	ErrPermission = os.ErrPermission
	ErrExist      = os.ErrExist
	ErrNotExist   = os.ErrNotExist
	ErrClosed     = os.ErrClosed
)

// IsPermission reports whether permission was denied.
func IsPermission(err error) bool {
	return errors.Is(err, ErrPermission) || os.IsPermission(errors.UnwrapAll(err))
}

// IsExist reports whether a file or directory exists already.
func IsExist(err error) bool {
	return errors.Is(err, ErrExist) || os.IsExist(errors.UnwrapAll(err))
}

// IsNotExist reports whether a file or directory does not exist.
func IsNotExist(err error) bool {
	return errors.Is(err, ErrNotExist) || os.IsNotExist(errors.UnwrapAll(err))
}
