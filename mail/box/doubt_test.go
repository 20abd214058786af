package box

import (
	"testing"
	"time"
)

// A dead letter that dies before the clock is known gets its time with the first one that is,
// and a retry waits as long as it was told then.
func TestFailuresBeforeTheClockIsKnown(t *testing.T) {
	b := newBench(t)
	for range 3 {
		b.mustSend(note{ttl: 7 * 24 * time.Hour})
	}
	later := b.now.Wall + (2 * 24 * time.Hour).Milliseconds()
	b.now.Wall = 0
	b.restart()
	x := b.attach(1, 0)
	got := b.deliver(x, 3)
	b.must(Final, got[0].Handle)
	if code := b.settle(Settlement{Op: Defer, Handle: got[1].Handle, Delay: time.Hour}); code != 0 {
		t.Fatal(code)
	}
	b.must(Final, got[2].Handle)
	b.now.Wall = later
	died := func() (at []int64) {
		b.out.Reset()
		b.now.Mono += cleanPeriod.Milliseconds()
		b.s.Tick(b.now, &b.out)
		if len(b.out.Archive) > 0 {
			t.Errorf("archived %v", b.out.Archive)
		}
		b.commit()
		for d := range b.s.DeadLetters(1, 0, 0) {
			at = append(at, d.At)
		}
		return at
	}
	if at := died(); len(at) != 2 || at[0] != 0 {
		t.Errorf("they died at %v", at)
	}
	b.now.Mono += agePeriod.Milliseconds()
	if at := died(); len(at) != 2 || at[0] != later || at[1] != later {
		t.Errorf("they died at %v, want %d", at, later)
	}
	b.want(x)
	b.wait(time.Hour - time.Second)
	b.want(x)
	b.wait(time.Second)
	b.want(x, 2)
}
