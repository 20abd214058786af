package box

import "testing"

// TestGarbage checks that a mail of 1 KiB that is accepted, delivered and acknowledged
// leaves at most 2 allocations behind: its delivery, and what grows from time to time.
func TestGarbage(t *testing.T) {
	b := newBench(t)
	x := b.attach(1, 0)
	rec := b.record(note{body: string(make([]byte, 1024))})
	var out, made Output
	var list []Delivery
	settle := make([]Settlement, 1)
	walk := func() {
		out.Reset()
		if err := b.s.Apply(1, rec, &out); err != nil {
			t.Fatal(err)
		}
		list = b.s.Deliver(b.now, x, 1, list[:0], &out)
		settle[0] = Settlement{Box: 1, Handle: list[0].Handle, Op: Ack}
		made.Reset()
		b.s.Settle(b.now, settle, &made)
		if err := b.s.Apply(2, made.Records[0], &out); err != nil {
			t.Fatal(err)
		}
	}
	for range 5000 {
		walk()
	}
	if n := testing.AllocsPerRun(5000, walk); n > 2 {
		t.Errorf("%v allocations a mail", n)
	}
}
