package submit

import (
	"strings"

	"github.com/balefire/balefire/proto"
)

// traceOf returns the trace context of a task: the caller's, in the format of the W3C
// recommendation, or a new one if there is none or it is not valid.
func traceOf(given string) string {
	if validTrace(given) {
		return given
	}
	return string(proto.AppendTraceparent(make([]byte, 0, traceSize)))
}

const (
	traceSize    = 55  // of version 00
	maxTraceSize = 128 // of any version
)

// validTrace reports whether s is a traceparent: version, trace id, parent id and flags
// in lower-case hex. Versions later than 00 may have more fields after the flags.
func validTrace(s string) bool {
	if len(s) < traceSize || len(s) > maxTraceSize || s[2] != '-' || s[35] != '-' || s[52] != '-' {
		return false
	}
	version, trace, parent, flags := s[:2], s[3:35], s[36:52], s[53:55]
	switch {
	case !lowerHex(version) || !lowerHex(trace) || !lowerHex(parent) || !lowerHex(flags):
		return false
	case version == "ff" || strings.Trim(trace, "0") == "" || strings.Trim(parent, "0") == "":
		return false
	case version == "00":
		return len(s) == traceSize
	}
	return len(s) == traceSize || s[traceSize] == '-' && printable(s[traceSize:])
}

func lowerHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}
