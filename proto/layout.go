package proto

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxNumber is the highest field number in use, with room for some more.
const maxNumber = 63

// A layout is what Decode needs to know about a message to check its bytes against the
// limits without decoding it.
type layout struct {
	name   protoreflect.Name
	fields []field // by number; count 0: unknown
}

// A field is one field of a layout.
type field struct {
	name     string // Message.field
	wire     protowire.Type
	count    uint16  // how often it may occur in one message
	size     int     // bytes of one element
	together bool    // size is the limit of all elements together
	sub      *layout // of a message
}

// layouts has the layout of every message of this package.
var layouts = sync.OnceValue(func() map[protoreflect.MessageDescriptor]*layout {
	all := make(map[protoreflect.MessageDescriptor]*layout)
	for _, f := range []protoreflect.FileDescriptor{
		File_gossip_proto, File_mail_proto, File_message_proto, File_ownership_proto, File_state_proto, File_task_proto, File_wire_proto,
	} {
		for i := range f.Messages().Len() {
			makeLayout(all, f.Messages().Get(i))
		}
	}
	return all
})

// layoutOf returns the layout of m.
func layoutOf(m pb.Message) (*layout, error) {
	s, ok := layouts()[m.ProtoReflect().Descriptor()]
	if !ok {
		return nil, fmt.Errorf("%w: %T is not a message of this package", ErrMalformed, m)
	}
	return s, nil
}

// makeLayout adds the layout of d, and of the messages in d, to all.
func makeLayout(all map[protoreflect.MessageDescriptor]*layout, d protoreflect.MessageDescriptor) *layout {
	if s, ok := all[d]; ok {
		return s
	}
	s := &layout{name: d.Name()}
	all[d] = s
	fields := d.Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		f := makeField(fd)
		if fd.Message() != nil {
			f.sub = makeLayout(all, fd.Message())
		}
		for int(fd.Number()) >= len(s.fields) {
			s.fields = append(s.fields, field{})
		}
		s.fields[fd.Number()] = f
	}
	return s
}

// makeField returns the field for fd, without its layout.
func makeField(fd protoreflect.FieldDescriptor) field {
	name := string(fd.Parent().Name()) + "." + string(fd.Name())
	l := fieldLimits[name]
	f := field{name: name, wire: wireOf(fd.Kind()), count: 1, size: l.size, together: l.together}
	if fd.Cardinality() == protoreflect.Repeated {
		f.count = l.count
	}
	if fd.Message() != nil {
		f.size = MaxEncoded
	}
	return f
}

// wireOf returns the wire type of a single value of kind k.
func wireOf(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return protowire.Fixed32Type
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return protowire.Fixed64Type
	}
	return protowire.VarintType
}
