package proto

import (
	"bytes"
	"errors"
	"testing"

	pb "google.golang.org/protobuf/proto"
)

// Encoding in two steps yields the same bytes as encoding in one.
func TestUnsignedIsEncodedAsOneStored(t *testing.T) {
	full := &Record{
		State: Pending, Class: Low, Peer: seq(1, 32), Kind: "build", SeqBoot: 1 << 40, SeqCounter: 9,
		CreatedMs: 5, NotAfterMs: 1 << 50, Events: []*Event{{TimeMs: 5, Cause: TaskSubmitted}}, Target: "laptop", Labels: map[string]string{"a": "b"},
	}
	tests := []struct {
		name   string
		stored *Stored
		path   []byte
		index  uint32
		sig    []byte
	}{
		{"alone in its group", &Stored{Envelope: &Envelope{Header: seq(0, 202), Body: seq(7, 1100), Slot: seq(3, 101)}, Record: full, Key: seq(9, 32)}, nil, 0, seq(1, 64)},
		{"the first of a group", &Stored{Envelope: &Envelope{Header: seq(0, 202), Body: seq(7, 1100), Slot: seq(3, 101)}, Record: full, Key: seq(9, 32)}, seq(5, 224), 0, seq(1, 64)},
		{"the last of the largest group", &Stored{Envelope: &Envelope{Header: seq(0, 202), Slot: seq(3, 101)}, Record: full}, seq(5, maxPath), MaxGroup - 1, seq(1, 64)},
		{"a short envelope", &Stored{Envelope: &Envelope{Header: []byte{1}}, Record: &Record{}}, nil, 1, nil},
		{"a body of the largest size", &Stored{Envelope: &Envelope{Body: make([]byte, MaxSealed)}, Record: full}, seq(5, 32), 1, seq(1, 64)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			u, err := EncodeUnsigned(make([]byte, 9, 600), tt.stored)
			if err != nil {
				t.Fatal(err)
			}
			got := u.Append([]byte("before"), tt.path, tt.index, tt.sig)
			e := tt.stored.Envelope
			e.Path, e.Index, e.Signature = tt.path, tt.index, tt.sig
			want, err := Encode([]byte("before"), tt.stored)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got  %x\nwant %x", got, want)
			}
			back := new(Stored)
			if err := Decode(got[len("before"):], back); err != nil || !pb.Equal(back, tt.stored) {
				t.Errorf("decoded as %v, %v", back, err)
			}
		})
	}
}

func TestUnsignedRefusesWhatCouldNotBeRead(t *testing.T) {
	tests := []struct {
		name   string
		stored *Stored
		want   error
	}{
		{"a signed envelope", &Stored{Envelope: &Envelope{Signature: seq(0, 64)}}, ErrMalformed},
		{"a header that is too long", &Stored{Envelope: &Envelope{Header: make([]byte, MaxHeader+1)}}, ErrTooLong},
		{"a key that is too long", &Stored{Envelope: &Envelope{}, Key: make([]byte, 33)}, ErrTooLong},
		{"text that is not UTF-8", &Stored{Envelope: &Envelope{}, Record: &Record{Kind: "\xff"}}, ErrMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := EncodeUnsigned(make([]byte, 9, 600), tt.stored); !errors.Is(err, tt.want) {
				t.Errorf("EncodeUnsigned = %v, want %v", err, tt.want)
			}
		})
	}
}
