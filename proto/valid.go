package proto

import (
	"regexp"
	"slices"
)

// QueuePrefix begins a target that is a shared queue.
const QueuePrefix = "queue:"

// ValidKind reports whether s is 1 to MaxKind of a-z 0-9 . _ - and begins with a letter or
// a digit. It is called for each task.
func ValidKind(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return 0 < len(s) && len(s) <= MaxKind
}

// ValidLabels reports whether a list of labels is within the limits.
func ValidLabels(list []string) bool {
	return len(list) <= 32 && !slices.ContainsFunc(list, func(l string) bool { return l == "" || len(l) > 128 })
}

var queueRE = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// ValidQueue reports whether s is a valid name of a queue.
func ValidQueue(s string) bool { return queueRE.MatchString(s) }
