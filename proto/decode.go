package proto

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"
)

// ErrMalformed is returned for bytes that are not an encoding of the message: cut
// short, of a wrong wire type, a group, a single field given twice, text that is
// not UTF-8.
var ErrMalformed = errors.New("proto: malformed message")

// Malformed reports whether err was caused by bytes that no correct node sends.
func Malformed(err error) bool {
	return errors.Is(err, ErrMalformed) || errors.Is(err, ErrTooMany) || errors.Is(err, ErrTooLong)
}

// ErrTooMany is returned for a message with more elements, or nested deeper,
// than its definition allows.
var ErrTooMany = errors.New("proto: too many elements")

// ErrTooLong is returned for a field with more bytes than its definition allows.
var ErrTooLong = errors.New("proto: field too long")

// A Body is any message of this package.
type Body = pb.Message

// Decode decodes b into m, a message of this package, and replaces the old content of m. It
// copies what it keeps. Before it allocates anything it scans b and checks each element
// against the limits of the definition, because a few bytes on the wire could need fifty
// times as much memory. Unknown fields are kept: use it for what this node wrote itself.
// See [DecodeKnown].
func Decode(b []byte, m pb.Message) error { return decode(b, m, pb.UnmarshalOptions{}) }

// DecodeKnown is Decode for messages from other nodes: unknown fields are dropped. No
// limits exist for them, so they must not be kept in memory or on disk. Signed content is
// in a bytes field and is not changed.
func DecodeKnown(b []byte, m pb.Message) error {
	return decode(b, m, pb.UnmarshalOptions{DiscardUnknown: true})
}

func decode(b []byte, m pb.Message, o pb.UnmarshalOptions) error {
	s, err := checked(b, m)
	if err != nil {
		return err
	}
	if err := o.Unmarshal(b, m); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrMalformed, s.name, err)
	}
	return nil
}

// checked checks b against the limits of m, and returns its layout.
func checked(b []byte, m pb.Message) (*layout, error) {
	s, err := layoutOf(m)
	if err != nil {
		return nil, err
	}
	if len(b) > MaxEncoded {
		return nil, fmt.Errorf("%w: %s of %d bytes", ErrTooLong, s.name, len(b))
	}
	return s, s.check(b, false)
}

// Encode appends m to dst. It rejects what Decode would reject at the other end, so that a
// limit is found where it can be handled; then it returns dst unchanged.
func Encode(dst []byte, m pb.Message) ([]byte, error) {
	out, err := appendChecked(dst, m, pb.MarshalOptions{})
	if err != nil {
		return dst, err
	}
	return out, nil
}

// Size returns the number of bytes of m's encoding.
func Size(m pb.Message) int { return pb.Size(m) }

// Clone returns a deep copy of m.
func Clone[M pb.Message](m M) M { return pb.CloneOf(m) }

func appendChecked(dst []byte, m pb.Message, o pb.MarshalOptions) ([]byte, error) {
	s, err := layoutOf(m)
	if err != nil {
		return nil, err
	}
	out, err := o.MarshalAppend(dst, m)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrMalformed, s.name, err)
	}
	if n := len(out) - len(dst); n > MaxEncoded {
		return nil, fmt.Errorf("%w: %s of %d bytes", ErrTooLong, s.name, n)
	}
	return out, s.check(out[len(dst):], false)
}

// check scans the encoding b of a message with layout s. nested means that the message is
// inside one of its own kind.
func (s *layout) check(b []byte, nested bool) error {
	var seen [maxNumber + 1]uint16
	total := 0
	for len(b) > 0 {
		num, wire, value, n := consume(b)
		if n < 0 {
			return fmt.Errorf("%w: %s is cut short or damaged", ErrMalformed, s.name)
		}
		b = b[n:]
		if num >= protowire.Number(len(s.fields)) || s.fields[num].count == 0 {
			continue // from a newer version
		}
		f := &s.fields[num]
		if wire != f.wire {
			return fmt.Errorf("%w: %s has wire type %d", ErrMalformed, f.name, wire)
		}
		seen[num]++
		if seen[num] > f.count {
			return f.tooMany()
		}
		if wire != protowire.BytesType {
			continue
		}
		if len(value) > f.size {
			return fmt.Errorf("%w: %s of %d bytes, the limit is %d", ErrTooLong, f.name, len(value), f.size)
		}
		if f.together {
			if total += len(value); total > f.size {
				return fmt.Errorf("%w: all of %s, the limit is %d bytes", ErrTooLong, f.name, f.size)
			}
		}
		if f.sub == nil {
			continue
		}
		if nested && f.sub == s {
			return fmt.Errorf("%w: %s is nested too deep", ErrTooMany, f.name)
		}
		if err := f.sub.check(value, f.sub == s); err != nil {
			return err
		}
	}
	return nil
}

// tooMany is the error for a field that occurs too often in its message.
func (f *field) tooMany() error {
	if f.count == 1 {
		return fmt.Errorf("%w: %s is given twice", ErrMalformed, f.name)
	}
	return fmt.Errorf("%w: %s has more than %d", ErrTooMany, f.name, f.count)
}

// consume reads the field at the front of b and returns its length with its tag, negative
// if it is damaged or a group. value is the value of a bytes field.
func consume(b []byte) (num protowire.Number, wire protowire.Type, value []byte, n int) {
	tag, n := varint(b)
	if n < 0 {
		return 0, 0, nil, -1
	}
	num, wire = protowire.DecodeTag(tag)
	if num < protowire.MinValidNumber {
		return 0, 0, nil, -1
	}
	var m int
	switch rest := b[n:]; wire {
	case protowire.VarintType:
		_, m = varint(rest)
	case protowire.Fixed32Type:
		m = 4
	case protowire.Fixed64Type:
		m = 8
	case protowire.BytesType:
		var size uint64
		size, m = varint(rest)
		if m < 0 || size > uint64(len(rest)-m) {
			return 0, 0, nil, -1
		}
		value = rest[m : m+int(size)]
		m += int(size)
	default:
		m = -1
	}
	if m < 0 || m > len(b)-n {
		return 0, 0, nil, -1
	}
	return num, wire, value, n + m
}

// varint reads an unsigned varint at the front of b; n is negative if there is none.
func varint(b []byte) (v uint64, n int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	return protowire.ConsumeVarint(b)
}
