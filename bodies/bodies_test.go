package bodies

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

const testChunk = minChunk

func openStore(t testing.TB, path string, cfg Config) *Store {
	t.Helper()
	s, err := Open(path, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// random returns n bytes that do not compress.
func random(seed byte, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// seal seals a body in small chunks.
func seal(t testing.TB, s *Store, body []byte) Ref {
	t.Helper()
	ref, _, err := s.Seal(context.Background(), bytes.NewReader(body), SealOptions{Suite: AES, chunk: testChunk})
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

func source(t testing.TB, s *Store, ref *Ref) *Source {
	t.Helper()
	src, err := s.Source(ref.Name.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return src
}

// piece is a chunk as a holder sends it.
type piece struct {
	index       int
	chunk, path []byte
}

func pieces(t testing.TB, src *Source) (all []piece) {
	t.Helper()
	for i := range src.Manifest.Chunks() {
		chunk, path, err := src.Chunk(i, make([]byte, src.Manifest.ChunkSize(i)), nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, piece{i, chunk, path})
	}
	return all
}

func receive(t testing.TB, s *Store, m Manifest) *Incoming {
	t.Helper()
	in, err := s.Receive(m, Terms{NotAfter: time.Now().Add(time.Hour).UnixMilli()})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func wantBody(t testing.TB, s *Store, ref *Ref, want []byte) {
	t.Helper()
	r, err := s.Open(ref)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the body has %d bytes, want %d; %v", len(got), len(want), err)
	}
}

func wantUsage(t testing.TB, s *Store, blobs, parts int) {
	t.Helper()
	u := s.Usage()
	if u.Blobs != blobs || u.Parts != parts {
		t.Errorf("%d complete files and %d parts, want %d and %d", u.Blobs, u.Parts, blobs, parts)
	}
	var bytes int64
	list, err := os.ReadDir(s.root.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if filepath.Ext(e.Name()) == partSuffix {
			bytes += s.partSize(e.Name())
		} else if info, err := e.Info(); err == nil {
			bytes += info.Size()
		}
	}
	if u.Bytes != bytes {
		t.Errorf("%d bytes are counted, %d are there", u.Bytes, bytes)
	}
}

// A body comes out unchanged, whether it was compressed or not, and the reference says
// what it is.
func TestSealAndOpen(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	for _, suite := range []byte{AES, ChaCha} {
		for _, size := range []int{0, 1, testChunk - 1, testChunk, testChunk + 1, 5*testChunk + 7} {
			body := random(suite, size)
			ref, m, err := s.Seal(t.Context(), bytes.NewReader(body), SealOptions{Suite: suite, chunk: testChunk})
			if err != nil {
				t.Fatal(err)
			}
			if ref.Packed || ref.Size != int64(size) || ref.Digest != sha256.Sum256(body) || ref.Name != m.Name() {
				t.Errorf("%d bytes: %+v", size, ref)
			}
			wantBody(t, s, &ref, body)
		}
	}
	text := bytes.Repeat([]byte("the same sentence again and again. "), 40_000)
	ref, m, err := s.Seal(t.Context(), bytes.NewReader(text), SealOptions{Suite: AES})
	if err != nil || !ref.Packed || m.Size > int64(len(text))/10 {
		t.Errorf("%d bytes of text became %d, packed %v: %v", len(text), m.Size, ref.Packed, err)
	}
	wantBody(t, s, &ref, text)
}

// The same plain bytes sealed twice are two objects with two keys: a key is used for one
// plaintext only, and a name says nothing about the plaintext.
func TestEachObjectHasItsOwnKey(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	a, b := seal(t, s, []byte("x")), seal(t, s, []byte("x"))
	if a.Key == b.Key || a.Name == b.Name {
		t.Error("two objects share a key or a name")
	}
	a.Name = b.Name
	r, err := s.Open(&a)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadAll(r); !errors.Is(err, ErrSealed) {
		t.Errorf("opened with the key of another object: %v", err)
	}
}

// I9: a reader gets the whole body with its digest, or an error.
func TestWrongReferencesAreRefused(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	good := seal(t, s, random(1, 3*testChunk))
	for name, change := range map[string]func(*Ref){
		"key":    func(r *Ref) { r.Key[0] ^= 1 },
		"suite":  func(r *Ref) { r.Suite = ChaCha },
		"none":   func(r *Ref) { r.Suite = 0 },
		"packed": func(r *Ref) { r.Packed = true },
		"longer": func(r *Ref) { r.Size++ },
		"short":  func(r *Ref) { r.Size-- },
		"digest": func(r *Ref) { r.Digest[0] ^= 1 },
	} {
		ref := good
		change(&ref)
		r, err := s.Open(&ref)
		if err == nil {
			_, err = io.ReadAll(r)
			r.Close()
		}
		if !errors.Is(err, ErrSealed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// I9: chunks that were changed on the disk, swapped or dropped are detected by a reader and
// by a source.
func TestChangedObjectsAreRefused(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Config{})
	ref := seal(t, s, random(1, 3*testChunk))
	path := filepath.Join(dir, ref.Name.String())
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	read := func() error {
		r, err := s.Open(&ref)
		if err == nil {
			_, err = io.ReadAll(r)
			r.Close()
		}
		return err
	}
	send := func() error {
		src, err := s.Source(ref.Name.String())
		if err != nil {
			return err
		}
		defer src.Close()
		for i := range src.Manifest.Chunks() {
			if _, _, err := src.Chunk(i, make([]byte, src.Manifest.ChunkSize(i)), nil); err != nil {
				return err
			}
		}
		return nil
	}
	const block = entrySize + testChunk + tagSize
	tests := []struct {
		name       string
		change     func(b []byte) []byte
		read, send bool // is detected by
	}{
		{"header", func(b []byte) []byte { b[6]++; return b }, true, true},
		{"chunk", func(b []byte) []byte { b[headerSize+block+entrySize+5]++; return b }, true, true},
		{"swapped chunks", func(b []byte) []byte {
			one := bytes.Clone(b[headerSize : headerSize+block])
			copy(b[headerSize:], b[headerSize+block:headerSize+2*block])
			copy(b[headerSize+block:], one)
			return b
		}, true, true},
		{"hash", func(b []byte) []byte { b[headerSize+10]++; return b }, false, true},
		{"cut short", func(b []byte) []byte { return b[:len(b)-1] }, true, true},
		{"empty", func([]byte) []byte { return nil }, true, true},
	}
	for _, tt := range tests {
		if err := os.WriteFile(path, tt.change(bytes.Clone(whole)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := read(); (err != nil) != tt.read {
			t.Errorf("%s: the reader says %v", tt.name, err)
		}
		if err := send(); (err != nil) != tt.send {
			t.Errorf("%s: the source says %v", tt.name, err)
		}
		if err := read(); tt.name == "cut short" && !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: the reader says %v, not that it is damaged", tt.name, err)
		}
	}
}

// An object comes from two holders in any order; one of them lies in the manifest, in
// paths and in chunks. None of that is written, and the object is complete.
func TestOneOfTwoHoldersLies(t *testing.T) {
	honest, other := openStore(t, t.TempDir(), Config{}), openStore(t, t.TempDir(), Config{})
	body := random(1, 20*testChunk+100)
	ref := seal(t, honest, body)
	src := source(t, honest, &ref)
	good := pieces(t, src)
	fakeRef := seal(t, other, random(2, 20*testChunk+100))
	fake := pieces(t, source(t, other, &fakeRef))

	fakeManifest := source(t, other, &fakeRef).Manifest
	if _, err := CheckManifest(fakeManifest.Append(nil), ref.Name); !errors.Is(err, ErrManifest) {
		t.Errorf("a manifest of another object: %v", err)
	}
	m, err := CheckManifest(src.Manifest.Append(nil), ref.Name)
	if err != nil {
		t.Fatal(err)
	}

	s := openStore(t, t.TempDir(), Config{})
	in := receive(t, s, m)
	for _, i := range rand.Perm(len(good)) {
		p, next := good[i], good[(i+1)%len(good)]
		flipped := bytes.Clone(p.chunk)
		flipped[len(flipped)/2] ^= 1
		badPath := bytes.Clone(p.path)
		badPath[40] ^= 1
		for name, lie := range map[string]piece{
			"another object's":       fake[i],
			"chunk":                  {i, flipped, p.path},
			"path":                   {i, p.chunk, badPath},
			"place":                  {next.index, p.chunk, p.path},
			"neighbor's path":        {i, p.chunk, next.path},
			"short path":             {i, p.chunk, p.path[32:]},
			"long path":              {i, p.chunk, append(bytes.Clone(p.path), make([]byte, 32)...)},
			"cut chunk":              {i, p.chunk[1:], p.path},
			"place behind the end":   {len(good), p.chunk, p.path},
			"place before the first": {-1, p.chunk, p.path},
		} {
			if err := in.Put(lie.index, lie.chunk, lie.path); !errors.Is(err, ErrChunk) {
				t.Errorf("chunk %d, lie in %s: %v", i, name, err)
			}
		}
		for range 2 { // from both
			if err := in.Put(p.index, p.chunk, p.path); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := in.Commit(); err != nil {
		t.Fatal(err)
	}
	wantBody(t, s, &ref, body)
	wantUsage(t, s, 1, 0)
	if got := pieces(t, source(t, s, &ref)); !bytes.Equal(got[7].path, good[7].path) {
		t.Error("who received an object cannot serve it")
	}
}

// What was synced is here after a crash, whatever else was written; the rest comes again
// (S12).
func TestBitmapIsDurable(t *testing.T) {
	from := openStore(t, t.TempDir(), Config{})
	body := random(1, 9*testChunk)
	ref := seal(t, from, body)
	src := source(t, from, &ref)
	all := pieces(t, src)
	dir := t.TempDir()
	have, done := 0, map[int]bool{}
	for n, i := range []int{4, 0, 8, 1, 2, 7, 5, 3, 6} {
		s := openStore(t, dir, Config{})
		in := receive(t, s, src.Manifest)
		if got := in.Durable(); got != have {
			t.Fatalf("%d chunks after restart %d, want %d", got, n, have)
		}
		p := all[i]
		if err := in.Put(p.index, p.chunk, p.path); err != nil {
			t.Fatal(err)
		}
		if err := in.Sync(); err != nil {
			t.Fatal(err)
		}
		have++
		done[i] = true
		q := all[(i+1)%9] // written, not synced, and then the process dies
		if err := in.Put(q.index, q.chunk, q.path); err != nil {
			t.Fatal(err)
		}
		in.file.Close()
		if n%2 == 0 && !done[q.index] { // its entry is torn
			f, err := os.OpenFile(filepath.Join(dir, in.name+partSuffix), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			f.WriteAt([]byte("torn"), entryAt(&src.Manifest, q.index))
			f.Close()
		}
		s.Close()
	}
	s := openStore(t, dir, Config{})
	for range 2 { // all chunks are durable: it needs its name alone
		if _, err := s.Receive(src.Manifest, Terms{}); !errors.Is(err, ErrExists) {
			t.Errorf("a complete object is received again: %v", err)
		}
		wantBody(t, s, &ref, body)
		wantUsage(t, s, 1, 0)
	}
}

// A part is not the object, and has one receiver at a time.
func TestParts(t *testing.T) {
	from, s := openStore(t, t.TempDir(), Config{}), openStore(t, t.TempDir(), Config{MaxBody: 5 * testChunk})
	ref := seal(t, from, random(1, 3*testChunk))
	src := source(t, from, &ref)
	in := receive(t, s, src.Manifest)
	if _, err := s.Receive(src.Manifest, Terms{}); !errors.Is(err, ErrBusy) {
		t.Errorf("a second receiver: %v", err)
	}
	if err := in.Commit(); err == nil {
		t.Error("a part without chunks is complete")
	}
	if s.Has(ref.Name.String()) || s.Pin(ref.Name.String()) {
		t.Error("a part is found as an object")
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := in.Put(0, nil, nil); err == nil {
		t.Error("written after Close")
	}
	wantUsage(t, s, 0, 1)
	big := seal(t, from, random(1, 6*testChunk))
	if _, err := s.Receive(source(t, from, &big).Manifest, Terms{}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("beyond MaxBody: %v", err)
	}
}

// Sealed bytes that are too large for a record are stored once under their digest.
func TestPut(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	a, err := s.Put([]byte("sealed"), false)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Put([]byte("sealed"), false)
	if err != nil || a != b {
		t.Errorf("stored as %s and %s: %v", a, b, err)
	}
	if got, err := s.Get(a, 6); err != nil || string(got) != "sealed" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := s.Get(a, 5); !errors.Is(err, ErrTooLarge) {
		t.Errorf("beyond the limit: %v", err)
	}
	wantUsage(t, s, 1, 0)
}

func TestNamesLeadNowhereElse(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	for _, name := range []string{"", ".", "../x", "o-1", "a/b", "w-x", "o-" + string(bytes.Repeat([]byte("A"), 64)), "x.part"} {
		if _, err := s.Get(name, 1); err == nil || s.Has(name) || s.Pin(name) {
			t.Errorf("%q was found: %v", name, err)
		}
	}
}

// After a failed write, sync or rename there is no object under the name, and what was
// durable of a part is still there.
func TestFailuresLeaveNothingHalf(t *testing.T) {
	from := openStore(t, t.TempDir(), Config{})
	ref := seal(t, from, random(1, 3*testChunk))
	src := source(t, from, &ref)
	all := pieces(t, src)
	boom := errors.New("boom")
	for _, op := range []string{"write", "sync", "rename", "syncdir"} {
		fail := false
		s := openStore(t, t.TempDir(), Config{fault: func(o string) error {
			if fail && o == op {
				return boom
			}
			return nil
		}})
		in := receive(t, s, src.Manifest)
		if err := errors.Join(in.Put(0, all[0].chunk, all[0].path), in.Sync()); err != nil {
			t.Fatal(err)
		}
		fail = true
		if _, _, err := s.Seal(t.Context(), bytes.NewReader(make([]byte, 10)), SealOptions{Suite: AES}); !errors.Is(err, boom) {
			t.Errorf("%s: Seal: %v", op, err)
		}
		if _, err := s.Put([]byte("x"), false); !errors.Is(err, boom) {
			t.Errorf("%s: Put: %v", op, err)
		}
		var err error
		for _, p := range all {
			err = errors.Join(err, in.Put(p.index, p.chunk, p.path))
		}
		if err = errors.Join(err, in.Commit()); !errors.Is(err, boom) {
			t.Errorf("%s: Commit: %v", op, err)
		}
		in.Close()
		fail = false
		if op == "syncdir" {
			continue // the name may be durable
		}
		if s.Has(ref.Name.String()) {
			t.Errorf("%s: the object is there", op)
		}
		in, err = s.Receive(src.Manifest, Terms{})
		if op == "rename" { // only the name was missing
			if !errors.Is(err, ErrExists) {
				t.Errorf("%s: after it: %v", op, err)
			}
		} else if err != nil || in.Durable() < 1 {
			t.Fatalf("%s: a durable chunk is gone: %v", op, err)
		} else {
			for _, p := range all {
				err = errors.Join(err, in.Put(p.index, p.chunk, p.path))
			}
			if err = errors.Join(err, in.Commit()); err != nil {
				t.Errorf("%s: after it: %v", op, err)
			}
		}
		wantUsage(t, s, 1, 0)
	}
}

// A caller that is gone, or a stream that fails, leaves nothing behind.
func TestSealStops(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Seal(ctx, bytes.NewReader(random(1, 10)), SealOptions{Suite: AES}); !errors.Is(err, context.Canceled) {
		t.Errorf("Seal: %v", err)
	}
	broken := io.MultiReader(bytes.NewReader(random(1, 1<<20)), brokenReader{})
	if _, _, err := s.Seal(t.Context(), broken, SealOptions{Suite: AES}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Seal: %v", err)
	}
	wantUsage(t, s, 0, 0)
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// What an earlier process was sealing is removed.
func TestUnfinishedSealsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, Config{})
	if _, err := s.create(false); err != nil {
		t.Fatal(err)
	}
	s.Close()
	wantUsage(t, openStore(t, dir, Config{}), 0, 0)
}

// I13: below the limit of space new bodies are refused with a reason, results are not.
func TestLimits(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{MaxTotal: 10_000, MaxBody: 8000})
	if _, err := s.Put(make([]byte, 8001), false); !errors.Is(err, ErrTooLarge) {
		t.Errorf("beyond MaxBody: %v", err)
	}
	if _, err := s.Put(make([]byte, 8000), false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(make([]byte, 3000), false); !errors.Is(err, ErrFull) {
		t.Errorf("beyond MaxTotal: %v", err)
	}
	if _, _, err := s.Seal(t.Context(), bytes.NewReader(random(1, 3000)), SealOptions{Suite: AES}); !errors.Is(err, ErrFull) {
		t.Errorf("beyond MaxTotal: %v", err)
	}
	writes := 0
	failing := openStore(t, t.TempDir(), Config{fault: func(point string) error {
		if writes++; point == "write" && writes > 20 {
			return errors.New("no space left")
		}
		return nil
	}})
	var text []byte
	for i := range 1 << 20 { // each line shrinks to a third
		text = fmt.Appendf(text, "%016x\n", i*i*i)
	}
	if _, _, err := failing.Seal(t.Context(), bytes.NewReader(text), SealOptions{Suite: AES}); err == nil || strings.Count(err.Error(), "no space left") != 1 {
		t.Errorf("a write that fails: %v", err)
	}
	if _, err := s.Put(make([]byte, 3000), true); err != nil {
		t.Errorf("a result: %v", err)
	}
	wantUsage(t, s, 2, 0)
	half := openStore(t, t.TempDir(), Config{Space: func() (int64, int64, error) { return 100, 1000, nil }})
	if got := half.Usage().MaxTotal; got != 50 {
		t.Errorf("the default limit is %d, want half of 100", got)
	}
}

// An origin may refer to nine times what is free, in complete objects and in parts, also
// after a restart; each that refers to an object is charged its full size. A part without
// progress for an hour makes room.
func TestOneOriginsPartsLeaveSpaceForOthers(t *testing.T) {
	m := clock.NewManual(time.Unix(1e9, 0))
	from := openStore(t, t.TempDir(), Config{})
	dir := t.TempDir()
	cfg := Config{MaxTotal: 100 * testChunk, Clock: m.Clock()}
	s := openStore(t, dir, cfg)
	mallory, alpha := proto.PeerID{1}, proto.PeerID{2}
	refs := map[string]Ref{}
	get := func(name string, origin proto.PeerID, chunks, put int) error {
		if _, ok := refs[name]; !ok {
			refs[name] = seal(t, from, random(byte(len(refs)), chunks*testChunk))
		}
		ref := refs[name]
		src := source(t, from, &ref)
		in, err := s.Receive(src.Manifest, Terms{Origin: origin, NotAfter: m.Clock().Now().Add(24 * time.Hour).UnixMilli()})
		if err != nil {
			return err
		}
		defer in.Close()
		for _, p := range pieces(t, src)[:put] {
			if err := in.Put(p.index, p.chunk, p.path); err != nil {
				return err
			}
		}
		if put < chunks {
			return in.Sync()
		}
		return in.Commit()
	}
	check := func(when string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", when, err, want)
		}
	}
	check("an object", get("whole", mallory, 40, 40), nil)
	check("a part", get("stalled", mallory, 40, 39), nil)
	check("beyond its share", get("more", mallory, 15, 1), ErrShare)
	check("another origin", get("other", alpha, 10, 10), nil)
	check("the same object", get("other", mallory, 10, 10), ErrExists)
	check("more than is free", get("huge", alpha, 60, 1), ErrFull)

	s.Close()
	s = openStore(t, dir, cfg)
	whole, other := refs["whole"], refs["other"]
	removed, err := s.Sweep(t.Context(), markFunc(func(refer func(string, proto.PeerID)) error {
		refer(whole.Name.String(), mallory)
		refer(other.Name.String(), mallory)
		refer(other.Name.String(), alpha)
		return nil
	}))
	if err != nil || removed != 0 {
		t.Errorf("swept %d: %v", removed, err)
	}
	if got := s.charges[mallory].total; got < 90*testChunk || got > 100*testChunk {
		t.Errorf("%d bytes are charged, want 40, 40 and 10 chunks", got)
	}
	check("beyond its share after a restart", get("tiny", mallory, 2, 1), ErrShare)
	m.Advance(2 * time.Hour)
	check("in place of a stalled part", get("large", alpha, 38, 38), nil)
	stalled := refs["stalled"]
	if _, err := os.Stat(filepath.Join(dir, stalled.Name.String()+partSuffix)); err == nil {
		t.Error("the stalled part is still there")
	}
}

func TestManifestIsExact(t *testing.T) {
	good := Manifest{Size: 5*(testChunk+tagSize) + 17, Chunk: testChunk}
	b := good.Append(nil)
	if m, err := ParseManifest(b); err != nil || m != good || m.Chunks() != 6 || m.ChunkSize(5) != 17 {
		t.Errorf("%+v, %v", m, err)
	}
	for name, bad := range map[string]Manifest{
		"no chunk":               {Size: 0, Chunk: testChunk},
		"less than a tag":        {Size: 15, Chunk: testChunk},
		"an empty last chunk":    {Size: testChunk + 2*tagSize, Chunk: testChunk},
		"a last chunk too short": {Size: testChunk + tagSize + 3, Chunk: testChunk},
		"small chunks":           {Size: 100, Chunk: minChunk - 1},
		"large chunks":           {Size: 100, Chunk: proto.ChunkSize + 1},
		"too many chunks":        {Size: maxChunks*(testChunk+tagSize) + 17, Chunk: testChunk},
	} {
		if _, err := ParseManifest(bad.Append(nil)); !errors.Is(err, ErrManifest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func ExampleStore_Seal() {
	dir, _ := os.MkdirTemp("", "bodies")
	defer os.RemoveAll(dir)
	s, _ := Open(dir, Config{})
	defer s.Close()
	ref, _, _ := s.Seal(context.Background(), bytes.NewReader(make([]byte, 1<<20)), SealOptions{Suite: AES})
	defer s.Release(ref.Name.String()) // after the record that refers to it is durable
	r, _ := s.Open(&ref)
	defer r.Close()
	n, _ := io.Copy(io.Discard, r)
	fmt.Println(n, ref.Packed)
	// Output: 1048576 true
}
