package node

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"
)

// A machineLoad measures the CPU and memory load of this computer. It works on Linux only.
type machineLoad struct {
	mu          sync.Mutex
	read        time.Time // last measurement
	busy, all   uint64    // ticks of all cores since the computer was started
	cpu, memory uint32    // permille
}

// loadEvery is the minimum interval between two measurements of the CPU load.
const loadEvery = time.Second

// load returns the CPU and memory use in permille, or 0 where it is unknown.
func (m *machineLoad) load() (cpu, memory uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now := time.Now(); now.Sub(m.read) >= loadEvery {
		m.read = now
		m.sample()
	}
	return m.cpu, m.memory
}

func (m *machineLoad) sample() {
	if b, err := os.ReadFile("/proc/stat"); err == nil {
		busy, all := ticks(b)
		if d := all - m.all; m.all > 0 && all > m.all {
			m.cpu = uint32(min(1000, (busy-m.busy)*1000/d))
		}
		m.busy, m.all = busy, all
	}
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		total, free := kilobytes(b, "MemTotal:"), kilobytes(b, "MemAvailable:")
		if total > 0 && free <= total {
			m.memory = uint32((total - free) * 1000 / total)
		}
	}
}

// ticks parses the first line of /proc/stat: user, nice, system, idle, iowait and others
// (proc(5)).
func ticks(stat []byte) (busy, all uint64) {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	for i, f := range bytes.Fields(line) {
		n, err := strconv.ParseUint(string(f), 10, 64)
		if i == 0 || i > 8 || err != nil { // user time already includes guest time
			continue
		}
		all += n
		if i != 4 && i != 5 {
			busy += n
		}
	}
	return busy, all
}

// kilobytes parses one row of /proc/meminfo.
func kilobytes(info []byte, row string) uint64 {
	_, rest, ok := bytes.Cut(info, []byte(row))
	if fields := bytes.Fields(rest); ok && len(fields) > 0 {
		n, _ := strconv.ParseUint(string(fields[0]), 10, 64)
		return n
	}
	return 0
}
