package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"unicode/utf8"
)

// Redacted replaces a value that must not enter the record.
const Redacted = "***"

// HashArgv returns a digest of a whole command line, so that two runs can be
// compared and a claim about one can be proven without it being in the record.
func HashArgv(argv []string) string {
	d := sha256.New()
	d.Write([]byte("balefire/v1/argv\x00"))
	for _, arg := range argv {
		d.Write(binary.AppendUvarint(nil, uint64(len(arg))))
		d.Write([]byte(arg))
	}
	return "sha256:" + hex.EncodeToString(d.Sum(nil))
}

// maxText is how many bytes of a text of any length an entry has: two of them fit into a
// line, although JSON may need six bytes for one.
const maxText = 4 << 10

// Redact returns argv with everything after its first keep words hidden, and cut if it is
// long. The first words come from the handler's configuration on this node; the rest came
// with the task and is payload, which never enters the record (I18).
func Redact(argv []string, keep int) []string {
	out := make([]string, 0, min(len(argv), maxText))
	left := maxText
	for i, arg := range argv {
		if left <= 0 {
			return append(out, fmt.Sprintf("… (%d more words)", len(argv)-i))
		}
		if i >= keep {
			out = append(out, Redacted)
			left -= len(Redacted) + 1
			continue
		}
		out = append(out, cut(arg, left))
		left -= len(arg) + 1
	}
	return out
}

// cut returns at most n bytes of s, and how long it is if that is not all.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:n], len(s))
}
