package identity

import (
	"bytes"
	"testing"

	"github.com/balefire/balefire/proto"
)

// FuzzRevocationLog checks that any bytes are read without a panic and that the records
// read survive a round trip.
func FuzzRevocationLog(f *testing.F) {
	whole, err := AppendRevocation(nil, &proto.Signed{Details: []byte("details"), Signature: []byte("signature")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(append(bytes.Clone(whole), whole[:5]...))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		all, _ := ReadRevocations(b)
		var again []byte
		for _, s := range all {
			var err error
			if again, err = AppendRevocation(again, s); err != nil {
				return // unknown fields may make it longer than the bound
			}
		}
		if got, ok := ReadRevocations(again); !ok || len(got) != len(all) {
			t.Fatalf("%d records were read again as %d, %v", len(all), len(got), ok)
		}
	})
}

// A log truncated anywhere yields the records before the cut.
func TestCutRevocationLog(t *testing.T) {
	one, err := AppendRevocation(nil, &proto.Signed{Details: []byte("details")})
	if err != nil {
		t.Fatal(err)
	}
	two := append(bytes.Clone(one), one...)
	for cut := range two {
		all, whole := ReadRevocations(two[:cut])
		if len(all) != cut/len(one) || whole != (cut%len(one) == 0) {
			t.Errorf("cut at %d of %d: %d records, whole %v", cut, len(two), len(all), whole)
		}
	}
}
