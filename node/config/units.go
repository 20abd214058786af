package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bytes is a size in bytes, written as a number with or without a unit: 64MiB,
// 1.5GB. The word none stands for -1.
type Bytes int64

// Duration is a [time.Duration] whose text form also has d for days: 90s, 1h30m,
// 7d.
type Duration time.Duration

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

// ParseDuration parses a duration, which must not be negative.
func ParseDuration(text string) (Duration, error) {
	if strings.HasPrefix(text, "-") {
		return 0, errors.New(strconv.Quote(text[:min(len(text), 40)]) + " is not a valid duration: it must be positive, such as 90s or 7d")
	}
	rest, days := text, 0.0
	if d, after, ok := strings.Cut(text, "d"); ok {
		n, err := strconv.ParseFloat(d, 64)
		if err != nil || !(n >= 0 && n < 1e5) {
			return 0, errDuration(text)
		}
		if rest, days = after, n; rest == "" {
			rest = "0s"
		}
	}
	d, err := time.ParseDuration(rest)
	if err != nil || d < 0 || d > math.MaxInt64-time.Duration(days*24*float64(time.Hour)) {
		return 0, errDuration(text)
	}
	return Duration(d + time.Duration(days*24*float64(time.Hour))), nil
}

func errDuration(text string) error {
	return errors.New(strconv.Quote(text[:min(len(text), 40)]) + " is not a duration: write it as 90s, 15m, 1h30m or 7d")
}

// String formats whole days as days and drops trailing zero units.
func (d Duration) String() string {
	const day = Duration(24 * time.Hour)
	if d > day && d%day == 0 {
		return strconv.FormatInt(int64(d/day), 10) + "d"
	}
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
