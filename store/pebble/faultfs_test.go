package pebble_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/balefire/balefire/store/pebble"
)

// TestFailingLog (I1, I8): whichever operation on the log fails, once or from
// then on, also while one log is closed and the next begun, the process lives,
// the commit under way or a later one says so, none returns nil after that, and
// a power cut then loses nothing that was acknowledged.
func TestFailingLog(t *testing.T) {
	tests := []struct {
		name string
		hit  func(op errorfs.Op) bool
	}{
		{"write", isLog(errorfs.OpFileWrite)},
		{"sync", isLog(errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo)},
		{"begin", isLog(errorfs.OpCreate, errorfs.OpReuseForWrite)},
		{"close", isLog(errorfs.OpFileClose)},
		{"manifest", func(op errorfs.Op) bool {
			return op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.Contains(op.Path, "MANIFEST")
		}},
		{"folder", func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileSync && op.Path == "db" }},
	}
	for _, tt := range tests {
		for _, lasting := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, lasting %v", tt.name, lasting), func(t *testing.T) {
				faults := 0
				for n := 0; failLog(t, n, lasting, tt.hit); n += 1 + n/6 {
					faults++
				}
				if faults == 0 {
					t.Error("there is no such operation")
				}
			})
		}
	}
}

func isLog(kinds ...errorfs.OpKind) func(errorfs.Op) bool {
	return func(op errorfs.Op) bool {
		for _, k := range kinds {
			if op.Kind == k && strings.HasSuffix(op.Path, ".log") {
				return true
			}
		}
		return false
	}
}

// failLog has the n-th operation after the open fail and reports whether there
// was one.
func failLog(t *testing.T, n int, lasting bool, hit func(errorfs.Op) bool) bool {
	const commits = 400
	var armed atomic.Bool
	var seen, hits atomic.Int64
	fs := vfs.NewCrashableMem()
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !armed.Load() || !hit(op) {
			return nil
		}
		if at := int(seen.Add(1)) - 1; at == n || lasting && at > n {
			hits.Add(1)
			return syscall.EIO
		}
		return nil
	})
	d, err := pebble.Open("db", small(closeErrors{errorfs.Wrap(fs, inject), inject}))
	if err != nil {
		t.Fatal(err)
	}
	armed.Store(true)
	acked := 0
	for ; acked < commits && err == nil; acked++ {
		if acked == commits/2 {
			_ = d.Compact() // writes tables and the manifest; a fault in it is the next commit's
		}
		err = d.Commit(pair(acked))
	}
	if err != nil {
		acked--
	}
	switch {
	case err != nil && !errors.Is(err, syscall.EIO):
		t.Errorf("fault %d: the commit says %v, want EIO", n, err)
	case err == nil && hits.Load() > 0:
		// It came behind the last one, in the background: Pebble may not have its error yet.
		for end := time.Now().Add(time.Minute); d.Commit(pair(commits)) == nil; {
			if time.Now().After(end) {
				t.Fatalf("fault %d: no commit says so", n)
			}
		}
	}
	for range 3 {
		if after := d.Commit(pair(acked)); err != nil && !errors.Is(after, syscall.EIO) {
			t.Errorf("fault %d: a commit after it returns %v", n, after)
		}
	}
	failed := err != nil
	armed.Store(lasting)
	cut := fs.CrashClone(vfs.CrashCloneCfg{})
	if err := d.Close(); err != nil && !failed {
		t.Errorf("fault %d: close: %v", n, err)
	}
	most := acked + 1
	if !failed {
		most = commits + 4
	}
	for when, fs := range map[string]*vfs.MemFS{"at the fault": cut, "after the close": fs.CrashClone(vfs.CrashCloneCfg{})} {
		again, err := pebble.Open("db", sound(fs))
		if err != nil {
			t.Errorf("fault %d: open after a power cut %s: %v", n, when, err)
			continue
		}
		wantCommits(t, again, acked, most)
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
	return failed || hits.Load() > 0
}

// closeErrors injects the errors of Close, which errorfs leaves out.
type closeErrors struct {
	vfs.FS
	inject errorfs.Injector
}

func (c closeErrors) Create(name string, k vfs.DiskWriteCategory) (vfs.File, error) {
	return c.wrap(name)(c.FS.Create(name, k))
}

func (c closeErrors) ReuseForWrite(old, name string, k vfs.DiskWriteCategory) (vfs.File, error) {
	return c.wrap(name)(c.FS.ReuseForWrite(old, name, k))
}

func (c closeErrors) wrap(name string) func(vfs.File, error) (vfs.File, error) {
	return func(f vfs.File, err error) (vfs.File, error) {
		if err != nil {
			return nil, err
		}
		return closeError{f, name, c.inject}, nil
	}
}

type closeError struct {
	vfs.File
	name   string
	inject errorfs.Injector
}

func (f closeError) Close() error {
	return errors.Join(f.File.Close(), f.inject.MaybeError(errorfs.Op{Kind: errorfs.OpFileClose, Path: f.name}))
}

// On a disk below its reserve there may be no room to be made ahead: what still
// fits is written (I13, S47).
func TestFailedPreallocationIsIgnored(t *testing.T) {
	tried := false
	fs := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFilePreallocate && strings.HasSuffix(op.Path, ".log") {
			tried = true
			return syscall.ENOSPC
		}
		return nil
	}))
	d, err := pebble.Open(filepath.Join(t.TempDir(), "db"), sound(fs))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for i := range 100 {
		if err := d.Commit(pair(i)); err != nil {
			t.Fatalf("commit %d: %v", i, err)
		}
	}
	if !tried {
		t.Error("no room was made ahead: the test proves nothing")
	}
}
