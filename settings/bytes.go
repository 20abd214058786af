package settings

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a size in bytes, written as a number with or without a unit: 64MiB,
// 1.5GB. The word none stands for -1.
type Bytes int64

var sizes = []struct {
	unit string
	size float64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
}

// ParseBytes parses a size.
func ParseBytes(text string) (Bytes, error) {
	number, factor := strings.TrimSpace(text), 1.0
	if number == "none" {
		return -1, nil
	}
	for _, s := range sizes {
		if n, ok := strings.CutSuffix(number, s.unit); ok {
			number, factor = strings.TrimSpace(n), s.size
			break
		}
	}
	if factor == 1 {
		n, err := strconv.ParseInt(number, 10, 64)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("%.40q is not a size: write a number of bytes or one with a unit, such as 64MiB", text)
		}
		return Bytes(n), nil
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || !(n >= 0) || n*factor >= math.MaxInt64 {
		return 0, fmt.Errorf("%.40q is not a size: write a number of bytes or one with a unit, such as 64MiB", text)
	}
	return Bytes(n * factor), nil
}

// String formats b with the largest unit that divides it.
func (b Bytes) String() string {
	if b < 0 {
		return "none"
	}
	for _, s := range sizes[:4] {
		if unit := Bytes(s.size); b >= unit && b%unit == 0 {
			return strconv.FormatInt(int64(b/unit), 10) + s.unit
		}
	}
	return strconv.FormatInt(int64(b), 10)
}
