package proto

import (
	"bytes"
	"testing"

	pb "google.golang.org/protobuf/proto"
)

// The large fields of a message that is decoded with DecodeShared have the memory of its
// encoding, and cannot grow into what follows them there. An empty field is nil.
func TestDecodeSharedSharesMemory(t *testing.T) {
	large := func(c byte) []byte { return bytes.Repeat([]byte{c}, 300) }
	tests := []struct {
		m      Body
		fields func(m Body) [][]byte
	}{
		{&Envelope{Header: large(1), Body: large(2), Slot: large(3), Path: large(4)[:288], Index: 7}, func(m Body) [][]byte {
			e := m.(*Envelope)
			return [][]byte{e.Header, e.Body, e.Slot, e.Path}
		}},
		{&Content{Kind: "k", Body: large(1), BodySize: 300}, func(m Body) [][]byte { return [][]byte{m.(*Content).Body} }},
		{&Outcome{Body: large(1), Reason: "r", Receipts: []*Receipt{
			{Statement: large(2)[:StatementSize], Path: large(3)[:288], Index: 1, Signature: large(4)[:64]}, {Index: 2},
		}}, func(m Body) [][]byte {
			o := m.(*Outcome)
			return [][]byte{o.Body, o.Receipts[0].Statement, o.Receipts[0].Path, o.Receipts[0].Signature}
		}},
	}
	for _, tt := range tests {
		b, err := Encode(nil, tt.m)
		if err != nil {
			t.Fatal(err)
		}
		got := tt.m.ProtoReflect().New().Interface()
		if err := DecodeShared(b, got); err != nil || !pb.Equal(got, tt.m) {
			t.Fatalf("%v: %v", got, err)
		}
		for i, f := range tt.fields(got) {
			if cap(f) != len(f) {
				t.Errorf("%T: field %d has %d bytes and a capacity of %d", got, i, len(f), cap(f))
			}
			clear(f)
		}
		if bytes.Count(b, []byte{0}) < 288 {
			t.Errorf("%T: the encoding does not change with the fields", got)
		}
	}
	b, err := Encode(nil, &Message{Payload: large(1)})
	if err != nil {
		t.Fatal(err)
	}
	var m Message
	if err := DecodeShared(b, &m); err != nil {
		t.Fatal(err)
	}
	if clear(b); m.Payload[0] != 1 {
		t.Error("the payload of a message is shared")
	}
	var e Envelope
	if err := DecodeShared([]byte{numEnvelopeBody<<3 | 2, 0}, &e); err != nil || e.Body != nil {
		t.Errorf("an empty body: %v, %v", e.Body, err)
	}
}
