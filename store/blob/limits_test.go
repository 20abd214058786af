package blob

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestLimits(t *testing.T) {
	d := open(t, t.TempDir(), Config{MaxBlob: 10, MaxTotal: 25})
	put(t, d, "a", "0123456789")
	if err := d.Put("b", make([]byte, 11)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("err = %v, want ErrTooLarge", err)
	}
	put(t, d, "b", "0123456789")
	wantUsage(t, d, 2, 0, 20)
	w, err := d.Create("c")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 6)); !errors.Is(err, ErrFull) {
		t.Errorf("err = %v, want ErrFull", err)
	}
	if _, err := w.Write(make([]byte, 5)); err != nil {
		t.Errorf("a body that still fits was refused: %v", err)
	}
	if err := w.Commit(); err != nil {
		t.Error(err)
	}
	// I13: results and bodies of accepted tasks still succeed.
	if err := d.Essential().Put("result", make([]byte, 10)); err != nil {
		t.Errorf("essential: %v", err)
	}
	if err := d.Put("d", []byte("x")); !errors.Is(err, ErrFull) {
		t.Errorf("err = %v, want ErrFull", err)
	}
	for _, name := range []string{"a", "result"} {
		if err := d.Delete(name); err != nil {
			t.Error(err)
		}
	}
	put(t, d, "d", "x")
	wantUsage(t, d, 3, 0, 16)
}

func TestTotalIsHalfOfTheFreeDisk(t *testing.T) {
	path := t.TempDir()
	cfg := Config{Space: func() (int64, int64, error) { return 100, 1000, nil }}
	d := open(t, path, cfg)
	if got := d.Usage().MaxTotal; got != 50 {
		t.Errorf("limit = %d, want half of 100", got)
	}
	put(t, d, "a", strings.Repeat("x", 50))
	if got := open(t, path, cfg).Usage().MaxTotal; got != 100 {
		t.Errorf("limit = %d, want the used bytes and half of 100", got)
	}
	broken := errors.New("no statfs")
	cfg.Space = func() (int64, int64, error) { return 0, 0, broken }
	if _, err := Open(path, cfg); !errors.Is(err, broken) {
		t.Errorf("err = %v, want %v", err, broken)
	}
}

// S47, I1: whatever step fails, there is no incomplete blob, the error is typed, and the
// name can be written again.
func TestFailuresLeaveNoHalfBlob(t *testing.T) {
	for _, op := range []string{"write", "sync", "rename", "syncdir"} {
		t.Run(op, func(t *testing.T) {
			full := &os.PathError{Op: op, Path: "x", Err: syscall.ENOSPC}
			broken := false
			d := open(t, t.TempDir(), Config{fault: func(o string) error {
				if broken && o == op {
					return full
				}
				return nil
			}})
			put(t, d, "x", "old")
			broken = true
			if err := d.Put("x", []byte("newer")); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("err = %v, want %v", err, full)
			} else if op != "syncdir" && !errors.Is(err, ErrFull) {
				t.Errorf("err = %v, want ErrFull", err)
			}
			broken = false
			if op == "syncdir" { // complete, but perhaps not durable
				wantBody(t, d, "x", "newer")
			} else {
				wantBody(t, d, "x", "old")
			}
			put(t, d, "x", "third")
			wantBody(t, d, "x", "third")
			wantUsage(t, d, 1, 0, 5)
		})
	}
}

func TestNothingIsTrustedAfterAFailedSync(t *testing.T) {
	broken := true
	d := open(t, t.TempDir(), Config{fault: func(op string) error {
		if broken && op == "sync" {
			return errors.New("input/output error")
		}
		return nil
	}})
	w, err := d.Create("x")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(w, "abc")
	if err := w.Sync(); err == nil {
		t.Fatal("Sync = nil")
	}
	broken = false
	if err := w.Commit(); err == nil {
		t.Error("committed although an fsync had failed")
	}
	if err := w.Abort(); err != nil {
		t.Error(err)
	}
}
