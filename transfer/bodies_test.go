package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// testStore opens a store of bodies in a temporary folder.
func testStore(t *testing.T) *bodies.Store {
	t.Helper()
	s, err := bodies.Open(filepath.Join(t.TempDir(), "bodies"), bodies.Config{Clock: clock.System()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// referring is the records that refer to one file, or to none.
type referring string

func (r referring) Mark(refer func(name string, origin proto.PeerID)) error {
	if r != "" {
		refer(string(r), proto.PeerID{})
	}
	return nil
}

func (r referring) Awaits(proto.TaskID) bool { return false }

// A sealed result is pinned until the write of its record has ended. Then it is kept if the
// record refers to it, or may still.
func TestUnpin(t *testing.T) {
	for _, tt := range []struct {
		err     error
		written bool
		kept    bool
	}{
		{nil, true, true}, {store.ErrUnknown, false, true}, {errors.New("the record was not written"), false, false},
	} {
		b := &Bodies{Store: testStore(t)}
		path := filepath.Join(t.TempDir(), "result")
		if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		ref, _, err := b.SealFile(t.Context(), path, bodies.AES)
		if err != nil {
			t.Fatal(err)
		}
		name := ref.Name.String()
		sweep := func(r referring) bool {
			if _, err := b.Sweep(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			return b.Has(name)
		}
		if !sweep("") {
			t.Fatalf("before %v a pinned body is removed", tt.err)
		}
		b.Unpin(name, tt.err)
		var records referring
		if tt.written {
			records = referring(name)
		}
		if has := sweep(records); has != tt.kept {
			t.Errorf("after %v the body is stored: %v, want %v", tt.err, has, tt.kept)
		}
	}
}

// Verify reads the whole result, of any size, and stops when its context is done.
func TestVerify(t *testing.T) {
	b := &Bodies{Store: testStore(t)}
	for _, size := range []int{0, 1, verifyStep - 1, verifyStep, verifyStep + 1, 3 * verifyStep} {
		ref, _, err := b.Seal(t.Context(), bytes.NewReader(make([]byte, size)), bodies.SealOptions{Suite: bodies.AES})
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
		if err := b.Verify(t.Context(), o); !errors.Is(err, bodies.ErrSealed) {
			t.Errorf("%d bytes with another digest: %v", size, err)
		}
	}
}

// Place keeps a body of up to the limit in the content, and passes on the error of a stream.
func TestPlaceSmallBodies(t *testing.T) {
	b := new(Bodies)
	for _, src := range []Source{{Inline: make([]byte, proto.MaxInlineBody)}, {Stream: bytes.NewReader(make([]byte, proto.MaxInlineBody))}, {}} {
		d, c := &outbox.Draft{Record: new(proto.Record)}, new(proto.Content)
		want := proto.MaxInlineBody
		if src.Inline == nil && src.Stream == nil {
			want = 0
		}
		if err := b.Place(t.Context(), d, c, src); err != nil || len(c.GetBody()) != want || d.Record.GetBodySize() != uint64(want) || c.GetObject() != nil {
			t.Errorf("%d bytes in the content, %v", len(c.GetBody()), err)
		}
	}
	cut := Source{Stream: iotest.ErrReader(io.ErrUnexpectedEOF)}
	if err := b.Place(t.Context(), &outbox.Draft{Record: new(proto.Record)}, new(proto.Content), cut); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a stream that ends early: %v", err)
	}
	lost := Source{Object: &proto.BodyRef{Name: []byte("short")}}
	if err := b.Place(t.Context(), &outbox.Draft{Record: new(proto.Record)}, new(proto.Content), lost); !errors.Is(err, wire.ErrRefused) {
		t.Errorf("an object that is not stored: %v", err)
	}
}

// A result is as large as it states or as its stream is, whichever is more.
func TestResultSize(t *testing.T) {
	if n := ResultSize(new(proto.Header), &proto.Outcome{Body: make([]byte, 7)}); n != 7 {
		t.Errorf("inline: %d", n)
	}
	if n := ResultSize(new(proto.Header), &proto.Outcome{Body: make([]byte, 7), BodySize: 9}); n != 9 {
		t.Errorf("stated: %d", n)
	}
}
