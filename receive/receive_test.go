package receive

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/balefire/balefire/proto"
)

// An envelope shares the memory of its frame, unless that has much that this node does not
// know, which would stay in memory as long as the envelope.
func TestEnvelopeKeepsNoLargeFrame(t *testing.T) {
	for _, tt := range []struct {
		unknown int
		shared  bool
	}{{0, true}, {maxUnknown / 2, true}, {maxUnknown, false}, {300 << 10, false}} {
		b, err := proto.Encode(nil, &proto.Envelope{Header: []byte("header"), Body: []byte("body")})
		if err != nil {
			t.Fatal(err)
		}
		if tt.unknown > 0 {
			b = protowire.AppendBytes(protowire.AppendTag(b, 60, protowire.BytesType), make([]byte, tt.unknown))
		}
		env, err := decodeEnvelope(b)
		if err != nil || string(env.Header) != "header" || string(env.Body) != "body" {
			t.Fatalf("%v: %v", env, err)
		}
		clear(b)
		if shared := env.Body[0] == 0; shared != tt.shared {
			t.Errorf("with %d unknown bytes it shares the memory of the frame: %v", tt.unknown, shared)
		}
	}
}
