// Package join takes the place of its namesake in github.com/cockroachdb/errors.
package join

import "errors"

// Join is that of the standard library.
func Join(errs ...error) error { return errors.Join(errs...) }
