package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// userTick is the unit of /proc/stat.
const userTick = time.Second / 100

// busy returns the CPU time that the whole machine has spent since it started,
// with what a host took away from it; 0 where it is not told.
func busy() time.Duration {
	line, _, _ := strings.Cut(text("/proc/stat"), "\n")
	return busyIn(line)
}

// busyIn reads the line "cpu user nice system idle iowait irq softirq steal …".
func busyIn(line string) (d time.Duration) {
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return 0
	}
	for i, v := range f[1:9] {
		const idle, iowait = 3, 4
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return 0
		}
		if i != idle && i != iowait {
			d += time.Duration(n) * userTick
		}
	}
	return d
}

// How long a run waits by default for others to leave the machine alone, and what
// counts as quiet.
const (
	quietWait  = 2 * time.Minute
	quietFor   = 2 * time.Second
	quietCores = .1 // in use is still quiet
)

// waitQuiet returns when the machine has done next to nothing for a while, or
// after wait, and what it did in the last look, in cores.
func waitQuiet(log io.Writer, wait time.Duration) float64 {
	for end := time.Now().Add(wait); ; {
		before := busy()
		time.Sleep(quietFor)
		cores := (busy() - before).Seconds() / quietFor.Seconds()
		if cores <= quietCores || time.Now().After(end) {
			return cores
		}
		fmt.Fprintf(log, "       others use %.1f cores: waiting for a quiet moment\n", cores)
	}
}
