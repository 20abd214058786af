package submit

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
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
		b := &Sealing{Bodies: testStore(t)}
		path := filepath.Join(t.TempDir(), "result")
		if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		ref, _, err := b.Bodies.SealFile(t.Context(), path, bodies.AES)
		if err != nil {
			t.Fatal(err)
		}
		name := ref.Name.String()
		sweep := func(r referring) bool {
			if _, err := b.Bodies.Sweep(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			return b.Bodies.Has(name)
		}
		if !sweep("") {
			t.Fatalf("before %v a pinned body is removed", tt.err)
		}
		b.unpin(name, tt.err)
		var records referring
		if tt.written {
			records = referring(name)
		}
		if has := sweep(records); has != tt.kept {
			t.Errorf("after %v the body is stored: %v, want %v", tt.err, has, tt.kept)
		}
	}
}

// A small body stays in the content; the error of a stream is passed on.
func TestPlaceSmallBodies(t *testing.T) {
	s := &Sealing{Bodies: testStore(t)}
	place := func(r Request) (*outbox.Draft, *proto.Content, error) {
		d, c := &outbox.Draft{Record: new(proto.Record)}, new(proto.Content)
		return d, c, s.place(t.Context(), d, c, identity.KeyRecord{}, &r)
	}
	whole := make([]byte, proto.MaxInlineBody)
	for _, r := range []wire.Request{{Body: whole}, {Stream: bytes.NewReader(whole)}, {}} {
		want := proto.MaxInlineBody
		if r.Body == nil && r.Stream == nil {
			want = 0
		}
		if d, c, err := place(Request{Request: r}); err != nil || len(c.GetBody()) != want || d.Record.GetBodySize() != uint64(want) || c.GetObject() != nil {
			t.Errorf("%d bytes in the content, %v", len(c.GetBody()), err)
		}
	}
	if _, _, err := place(Request{Request: wire.Request{Stream: iotest.ErrReader(io.ErrUnexpectedEOF)}}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a stream that ends early: %v", err)
	}
	if _, _, err := place(Request{Object: &proto.BodyRef{Name: []byte("short")}}); !errors.Is(err, wire.ErrRefused) {
		t.Errorf("an object that is not stored: %v", err)
	}
}

// The inbox learns that the disk has no room for a sealed result, and of no other error.
func TestRoomError(t *testing.T) {
	s := &Sealing{}
	var err error
	if s.Bodies, err = bodies.Open(filepath.Join(t.TempDir(), "bodies"), bodies.Config{Clock: clock.System(), MaxTotal: 1}); err != nil {
		t.Fatal(err)
	}
	d := &outbox.Draft{Record: new(proto.Record), Envelope: &proto.Envelope{Body: make([]byte, proto.MaxSealedRecord+1)}}
	if err := roomError(s.offload(d)); !errors.Is(err, inbox.ErrNoRoom) {
		t.Errorf("without room: %v", err)
	}
	if err := roomError(storeError(bodies.ErrTooLarge)); errors.Is(err, inbox.ErrNoRoom) {
		t.Errorf("a body that is too large: %v", err)
	}
	if err := roomError(nil); err != nil {
		t.Error(err)
	}
}
