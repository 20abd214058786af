package proto

import (
	"bytes"
	"strings"
)

// ValidSubject reports whether s is the subject of a mail: words with dots between them, at
// most MaxSubject bytes of text without spaces. No word is empty, * or >.
func ValidSubject(s []byte) bool {
	if !validWord(s, MaxSubject) {
		return false
	}
	for word := range bytes.SplitSeq(s, []byte(".")) {
		if len(word) == 0 || string(word) == "*" || string(word) == ">" {
			return false
		}
	}
	return true
}

// ValidFilter reports whether f is a filter of subjects: a subject in which a word may be *
// (any one word), and the last one > (one or more words).
func ValidFilter(f []byte) bool {
	if !validWord(f, MaxSubject) {
		return false
	}
	for len(f) > 0 {
		word, rest, more := bytes.Cut(f, []byte("."))
		if len(word) == 0 || string(word) == ">" && more || more && len(rest) == 0 {
			return false
		}
		f = rest
	}
	return true
}

// MatchSubject reports whether a valid filter lets a valid subject through. The filter >
// lets a mail without a subject through, too; the empty filter does the same.
func MatchSubject(filter, subject string) bool {
	if filter == "" || filter == ">" {
		return true
	}
	for {
		want, moreWanted, wants := strings.Cut(filter, ".")
		word, rest, more := strings.Cut(subject, ".")
		switch {
		case word == "":
			return false
		case want == ">":
			return true
		case want != "*" && want != word, wants != more:
			return false
		case !wants:
			return true
		}
		filter, subject = moreWanted, rest
	}
}
