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

// busy returns the CPU time that the whole machine has used since it started, including
// time stolen by the host; 0 if unknown.
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

// How long a run waits by default for an idle machine, and what counts as idle.
const (
	quietWait  = 2 * time.Minute
	quietFor   = 2 * time.Second
	quietCores = .1 // cores in use that still count as idle
)

// waitQuiet returns when the machine has been idle for a while, or after wait, and the
// number of cores in use at the end.
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
