package node

import "testing"

func TestMachineLoadIsRead(t *testing.T) {
	busy, all := ticks([]byte("cpu  100 5 20 800 75 0 3 2 50 0\ncpu0 1 2 3\n"))
	if busy != 130 || all != 1005 {
		t.Errorf("busy %d of %d, want 130 of 1005", busy, all)
	}
	info := []byte("MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:    250 kB\n")
	if total, free := kilobytes(info, "MemTotal:"), kilobytes(info, "MemAvailable:"); total != 1000 || free != 250 {
		t.Errorf("memory %d, %d", total, free)
	}
	for _, junk := range []string{"", "cpu", "cpu x y z", "\n\n"} {
		if busy, all := ticks([]byte(junk)); busy != 0 || all != 0 {
			t.Errorf("%q: %d of %d", junk, busy, all)
		}
	}
	if kilobytes([]byte("MemTotal:"), "MemTotal:") != 0 {
		t.Error("a row without a number has a value")
	}
}
