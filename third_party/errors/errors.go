// Package errors takes the place of github.com/cockroachdb/errors: see
// third_party/README.md. It has what Pebble uses, on top of the errors package of the
// standard library: the same texts, marks and causes, without stack traces and without the
// encoding for other machines, for which the original links a protobuf library and a client
// of an error tracker.
package errors

import (
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/redact"
)

// An annotated error adds to its cause, if it has one.
type annotated struct {
	text      string // the whole text; that of the cause if there is nothing to add
	cause     error
	mark      error  // [Is] finds it as well; that of the standard library does not
	detail    string // only in the format %+v
	secondary error  // likewise
}

func (e *annotated) Error() string { return e.text }
func (e *annotated) Unwrap() error { return e.cause }

// Format writes the details as well for %+v.
func (e *annotated) Format(s fmt.State, verb rune) {
	if verb != 'v' || !s.Flag('+') {
		fmt.Fprintf(s, fmt.FormatString(s, verb), e.text)
		return
	}
	if e.cause != nil && e.cause.Error() == e.text {
		fmt.Fprintf(s, "%+v", e.cause)
	} else {
		_, _ = io.WriteString(s, e.text)
	}
	if e.detail != "" {
		_, _ = io.WriteString(s, "\n"+e.detail)
	}
	if e.secondary != nil {
		fmt.Fprintf(s, "\nsecondary error: %+v", e.secondary)
	}
}

// New returns an error with this text, different from all others.
func New(text string) error { return &annotated{text: text} }

// Newf returns an error with a formatted text. The operand of %w is its cause.
func Newf(format string, args ...any) error {
	text, cause := redact.HelperForErrorf(format, args...)
	return &annotated{text: text.StripMarkers(), cause: cause}
}

// Errorf is [Newf].
func Errorf(format string, args ...any) error { return Newf(format, args...) }

// AssertionFailedf is [Newf], for an error that no input may cause.
func AssertionFailedf(format string, args ...any) error { return Newf(format, args...) }

// Wrap puts text and a colon before the text of err. Like all functions below it returns nil
// for nil.
func Wrap(err error, text string) error {
	if err == nil || text == "" {
		return err
	}
	return &annotated{text: text + ": " + err.Error(), cause: err}
}

// Wrapf is [Wrap] with a formatted text.
func Wrapf(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return Wrap(err, sprintf(format, args))
}

// WithStack returns err: there are no stack traces.
func WithStack(err error) error { return err }

// WithDetailf adds a detail, which only the format %+v shows.
func WithDetailf(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &annotated{text: err.Error(), cause: err, detail: sprintf(format, args)}
}

// WithHintf is [WithDetailf].
func WithHintf(err error, format string, args ...any) error {
	return WithDetailf(err, format, args...)
}

// WithSafeDetails is [WithDetailf].
func WithSafeDetails(err error, format string, args ...any) error {
	return WithDetailf(err, format, args...)
}

// WithSecondaryError adds an error that only the format %+v shows and [Is] does not find.
func WithSecondaryError(err, secondary error) error {
	if err == nil || secondary == nil {
		return err
	}
	return &annotated{text: err.Error(), cause: err, secondary: secondary}
}

// CombineErrors returns the first error that is not nil, with the other as its secondary
// error.
func CombineErrors(err, other error) error {
	if err == nil {
		return other
	}
	return WithSecondaryError(err, other)
}

// Mark returns an error with the text of err that [Is] finds to be reference as well.
func Mark(err, reference error) error {
	if err == nil {
		return nil
	}
	return &annotated{text: err.Error(), cause: err, mark: reference}
}

// Safe marks a value as one that needs no redaction.
func Safe(v any) redact.SafeValue { return redact.Safe(v) }

// Is is that of the standard library, and finds marks.
func Is(err, target error) bool { return errors.Is(err, target) || marked(err, target) }

func marked(err, target error) bool {
	if e, ok := err.(*annotated); ok && e.mark != nil && Is(e.mark, target) {
		return true
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return marked(e.Unwrap(), target)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			if marked(err, target) {
				return true
			}
		}
	}
	return false
}

// As is that of the standard library.
func As(err error, target any) bool { return errors.As(err, target) }

// Join is that of the standard library.
func Join(errs ...error) error { return errors.Join(errs...) }

// UnwrapAll returns the innermost cause.
func UnwrapAll(err error) error {
	for next := err; next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err
}

func sprintf(format string, args []any) string { return redact.Sprintf(format, args...).StripMarkers() }
