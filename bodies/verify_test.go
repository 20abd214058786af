package bodies

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"path/filepath"
	"testing"

	"github.com/balefire/balefire/proto"
)

// Verify reads the whole result, of any size, and stops when its context is done.
func TestVerify(t *testing.T) {
	b, err := Open(filepath.Join(t.TempDir(), "bodies"), Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 1, verifyStep - 1, verifyStep, verifyStep + 1, 3 * verifyStep} {
		ref, _, err := b.Seal(t.Context(), bytes.NewReader(make([]byte, size)), SealOptions{Suite: AES})
		if err != nil {
			t.Fatal(err)
		}
		o := &proto.Outcome{Object: ref.Proto(), BodySize: uint64(ref.Size), BodyDigest: ref.Digest[:]}
		if err := b.Verify(t.Context(), o); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.Verify(ctx, o); !errors.Is(err, context.Canceled) {
			t.Errorf("%d bytes with a done context: %v", size, err)
		}
		wrong := sha256.Sum256([]byte("another"))
		o.BodyDigest = wrong[:]
		if err := b.Verify(t.Context(), o); !errors.Is(err, ErrSealed) {
			t.Errorf("%d bytes with another digest: %v", size, err)
		}
	}
}
