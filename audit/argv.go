package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
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

// Redact returns argv with everything after its first keep words hidden. The first words
// come from the handler's configuration on this node; the rest came with the task and is
// payload, which never enters the record (I18).
func Redact(argv []string, keep int) []string {
	out := make([]string, len(argv))
	for i, arg := range argv {
		out[i] = Redacted
		if i < keep {
			out[i] = arg
		}
	}
	return out
}
