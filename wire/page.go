package wire

import (
	"cmp"
	"fmt"
)

// The number of items on one page of a list.
const (
	DefaultPage = 50
	MaxPage     = 1000
)

// PageSize returns how many items a request with this limit gets; 0 means the default.
func PageSize(limit int) (int, error) {
	if limit < 0 || limit > MaxPage {
		return 0, fmt.Errorf("%w: limit %d: must be from 1 to %d", ErrInvalid, limit, MaxPage)
	}
	return cmp.Or(limit, DefaultPage), nil
}
