package submit

import (
	"strings"
	"testing"
)

// An invalid traceparent is replaced by a new one: it would break the trace of the
// handler, and the program gets it.
func TestTraceContextIsValid(t *testing.T) {
	good := []string{
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
		"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-09-what.is.to.come",
	}
	bad := []string{
		"", "x", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.more",
		"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-\x00", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
		"00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-" + strings.Repeat("a", 100),
	}
	for _, s := range good {
		if got := traceOf(s); got != s {
			t.Errorf("traceOf(%q) = %q, want it unchanged", s, got)
		}
	}
	seen := map[string]bool{}
	for _, s := range bad {
		got := traceOf(s)
		if !validTrace(got) || seen[got] || !strings.HasSuffix(got, "-01") {
			t.Errorf("traceOf(%q) = %q, want a new sampled one", s, got)
		}
		seen[got] = true
	}
}
