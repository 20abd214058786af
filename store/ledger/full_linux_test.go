package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/balefire/balefire/store/storetest"
)

// I13, S47: on a full disk a batch fails, and nothing that was answered is lost; the ledger opens
// while the disk is still full, and works again when there is room.
func TestDiskFull(t *testing.T) {
	if !storetest.MayMount(t) {
		return
	}
	for _, size := range []int{700 << 10, 1 << 20, 1<<20 + 40<<10} {
		disk := storetest.SmallDisk(t, size)
		ballast := filepath.Join(disk, "ballast")
		if err := os.WriteFile(ballast, make([]byte, 300<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		open := func() *Ledger {
			return mustOpen(t, filepath.Join(disk, "ledger"), Config{Segment: 64 << 10, MaxBatch: 32 << 10, Ring: 1, Logger: quiet()})
		}
		var answered [][]byte
		fill := func(l *Ledger) (err error) {
			for err == nil {
				b := data(len(answered), 5000)
				if err = l.Queue([]Entry{{Data: b}}).Wait(t.Context()); err == nil {
					answered = append(answered, b)
				}
			}
			return err
		}
		check := func(l *Ledger) {
			t.Helper()
			got := replayed(t, l, 0)
			if more := len(got) - len(answered); more == 1 { // one whose answer was an error
				answered = got
			}
			sameEntries(t, got, answered)
		}
		l := open()
		if err := fill(l); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("err = %v, want ENOSPC", err)
		}
		_ = l.Close()
		l = open() // the disk is still full
		check(l)
		_ = l.Close()
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		l = open()
		check(l)
		if err := fill(l); !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("err = %v, want ENOSPC", err)
		}
		_ = l.Close()
		check(open())
		t.Logf("counted: %d batches on %d KiB", len(answered), size>>10)
	}
}
