package bodies

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// TestResultsAreTakenBeyondTheLimit (I13): results are bounded only by the disk, of which
// one origin may refer to nine times the free space.
func TestResultsAreTakenBeyondTheLimit(t *testing.T) {
	disk := int64(200 * testChunk)
	from := openStore(t, t.TempDir(), Config{})
	s := openStore(t, t.TempDir(), Config{MaxTotal: testChunk, Space: func() (int64, int64, error) { return disk, 1 << 30, nil }})
	get := func(origin byte, chunks int, essential bool) error {
		ref := seal(t, from, random(byte(chunks), chunks*testChunk))
		src := source(t, from, &ref)
		in, err := s.Receive(src.Manifest, Terms{Origin: proto.PeerID{origin}, NotAfter: time.Now().Add(time.Hour).UnixMilli(), Essential: essential})
		if err != nil {
			return err
		}
		defer in.Close()
		for _, p := range pieces(t, src) {
			if err := in.Put(p.index, p.chunk, p.path); err != nil {
				return err
			}
		}
		return in.Commit()
	}
	if err := get(1, 100, true); err != nil {
		t.Errorf("a result beyond the limit: %v", err)
	}
	disk -= 100 * testChunk
	if err := get(1, 95, true); !errors.Is(err, ErrShare) {
		t.Errorf("a result that fills the disk: %v", err)
	}
	if err := get(2, 80, true); err != nil {
		t.Errorf("the result of another: %v", err)
	}
	if err := get(1, 2, false); !errors.Is(err, ErrFull) {
		t.Errorf("a task beyond the limit: %v", err)
	}
	wantUsage(t, s, 2, 0)
}

// Symbolic links in the folder, and files with other names, are neither read nor removed.
func TestOtherFilesAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := Name{1}.String()
	if err := os.Symlink(outside, filepath.Join(dir, link)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("y"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, dir, Config{})
	if _, err := s.Get(link, 10); err == nil || s.Has(link) {
		t.Error("a link was followed")
	}
	ref := seal(t, s, random(1, 10))
	s.Release(ref.Name.String())
	if n := sweep(t, s, records{}); n != 1 {
		t.Errorf("%d files swept, want the object alone", n)
	}
	for _, path := range []string{outside, filepath.Join(dir, link), filepath.Join(dir, "notes.txt")} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
}

// Many seal, put, receive and sweep at once, and the counts are right in the end.
func TestManyAtOnce(t *testing.T) {
	from, s := openStore(t, t.TempDir(), Config{}), openStore(t, t.TempDir(), Config{})
	var wg sync.WaitGroup
	for i := range byte(8) {
		other := seal(t, from, random(i, 3*testChunk))
		src := source(t, from, &other)
		list := pieces(t, src)
		wg.Go(func() {
			ref, _, err := s.Seal(t.Context(), bytes.NewReader(random(i, 5*testChunk)), SealOptions{Suite: AES, chunk: testChunk})
			if err != nil {
				t.Error(err)
				return
			}
			name, err := s.Put(fmt.Appendf(nil, "%d", i%4), false)
			if err != nil {
				t.Error(err)
			}
			s.Release(name)
			s.Release(ref.Name.String())
			if _, err := s.Sweep(t.Context(), records{}); err != nil && !errors.Is(err, ErrBusy) {
				t.Error(err)
			}
			in, err := s.Receive(src.Manifest, Terms{NotAfter: time.Now().Add(time.Hour).UnixMilli()})
			if err != nil {
				t.Error(err)
				return
			}
			var chunks sync.WaitGroup
			for _, p := range list {
				chunks.Go(func() {
					if err := in.Put(p.index, p.chunk, p.path); err != nil {
						t.Error(err)
					}
				})
			}
			chunks.Wait()
			if err := in.Commit(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	sweep(t, s, records{})
	wantUsage(t, s, 8, 0)
}

// Until a received object has its name nobody else may receive it, and no sweep removes it.
func TestNobodyReceivesWhatIsBeingNamed(t *testing.T) {
	from := openStore(t, t.TempDir(), Config{})
	ref := seal(t, from, random(1, 3*testChunk))
	src := source(t, from, &ref)
	var s *Store
	named := false
	s = openStore(t, t.TempDir(), Config{fault: func(op string) error {
		if op == "rename" {
			named = true
			if !s.writing[ref.Name.String()] {
				t.Error("another receiver could begin before the object had its name")
			}
		}
		return nil
	}})
	in := receive(t, s, src.Manifest)
	for _, p := range pieces(t, src) {
		if err := in.Put(p.index, p.chunk, p.path); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.Commit(); err != nil || !named {
		t.Fatalf("Commit: %v, named: %v", err, named)
	}
	if _, err := s.Receive(src.Manifest, Terms{}); !errors.Is(err, ErrExists) {
		t.Errorf("received again: %v", err)
	}
	wantUsage(t, s, 1, 0)
}

// What is durable of a large part is read without the lock of the store: of many gigabytes
// that takes minutes, in which others must be stored.
func TestOthersDoNotWaitForAPartToBeRead(t *testing.T) {
	from := openStore(t, t.TempDir(), Config{})
	ref := seal(t, from, random(1, 3*testChunk))
	src := source(t, from, &ref)
	var s *Store
	read := 0
	s = openStore(t, t.TempDir(), Config{fault: func(op string) error {
		if op != "read" {
			return nil
		}
		read++
		if !s.mu.TryLock() {
			t.Error("the store is locked")
			return nil
		}
		s.mu.Unlock()
		if _, err := s.Receive(src.Manifest, Terms{}); !errors.Is(err, ErrBusy) {
			t.Errorf("another receiver: %v, want ErrBusy", err)
		}
		sweep(t, s, records{})
		if read == 2 {
			return syscall.EIO
		}
		return nil
	}})
	for range 2 {
		if err := receive(t, s, src.Manifest).Close(); err != nil {
			t.Fatal(err)
		}
		wantUsage(t, s, 0, 1)
	}
	if _, err := s.Receive(src.Manifest, Terms{}); !errors.Is(err, syscall.EIO) {
		t.Errorf("a part that cannot be read: %v", err)
	}
	wantUsage(t, s, 0, 1)
	if err := receive(t, s, src.Manifest).Close(); err != nil || read != 3 {
		t.Errorf("received again after %d reads: %v", read, err)
	}
}

// After a failed sync nothing that was not durable before is trusted.
func TestNothingIsTrustedAfterAFailedSync(t *testing.T) {
	from := openStore(t, t.TempDir(), Config{})
	ref := seal(t, from, random(1, 3*testChunk))
	src := source(t, from, &ref)
	all := pieces(t, src)
	boom, fail := errors.New("boom"), false
	s := openStore(t, t.TempDir(), Config{fault: func(op string) error {
		if fail && op == "sync" {
			return boom
		}
		return nil
	}})
	in := receive(t, s, src.Manifest)
	if err := errors.Join(in.Put(0, all[0].chunk, all[0].path), in.Sync(), in.Put(1, all[1].chunk, all[1].path)); err != nil {
		t.Fatal(err)
	}
	fail = true
	if err := in.Sync(); !errors.Is(err, boom) {
		t.Fatalf("Sync: %v", err)
	}
	fail = false
	if err := in.Put(2, all[2].chunk, all[2].path); err == nil {
		t.Error("written after a failed sync")
	}
	if err := in.Sync(); err == nil {
		t.Error("synced after a failed sync")
	}
	in.Close()
	if in = receive(t, s, src.Manifest); in.Durable() != 1 {
		t.Errorf("%d chunks are durable, want 1", in.Durable())
	}
	in.Close()
	wantUsage(t, s, 0, 1)
}

// What an earlier receiver wrote may be in memory alone, after a sync that failed or never came:
// it is synced before the object has its name.
func TestOldEntriesAreSyncedBeforeTheName(t *testing.T) {
	from := openStore(t, t.TempDir(), Config{})
	ref := seal(t, from, random(1, 3*testChunk))
	src := source(t, from, &ref)
	all := pieces(t, src)
	var fail error
	s := openStore(t, t.TempDir(), Config{fault: func(op string) error {
		if op == "sync" {
			return fail
		}
		return nil
	}})
	in := receive(t, s, src.Manifest)
	for _, p := range all {
		if err := in.Put(p.index, p.chunk, p.path); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(in.Sync(), in.Close()); err != nil {
		t.Fatal(err)
	}
	fail = syscall.EIO
	if _, err := s.Receive(src.Manifest, Terms{}); !errors.Is(err, syscall.EIO) {
		t.Errorf("received again while the disk fails: %v", err)
	}
	wantUsage(t, s, 0, 1)
	fail = nil
	in, err := s.receive(src.Manifest, Terms{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.file.WriteAt(make([]byte, entrySize), entryAt(&src.Manifest, 1)); err != nil { // it never came to the disk
		t.Fatal(err)
	}
	if err := in.Commit(); !errors.Is(err, ErrDamaged) {
		t.Errorf("an object without one of its entries is named: %v", err)
	}
	in.Close()
	in = receive(t, s, src.Manifest)
	if err := errors.Join(in.Put(1, all[1].chunk, all[1].path), in.Commit()); err != nil || in.Durable() != 3 {
		t.Errorf("%d chunks, %v", in.Durable(), err)
	}
	wantUsage(t, s, 1, 0)
}

// A Put that fails leaves no pin, and takes none from another with the same bytes.
func TestFailedPutLeavesThePins(t *testing.T) {
	fail := ""
	s := openStore(t, t.TempDir(), Config{fault: func(op string) error {
		if op == fail {
			return syscall.EIO
		}
		return nil
	}})
	name, err := s.Put([]byte("sealed"), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ fail, bytes string }{{"syncdir", "sealed"}, {"syncdir", "other"}, {"sync", "a third"}} {
		fail = tt.fail
		if got, err := s.Put([]byte(tt.bytes), false); got != "" || !errors.Is(err, syscall.EIO) {
			t.Errorf("%s fails: stored as %q: %v", fail, got, err)
		}
		if len(s.pins) != 1 || s.pins[name] != 1 {
			t.Errorf("%s fails: the pins are %v, want one of the first", fail, s.pins)
		}
	}
}
