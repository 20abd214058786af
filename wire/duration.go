package wire

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a [time.Duration] whose text form also has d for days: 90s, 1h30m,
// 7d.
type Duration time.Duration

// MarshalText returns the text form that UnmarshalText reads: empty for the default, 0.
func (d Duration) MarshalText() ([]byte, error) {
	if d == 0 {
		return nil, nil
	}
	return []byte(d.String()), nil
}

// UnmarshalText parses a setting of a request, which must be positive. An empty text is
// the default, 0.
func (d *Duration) UnmarshalText(text []byte) (err error) {
	if *d = 0; len(text) == 0 {
		return nil
	}
	if *d, err = ParseDuration(string(text)); err == nil && *d == 0 {
		err = fmt.Errorf("%q is not a valid duration: it must be positive, such as 90s or 7d", text)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
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

// A Wait is a Duration that may be 0s in a request: not to wait is asked for like any other
// time.
type Wait Duration

// MarshalText returns the text form that UnmarshalText reads: empty for 0.
func (w Wait) MarshalText() ([]byte, error) { return Duration(w).MarshalText() }

// UnmarshalText parses a setting of a request. An empty text is 0.
func (w *Wait) UnmarshalText(text []byte) error {
	if d, err := ParseDuration(string(text)); err == nil && d == 0 {
		*w = 0
		return nil
	}
	return (*Duration)(w).UnmarshalText(text)
}

// String formats it as a Duration.
func (w Wait) String() string { return Duration(w).String() }

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
