package receive

import (
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/balefire/balefire/proto"
)

// An envelope and a content share the memory of what they are decoded from, unless that has
// much that this node does not know, which would stay in memory as long as they do.
func TestUnknownFieldsStayNotInMemory(t *testing.T) {
	body := []byte("body")
	for _, unknown := range []int{0, maxUnknown / 2, maxUnknown, 300 << 10} {
		for _, m := range []interface {
			proto.Body
			GetBody() []byte
		}{&proto.Envelope{Body: body}, &proto.Content{Body: body}} {
			b, err := proto.Encode(nil, m)
			if err != nil {
				t.Fatal(err)
			}
			if unknown > 0 {
				b = protowire.AppendBytes(protowire.AppendTag(b, 60, protowire.BytesType), make([]byte, unknown))
			}
			if err := decode(b, m); err != nil || string(m.GetBody()) != string(body) {
				t.Fatalf("%v: %v", m, err)
			}
			clear(b)
			if shared := m.GetBody()[0] == 0; shared != (unknown < maxUnknown) {
				t.Errorf("%T with %d unknown bytes shares the memory of its encoding: %v", m, unknown, shared)
			}
		}
	}
}
