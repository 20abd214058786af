package proto

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Parts of an encoding, built by hand.

func bytesField(n protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), v)
}

func varintField(n protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
}

func fixed32Field(n protowire.Number) []byte {
	return append(protowire.AppendTag(nil, n, protowire.Fixed32Type), 1, 2, 3, 4)
}

func fixed64Field(n protowire.Number) []byte {
	return append(protowire.AppendTag(nil, n, protowire.Fixed64Type), 1, 2, 3, 4, 5, 6, 7, 8)
}

// nest puts b into field n of itself, depth times.
func nest(n protowire.Number, b []byte, depth int) []byte {
	for range depth {
		b = bytesField(n, b)
	}
	return b
}

// entry is an element of a map from text to text.
func entry(k, v string) []byte {
	return append(bytesField(1, []byte(k)), bytesField(2, []byte(v))...)
}

func many(n int, part func(i int) []byte) []byte {
	var b []byte
	for i := range n {
		b = append(b, part(i)...)
	}
	return b
}

func join(parts ...[]byte) []byte { return slices.Concat(parts...) }

// A badCase is input that Decode reads as a message of the type of m.
type badCase struct {
	name string
	m    pb.Message
	b    []byte
	want error // nil: it is accepted
}

// The cases of the protobuf family, in groups.

func unknownFields() []badCase {
	open := join(bytesField(1, []byte("id")), varintField(2, 2))
	return []badCase{
		{"unknown varint", &Message{}, join(open, varintField(7, 1)), nil},
		{"unknown bytes", &Message{}, join(open, bytesField(8, []byte("later"))), nil},
		{"unknown fixed32", &Message{}, join(open, fixed32Field(9)), nil},
		{"unknown fixed64", &Message{}, join(open, fixed64Field(10)), nil},
		{"unknown field again and again", &Message{}, join(open, many(1000, func(int) []byte { return varintField(7, 1) })), nil},
		{"unknown number above the table", &Message{}, varintField(maxNumber+1, 1), nil},
		{"largest field number", &Message{}, varintField(protowire.MaxValidNumber, 1), nil},
		{"unknown field before the known", &Message{}, join(varintField(99, 1), open), nil},
		{"unknown enum value", &Message{}, varintField(2, 1<<20), nil},
		{"negative enum value", &Message{}, varintField(2, 1<<64-1), nil},
		{"unknown bytes that nest 100 deep", &Message{}, nest(8, nil, 100), nil},
		{"unknown bytes that nest 10000 deep", &Message{}, nest(8, nil, 10_000), nil},
		{"a map entry with a third field", &Message{}, bytesField(5, join(entry("k", "v"), varintField(3, 1))), nil},
		{"a varint longer than needed", &Message{}, []byte{0x10, 0x82, 0x80, 0x00}, nil},
		{"a length longer than needed", &Message{}, []byte{0x0a, 0x82, 0x00, 'i', 'd'}, nil},
	}
}

func damaged() []badCase {
	b := func(name string, b ...byte) badCase { return badCase{name, &Message{}, b, ErrMalformed} }
	return []badCase{
		b("field number 0", 0x00, 0x01),
		b("field number 0 with bytes", 0x02, 0x00),
		b("field number beyond the largest", 0x80, 0x80, 0x80, 0x80, 0x10, 0x01),
		b("field number beyond 32 bits", 0x80, 0x80, 0x80, 0x80, 0x80, 0x02, 0x01),
		b("a tag that does not end", 0x80),
		b("a tag of eleven bytes", 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01),
		b("a tag beyond 64 bits", 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02),
		b("a tag alone", 0x10),
		b("a varint that does not end", 0x10, 0x80),
		b("a varint beyond 64 bits", 0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f),
		b("bytes without a length", 0x1a),
		b("a length that does not end", 0x1a, 0x80),
		b("a length beyond the message", 0x1a, 0x02, 0x00),
		b("a length of 2^31", 0x1a, 0x80, 0x80, 0x80, 0x80, 0x08),
		b("a length of 2^63", 0x1a, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01),
		b("a length of 2^64-1", 0x1a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01),
		b("three bytes of fixed32", 0x4d, 1, 2, 3),
		b("seven bytes of fixed64", 0x51, 1, 2, 3, 4, 5, 6, 7),
		b("an empty group", 0x43, 0x44),
		b("a group in a known field", 0x1b, 0x1c),
		b("the start of a group", 0x43),
		b("the end of a group", 0x44),
		b("wire type 6", 0x46),
		b("wire type 7", 0x47),
		{"groups 10000 deep", &Message{}, bytes.Repeat([]byte{0x43}, 10_000), ErrMalformed},
	}
}

func wrongTypes() []badCase {
	c := func(name string, m pb.Message, b []byte) badCase { return badCase{name, m, b, ErrMalformed} }
	return []badCase{
		c("text as varint", &Message{}, varintField(1, 1)),
		c("text as fixed32", &Message{}, fixed32Field(1)),
		c("text as fixed64", &Message{}, fixed64Field(1)),
		c("enum as bytes", &Message{}, bytesField(2, []byte{1})),
		c("enum as fixed32", &Message{}, fixed32Field(2)),
		c("bytes as varint", &Message{}, varintField(3, 1)),
		c("int64 as fixed64", &Message{}, fixed64Field(4)),
		c("int64 as bytes", &Message{}, bytesField(4, []byte{1, 2})),
		c("map as varint", &Message{}, varintField(5, 1)),
		c("map key as varint", &Message{}, bytesField(5, varintField(1, 1))),
		c("map value as fixed32", &Message{}, bytesField(5, fixed32Field(2))),
		c("sub-message as varint", &Hello{}, varintField(2, 1)),
		c("sub-message of noise", &Hello{}, bytesField(2, []byte{0xff, 0xff})),
		c("list of text as varint", &Hello{}, varintField(4, 1)),
		c("bool as bytes", &Cancel{}, bytesField(2, []byte{1})),
		c("text that is not UTF-8", &Message{}, bytesField(1, []byte{0xff})),
		c("half a rune", &Message{}, bytesField(1, []byte("é")[:1])),
		c("a surrogate", &Message{}, bytesField(1, []byte{0xed, 0xa0, 0x80})),
		c("an overlong rune", &Message{}, bytesField(1, []byte{0xc0, 0x80})),
		c("a map key that is not UTF-8", &Message{}, bytesField(5, entry("\xff", ""))),
		c("a map value that is not UTF-8", &Message{}, bytesField(5, entry("", "\xff"))),
		c("an argument that is not UTF-8", &Content{}, bytesField(20, []byte{0xfe})),
	}
}

func duplicates() []badCase {
	twice := func(b []byte) []byte { return join(b, b) }
	c := func(name string, m pb.Message, b []byte) badCase { return badCase{name, m, b, ErrMalformed} }
	return []badCase{
		c("text twice", &Message{}, twice(bytesField(1, []byte("a")))),
		c("type twice", &Message{}, join(varintField(2, 1), varintField(2, 2))),
		c("payload twice", &Message{}, twice(bytesField(3, []byte("a")))),
		c("empty payload twice", &Message{}, twice(bytesField(3, nil))),
		c("header twice", &Envelope{}, join(bytesField(1, []byte("a")), bytesField(1, []byte("b")))),
		c("up_to twice", &Ack{}, twice(varintField(1, 1))),
		c("certificate twice, to be merged", &Hello{}, join(bytesField(2, bytesField(1, []byte("a"))), bytesField(2, bytesField(2, []byte("b"))))),
		c("peer of a certificate twice", &MemberDetails{}, twice(bytesField(2, make([]byte, 32)))),
		c("key of a map entry twice", &Message{}, bytesField(5, twice(bytesField(1, []byte("k"))))),
		c("65536 times, more than the counter holds", &Message{}, many(65_537, func(int) []byte { return varintField(2, 1) })),
		{"a map key twice", &Message{}, twice(bytesField(5, entry("k", "v"))), nil},
	}
}

func bombs() []badCase {
	empty := func(n protowire.Number) func(int) []byte { return func(int) []byte { return bytesField(n, nil) } }
	numbered := func(i int) []byte { return bytesField(5, entry(fmt.Sprint(i), "")) }
	signed := func(depth int) []byte { return bytesField(2, nest(4, bytesField(1, []byte("x")), depth)) }
	c := func(name string, m pb.Message, want error, b []byte) badCase { return badCase{name, m, b, want} }
	return []badCase{
		c("512 refusals", &Ack{}, nil, many(512, empty(2))),
		c("513 refusals", &Ack{}, ErrTooMany, many(513, empty(2))),
		c("500000 empty refusals", &Ack{}, ErrTooMany, many(500_000, empty(2))),
		c("1000000 empty refusals", &Ack{}, ErrTooLong, many(1_000_000, empty(2))),
		c("500000 empty receipts", &Receipts{}, ErrTooMany, many(500_000, empty(1))),
		c("300000 empty arguments", &Content{}, ErrTooMany, many(300_000, empty(20))),
		c("500000 empty addresses", &Hello{}, ErrTooMany, many(500_000, empty(4))),
		c("90000 map entries", &Message{}, ErrTooMany, many(90_000, numbered)),
		c("500000 empty map entries", &Message{}, ErrTooMany, many(500_000, empty(5))),
		c("16 map entries", &Message{}, nil, many(16, numbered)),
		c("17 map entries", &Message{}, ErrTooMany, many(17, numbered)),
		c("a long map key", &Message{}, ErrTooLong, bytesField(5, entry(strings.Repeat("k", 129), ""))),
		c("a long map value", &Message{}, ErrTooLong, bytesField(5, entry("k", strings.Repeat("v", 1025)))),
		c("arguments of 64 KiB together", &Content{}, nil, many(4, func(int) []byte { return bytesField(20, make([]byte, 16<<10)) })),
		c("arguments of a byte more together", &Content{}, ErrTooLong, append(many(4, func(int) []byte { return bytesField(20, make([]byte, 16<<10)) }), bytesField(20, []byte{'x'})...)),
		c("labels do not count as arguments", &Content{}, nil, join(bytesField(20, make([]byte, MaxArgs)), bytesField(21, make([]byte, MaxInlineBody)))),
		c("peers with too many addresses", &JoinReply{}, ErrTooMany, bytesField(3, many(33, empty(3)))),
		c("an issuer", &Hello{}, nil, signed(1)),
		c("an issuer of an issuer", &Hello{}, ErrTooMany, signed(2)),
		c("issuers 100 deep", &Hello{}, ErrTooMany, signed(100)),
		c("issuers 10000 deep", &Hello{}, ErrTooMany, signed(10_000)),
		c("two certificates with issuers", &Hello{}, nil, join(signed(1), bytesField(3, nest(4, nil, 1)))),
		c("unknown bytes of half a megabyte", &Ack{}, nil, bytesField(99, make([]byte, 512<<10))),
		c("340000 unknown fields", &Ack{}, nil, many(340_000, func(int) []byte { return varintField(99, 1) })),
		c("a megabyte and a byte", &Ack{}, ErrTooLong, make([]byte, MaxEncoded+1)),
	}
}

// Malicious input is decoded with bounded memory or refused with an error that
// states the reason (bad input: protobuf; S54).
func TestBadProtobuf(t *testing.T) {
	cases := slices.Concat(unknownFields(), damaged(), wrongTypes(), duplicates(), bombs())
	if len(cases) < 80 {
		t.Errorf("%d cases, want at least 80", len(cases))
	}
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			bounded(t, len(tt.b), func() {
				if err := Decode(tt.b, tt.m); !errors.Is(err, tt.want) {
					t.Errorf("error %v, want %v", err, tt.want)
				}
			})
		})
	}
}

// Unknown fields of messages from peers, which have no limit, are dropped at any depth;
// signed content is in a bytes field and stays unchanged (S56).
func TestUnknownFieldsOfOthersAreDropped(t *testing.T) {
	unknown := bytesField(40, make([]byte, 70_000))
	details := join([]byte("signed"), bytesField(40, []byte("later")))
	state := join(bytesField(1, []byte("q")), bytesField(18, join(bytesField(1, details), unknown)), unknown)
	var m QueueStates
	if err := DecodeKnown(join(bytesField(1, state), unknown), &m); err != nil {
		t.Fatal(err)
	}
	want := &QueueStates{Queues: []*QueueState{{Name: "q", Deeds: []*Signed{{Details: details}}}}}
	if !pb.Equal(&m, want) {
		t.Errorf("%d bytes are left, want %d", Size(&m), Size(want))
	}
}

// A node's own records keep the fields of a later version (S56).
func TestUnknownFieldsAreKept(t *testing.T) {
	later := join(bytesField(1, []byte("head")), bytesField(40, []byte("later")), varintField(41, 7))
	var e Envelope
	if err := Decode(later, &e); err != nil {
		t.Fatal(err)
	}
	out, err := Encode(nil, &e)
	if err != nil || !bytes.Equal(out, later) {
		t.Errorf("%x became %x: %v", later, out, err)
	}
}

// Decode replaces the content of the message, and does not retain its input.
func TestDecodeReplacesAndCopies(t *testing.T) {
	e := &Envelope{Slot: []byte("old"), Index: 7}
	b := bytesField(1, []byte("head"))
	if err := Decode(b, e); err != nil {
		t.Fatal(err)
	}
	clear(b)
	if want := (&Envelope{Header: []byte("head")}); !pb.Equal(e, want) {
		t.Errorf("%v, want %v", e, want)
	}
}

// A message of another package has no limits here, so it is not decoded.
func TestForeignMessage(t *testing.T) {
	if err := Decode(nil, new(timestamppb.Timestamp)); !errors.Is(err, ErrMalformed) {
		t.Errorf("decode: %v", err)
	}
	if _, err := Encode(nil, new(timestamppb.Timestamp)); !errors.Is(err, ErrMalformed) {
		t.Errorf("encode: %v", err)
	}
}

// An encoding above the total size limit is refused, even if each of its
// fields is within its limit.
func TestEncodeRefusesTheSum(t *testing.T) {
	r := new(Record)
	for range 1024 {
		r.Receipts = append(r.Receipts, &Receipt{Statement: make([]byte, 256), Path: make([]byte, 320)})
		r.Orphans = append(r.Orphans, &Receipt{Statement: make([]byte, 256), Path: make([]byte, 320)})
	}
	if out, err := Encode([]byte("kept"), r); !errors.Is(err, ErrTooLong) || string(out) != "kept" {
		t.Errorf("%d bytes, %v", len(out), err)
	}
}

// sample returns a task in a Message as on the wire: 1 KiB, with a path
// of nine steps and a trace.
func sample(t testing.TB) *Message {
	t.Helper()
	e := &Envelope{Header: make([]byte, 230), Body: make([]byte, 1<<10), Slot: make([]byte, 110), Path: make([]byte, 288), Index: 77}
	b, err := Encode(nil, e)
	if err != nil {
		t.Fatal(err)
	}
	return &Message{
		Id:        "01890000-0000-7000-8000-000000000000",
		Type:      TypeData,
		Payload:   b,
		Timestamp: 1_700_000_000_000_000_000,
		Metadata:  map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
		Signature: make([]byte, 64),
	}
}

// Checking a task's bytes costs a small fraction of decoding them.
func BenchmarkCheck(b *testing.B) {
	m := marshal(b, sample(b))
	s, err := layoutOf(new(Message))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := s.check(m, false); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeMessage(b *testing.B) {
	in := marshal(b, sample(b))
	m := new(Message)
	b.ReportAllocs()
	for b.Loop() {
		if err := Decode(in, m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeEnvelope(b *testing.B) {
	in := sample(b).Payload
	e := new(Envelope)
	b.ReportAllocs()
	for b.Loop() {
		if err := Decode(in, e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendFrame(b *testing.B) {
	m := sample(b)
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if buf, err = AppendFrame(buf[:0], m); err != nil {
			b.Fatal(err)
		}
	}
}
