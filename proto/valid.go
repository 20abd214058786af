package proto

import "slices"

// ValidKind reports whether s is 1 to MaxKind of a-z 0-9 . _ - and begins with a letter or
// a digit. It is called for each task.
func ValidKind(s string) bool { return len(s) <= MaxKind && validName(s) }

// MaxQueueName is the length of the longest name of a queue.
const MaxQueueName = 63

// ValidQueue reports whether s is a valid name of a queue, and of an agent or a topic: as a
// kind, of at most MaxQueueName.
func ValidQueue(s string) bool { return len(s) <= MaxQueueName && validName(s) }

func validName(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case i > 0 && (c == '.' || c == '_' || c == '-'):
		default:
			return false
		}
	}
	return s != ""
}

// ValidLabels reports whether a list of labels is within the limits.
func ValidLabels(list []string) bool {
	return len(list) <= 32 && !slices.ContainsFunc(list, func(l string) bool { return l == "" || len(l) > 128 })
}
