package identity

import (
	"encoding/binary"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// maxLoggedRevocation bounds one record of a log: the details, a signature and the
// certificate of an admin.
const maxLoggedRevocation = 4 * maxDetails

// AppendRevocation appends a revocation to an encoded log: its length and its
// record. A truncated log is readable up to the cut.
func AppendRevocation(b []byte, s *proto.Signed) ([]byte, error) {
	r, err := proto.Encode(nil, s)
	if err != nil {
		return b, fmt.Errorf("revocation: %w", err)
	}
	if len(r) > maxLoggedRevocation {
		return b, fmt.Errorf("revocation: %w: %d bytes", ErrBadRecord, len(r))
	}
	return append(binary.AppendUvarint(b, uint64(len(r))), r...), nil
}

// ReadRevocations returns the readable records of a log, unverified. whole
// reports whether b contains nothing else.
func ReadRevocations(b []byte) (all []*proto.Signed, whole bool) {
	for len(b) > 0 {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > maxLoggedRevocation || uint64(len(b)-n) < size {
			return all, false
		}
		s := new(proto.Signed)
		if proto.Decode(b[n:n+int(size)], s) != nil {
			return all, false
		}
		all, b = append(all, s), b[n+int(size):]
	}
	return all, true
}
