package executor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// The outputs of all runs together stay above the reserve, with space left for the
// sealed copy that the end of each task creates (I13).
func TestOutputsShareSpaceAboveReserve(t *testing.T) {
	disk := struct{ free, reserve int64 }{free: 1000, reserve: 200}
	o := newQuotas(func() (int64, int64, bool) { return disk.free, disk.reserve, true })
	write := func(s *runOutput, n int64) bool {
		if !s.Reserve(n) {
			return false
		}
		disk.free -= n
		s.Settle(n, n)
		return true
	}
	a, b := o.newOutput(), o.newOutput()
	total := int64(0)
	for i := 0; ; i++ {
		if !write([]*runOutput{a, b}[i%2], 10) {
			break
		}
		total += 10
	}
	if total != 400 || disk.free-total < disk.reserve {
		t.Fatalf("%d bytes were written, %d are free: want half of the 800 above the reserve", total, disk.free)
	}
	path := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a.handOver(path)
	a.release()
	if write(b, 10) {
		t.Error("output that waits to be sealed no longer counts")
	}
	if err := os.Remove(path); err != nil { // sealed: 200 bytes in a blob instead
		t.Fatal(err)
	}
	b.release() // its folder is removed
	disk.free += 200
	if !write(b, 300) || write(b, 10) {
		t.Errorf("%d bytes are free, the reserve is %d: want space for exactly 300, twice", disk.free, disk.reserve)
	}
	b.release()
	disk.free += 300
	if o.written != 0 || o.taken != 0 || len(o.files) != 0 {
		t.Errorf("%d written, %d taken, files %v; want nothing left", o.written, o.taken, o.files)
	}
}

// Copies of bodies share that space. They are not sealed: each byte counts once, and when
// it is written the disk itself shows it.
func TestBodiesShareSpaceAboveReserve(t *testing.T) {
	free := int64(1000)
	o := newQuotas(func() (int64, int64, bool) { return free, 200, true })
	body, out := bodyQuota{o}, o.newOutput()
	if body.Reserve(801) || !body.Reserve(600) {
		t.Error("want space for 800 bytes")
	}
	if out.Reserve(101) || body.Reserve(201) || !out.Reserve(100) {
		t.Error("want space for 200 bytes beside the reserved ones")
	}
	out.Settle(100, 0)
	body.Settle(500, 500)
	free -= 500
	body.Settle(100, 0) // the copy failed
	if body.Reserve(301) || !body.Reserve(300) {
		t.Error("want space for what is free above the reserve")
	}
}

// A file that is handed over again replaces the one of the earlier attempt in the quota,
// and outputs that are gone are forgotten also while there is space.
func TestOutputsThatAreGoneAreForgotten(t *testing.T) {
	free := int64(1 << 30)
	o := newQuotas(func() (int64, int64, bool) { return free, 0, true })
	dir := t.TempDir()
	handOver := func(name string, size int64) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		r := o.newOutput()
		if !r.Reserve(size) {
			t.Fatal("no space")
		}
		r.Settle(size, size)
		r.handOver(path)
	}
	remove := func(name string) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	handOver("waits", 7)
	for i := range 1000 {
		handOver("out", 100)
		name := fmt.Sprint(i)
		handOver(name, 10)
		remove(name)
	}
	if n := len(o.files); n > 2*minSweep {
		t.Errorf("%d outputs are remembered, two have a file", n)
	}
	remove("out")
	free = 0
	if o.newOutput().Reserve(1) || o.written != 7 || len(o.files) != 1 {
		t.Errorf("%d written, files %v; want only the one that waits", o.written, o.files)
	}
}

// Output that cannot be read stays in the folder of its run, which is removed.
func TestUnreadableOutputIsNotKept(t *testing.T) {
	x := &Executor{cfg: Config{Dir: t.TempDir()}}
	dir, err := x.runFolder(&handler.Run{}, false)
	if err != nil {
		t.Fatal(err)
	}
	res := &handler.Result{File: filepath.Join(dir, "output")}
	if err := os.Mkdir(res.File, 0o700); err != nil { // a folder can be moved, but not read
		t.Fatal(err)
	}
	if err := x.keepOutput(&handler.Run{}, newQuotas(nil).newOutput(), res); err == nil {
		t.Error("it was kept")
	}
	if _, err := os.Stat(res.File); err != nil {
		t.Error(err)
	}
}

// A task that was stopped for lack of space restarts when there is space for everything
// that it may write.
func TestStarvedTaskWaitsForSpace(t *testing.T) {
	free := int64(1000)
	o := newQuotas(func() (int64, int64, bool) { return free, 200, true })
	id, other := proto.TaskID{1}, proto.TaskID{2}
	if err := o.mustWait(id, 1e6); err != nil {
		t.Errorf("a task that was never stopped waits: %v", err)
	}
	o.noteStarved(id)
	if err := o.mustWait(id, 401); err == nil || !strings.Contains(err.Error(), "401 bytes") {
		t.Errorf("waits = %v, want a reason", err)
	}
	if err := o.mustWait(other, 1e6); err != nil {
		t.Errorf("another task waits: %v", err)
	}
	free = 1002
	if err := o.mustWait(id, 401); err != nil {
		t.Errorf("with space for it: %v", err)
	}
	if err := o.mustWait(id, 1e6); err != nil {
		t.Errorf("still waiting after its restart: %v", err)
	}
}
