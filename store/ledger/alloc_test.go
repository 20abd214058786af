package ledger

import (
	"context"
	"runtime"
	"testing"
)

// A steady append of entries of 1 KiB allocates less than 200 bytes an entry, whether
// each is a call or 16 are, and a read from memory allocates nothing.
func TestAppendAllocatesLittle(t *testing.T) {
	for _, size := range []int{1, 16} {
		l := mustOpen(t, t.TempDir()+"/ledger", Config{Segment: 4 << 20, Logger: quiet()})
		var last Place
		es := make([]Entry, size)
		body := make([]byte, 1024)
		for i := range es {
			es[i] = Entry{Data: body, Relaxed: true, After: func(_ uint64, p Place, _ error) { last = p }}
		}
		dst := make([]byte, 0, 2048)
		turn := func() {
			if err := l.Queue(es).Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Read(last, dst); err != nil {
				t.Fatal(err)
			}
		}
		for l.Stats().Spares == 0 { // making the next file is not steady, either
			runtime.Gosched()
		}
		for range 100 {
			turn()
		}
		const turns = 1000 // less than a segment: making one is not steady
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range turns / size {
			turn()
		}
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) / turns; n >= 200 {
			t.Errorf("%d entries a call: %d bytes an entry", size, n)
		}
		if n := testing.AllocsPerRun(100, func() { _, _ = l.Read(last, dst) }); n != 0 {
			t.Errorf("a read allocates %v times", n)
		}
		mustClose(t, l)
	}
}
