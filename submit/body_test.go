package submit

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/transport"
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

// referring holds the records that refer to one file, or to none.
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

// errSealed is returned at a failpoint after a result is sealed.
var errSealed = errors.New("the result is sealed")

// The inbox learns that there is no room for a result in a file, and of no other error that
// it has to wait for room.
func TestRoomError(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limits bodies.Config
		size   int
		file   bool // the result is in a file
		want   error
		noRoom bool
	}{
		{"a small result", bodies.Config{MaxBody: 1}, 1, false, errSealed, false},
		{"a large result", bodies.Config{}, largeResult, false, errSealed, false},
		{"a large result with all space for bodies taken", bodies.Config{MaxTotal: 1}, largeResult, false, errSealed, false},
		{"a large result above the limit of a body", bodies.Config{MaxBody: 1}, largeResult, false, wire.ErrInvalid, false},
		{"a file", bodies.Config{}, largeResult, true, errSealed, false},
		{"a file with all space for bodies taken", bodies.Config{MaxTotal: 1}, largeResult, true, errSealed, false},
		{"a file above the limit of a body", bodies.Config{MaxBody: 1}, largeResult, true, bodies.ErrTooLarge, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := putResult(t, t.TempDir(), tt.limits, tt.size, tt.file)
			if !errors.Is(err, tt.want) || errors.Is(err, inbox.ErrNoRoom) != tt.noRoom {
				t.Errorf("%v, want %v, which is a lack of room: %v", err, tt.want, tt.noRoom)
			}
		})
	}
}

// largeResult is the size of a result that no record can contain.
const largeResult = proto.MaxInlineBody / 2

// putResult seals a result of size bytes, or a file with one, and stores its body in dir.
// Nothing is put into an outbox: it returns errSealed before that.
func putResult(t *testing.T, dir string, limits bodies.Config, size int, file bool) error {
	t.Helper()
	s := testSubmitter(t, dir, limits)
	s.Fail = func(string) error { return errSealed }
	result := make([]byte, size)
	rand.Read(result) // so that it cannot be compressed
	f := &inbox.Finished{ID: proto.NewTaskID(time.Now()), Origin: s.Keys.Peer(), Kind: "k", Outcome: &proto.Outcome{State: proto.Success}}
	if !file {
		f.Outcome.Body = result
		return s.PutResult(t.Context(), f, nil)
	}
	f.File = filepath.Join(t.TempDir(), "result")
	if err := os.WriteFile(f.File, result, 0o600); err != nil {
		t.Fatal(err)
	}
	return s.PutResult(t.Context(), f, nil)
}

// A result is sealed to be valid for 30 days, however long its task was.
func TestResultIsSealedFor30Days(t *testing.T) {
	s := testSubmitter(t, t.TempDir(), bodies.Config{})
	f := &inbox.Finished{ID: proto.NewTaskID(time.Now()), Origin: s.Keys.Peer(), Kind: "k", Outcome: &proto.Outcome{State: proto.Success}}
	began := time.Now()
	d, err := s.resultDraft(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	const valid = 30 * 24 * time.Hour
	if end := time.UnixMilli(d.Header.NotAfter); end.Before(began.Add(valid).Truncate(time.Millisecond)) || end.After(time.Now().Add(valid)) {
		t.Errorf("it is valid until %v, want 30 days", end)
	}
}

// testSubmitter returns a submitter without an outbox that stores bodies in dir.
func testSubmitter(t *testing.T, dir string, limits bodies.Config) *Submitter {
	t.Helper()
	limits.Clock = clock.System()
	b, err := bodies.Open(filepath.Join(dir, "bodies"), limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	records, err := store.Open(mem.New(), store.Config{SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { records.Close() })
	keys := identity.NewKeys(nil, time.Now())
	book, err := addressbook.Open(records, identity.Mesh{}, keys, nil, clock.System(), transport.Multiaddrs{})
	if err != nil {
		t.Fatal(err)
	}
	return New(Parts{
		Sealing: Sealing{Book: book, Sealer: identity.NewSealer(clock.System()), Bodies: b},
		Keys:    keys, Clock: clock.System(),
	})
}
