package proto

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// descriptors returns every message of the package, map entries included.
func descriptors() []protoreflect.MessageDescriptor {
	return slices.SortedFunc(maps.Keys(layouts()), func(a, b protoreflect.MessageDescriptor) int {
		return strings.Compare(string(a.FullName()), string(b.FullName()))
	})
}

// limited reports whether a field needs an entry in the table of limits.
func limited(fd protoreflect.FieldDescriptor) bool {
	k := fd.Kind()
	return fd.Cardinality() == protoreflect.Repeated || k == protoreflect.BytesKind || k == protoreflect.StringKind
}

// Every field of variable length has a limit, and every limit belongs to an existing
// field.
func TestEveryFieldOfVariableLengthHasALimit(t *testing.T) {
	left := maps.Clone(fieldLimits)
	for _, d := range descriptors() {
		for i := range d.Fields().Len() {
			fd := d.Fields().Get(i)
			name := string(d.Name()) + "." + string(fd.Name())
			l, ok := fieldLimits[name]
			delete(left, name)
			switch {
			case ok != limited(fd):
				t.Errorf("%s: limit %v, want %v", name, ok, limited(fd))
			case fd.Cardinality() == protoreflect.Repeated && l.count == 0:
				t.Errorf("%s: no count", name)
			case ok && fd.Message() == nil && l.size == 0:
				t.Errorf("%s: no size", name)
			case int(fd.Number()) > maxNumber:
				t.Errorf("%s: raise maxNumber", name)
			case fd.IsList() && fd.Kind() != protoreflect.MessageKind && fd.IsPacked():
				t.Errorf("%s: a packed field, which check does not support", name)
			}
		}
	}
	for name := range left {
		t.Errorf("%s: no such field", name)
	}
}

// At most one field of a message limits the sum of its elements: check keeps one sum.
func TestOneSumAMessage(t *testing.T) {
	for d, s := range layouts() {
		n := 0
		for _, f := range s.fields {
			if f.together {
				n++
			}
		}
		if n > 1 {
			t.Errorf("%s: %d fields with a sum", d.Name(), n)
		}
	}
}

// fill returns a message of type d in which every field is at its limit of length
// or count. Nested messages are filled too, up to depth.
func fill(d protoreflect.MessageDescriptor, depth int) *dynamicpb.Message {
	m := dynamicpb.NewMessage(d)
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		fillField(m, fd, 0, depth)
	}
	return m
}

// fillField sets fd to its limit plus extra, in the unit of the limit.
func fillField(m *dynamicpb.Message, fd protoreflect.FieldDescriptor, extra, depth int) {
	l := fieldLimits[string(fd.Parent().Name())+"."+string(fd.Name())]
	switch {
	case fd.IsMap():
		for i := range int(l.count) + extra {
			m.Mutable(fd).Map().Set(protoreflect.ValueOfString(label(i)).MapKey(), protoreflect.ValueOfString("v"))
		}
	case fd.IsList():
		list := m.Mutable(fd).List()
		size := min(l.size, 8)
		for range int(l.count) + extra {
			if fd.Message() != nil {
				list.Append(protoreflect.ValueOfMessage(dynamicpb.NewMessage(fd.Message())))
			} else {
				list.Append(valueOf(fd, size))
			}
		}
	case fd.Message() != nil:
		if depth > 0 {
			m.Set(fd, protoreflect.ValueOfMessage(fill(fd.Message(), depth-1)))
		}
	case limited(fd):
		m.Set(fd, valueOf(fd, l.size+extra))
	}
}

func label(i int) string { return strings.Repeat("k", i/26+1) + string(rune('a'+i%26)) }

func valueOf(fd protoreflect.FieldDescriptor, size int) protoreflect.Value {
	if fd.Kind() == protoreflect.StringKind {
		return protoreflect.ValueOfString(strings.Repeat("x", size))
	}
	return protoreflect.ValueOfBytes(make([]byte, size))
}

// newOf returns an empty generated message of type d.
func newOf(t testing.TB, d protoreflect.MessageDescriptor) pb.Message {
	t.Helper()
	mt, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return mt.New().Interface()
}

// Each field is accepted at its limit and refused one above it, with the error for its
// kind of limit; Encode refuses whatever Decode would refuse.
func TestEachLimitHoldsExactly(t *testing.T) {
	for _, d := range descriptors() {
		if d.IsMapEntry() {
			continue
		}
		t.Run(string(d.Name()), func(t *testing.T) {
			for i := range d.Fields().Len() {
				fd := d.Fields().Get(i)
				if !limited(fd) {
					continue
				}
				at := dynamicpb.NewMessage(d)
				fillField(at, fd, 0, 0)
				if err := Decode(marshal(t, at), newOf(t, d)); err != nil {
					t.Errorf("%s at its limit: %v", fd.Name(), err)
				}
				above := dynamicpb.NewMessage(d)
				fillField(above, fd, 1, 0)
				want := ErrTooLong
				if fd.Cardinality() == protoreflect.Repeated {
					want = ErrTooMany
				}
				m := newOf(t, d)
				if err := Decode(marshal(t, above), m); !errors.Is(err, want) {
					t.Errorf("%s above its limit: %v, want %v", fd.Name(), err, want)
				}
				if err := pb.Unmarshal(marshal(t, above), m); err != nil {
					t.Fatal(err)
				}
				if out, err := Encode([]byte("kept"), m); !errors.Is(err, want) || string(out) != "kept" {
					t.Errorf("%s encoded above its limit: %q, %v, want %v", fd.Name(), out, err, want)
				}
			}
		})
	}
}

// A message with every field at its limit survives a round trip.
func TestFullMessageComesThrough(t *testing.T) {
	for _, d := range descriptors() {
		if d.IsMapEntry() {
			continue
		}
		b := marshal(t, fill(d, 1))
		if len(b) > MaxEncoded {
			continue // a Record alone may be larger than the remaining size allows
		}
		m := newOf(t, d)
		if err := Decode(b, m); err != nil {
			t.Errorf("%s: %v", d.Name(), err)
			continue
		}
		out, err := Encode(nil, m)
		if err != nil || len(out) != len(b) {
			t.Errorf("%s: %d bytes became %d: %v", d.Name(), len(b), len(out), err)
		}
	}
}

func marshal(t testing.TB, m pb.Message) []byte {
	t.Helper()
	b, err := pb.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// markUsed records every field that is set in m or in its nested messages.
func markUsed(used map[string]bool, m protoreflect.Message) {
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		used[string(fd.FullName())] = true
		switch {
		case fd.IsMap() || fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				markUsed(used, v.List().Get(i).Message())
			}
		default:
			markUsed(used, v.Message())
		}
		return true
	})
}
