package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// A machine describes the machine of the measurements.
type machine struct {
	cpu    string
	cores  int
	memory string
	kernel string
	disk   string
	load   string  // one, five and fifteen minutes, before the run
	others float64 // cores used by other processes just before the run
}

func describe(dir string) machine {
	return machine{
		cpu:    field("/proc/cpuinfo", "model name"),
		cores:  runtime.NumCPU(),
		memory: field("/proc/meminfo", "MemTotal"),
		kernel: word("uname", "-sr"),
		disk:   lastLine(word("df", "--output=fstype,source", dir)),
		load:   firstWords(text("/proc/loadavg"), 3),
	}
}

// straced checks that disks can be slowed down.
func straced() (string, error) {
	path, err := exec.LookPath("strace")
	if err != nil {
		return "", errors.New("strace is not installed: it adds to each fsync; on Debian: apt-get install strace")
	}
	return path, nil
}

// field returns the value of a line "name: value" of a file of the kernel.
func field(path, name string) string {
	f, err := os.Open(path)
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

func text(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	return string(b)
}

func word(name string, args ...string) string {
	b, err := exec.Command(name, args...).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

func lastLine(s string) string { return s[strings.LastIndexByte(s, '\n')+1:] }

func firstWords(s string, n int) string {
	f := strings.Fields(s)
	return strings.Join(f[:min(n, len(f))], " ")
}

// preface describes the page, the method and the machine.
func (p *plan) preface(m machine) string {
	note := ""
	if p.scale > 1 {
		note = "\n**A quick run: a tenth of the tasks, each figure once. Not for the record.**\n"
	}
	return fmt.Sprintf(`# Benchmarks
%s
Written by `+"`make bench`"+` (the module in bench/) on %s in %.0f s. All figures on this page are from that one run: compare them with each
other, not with those of another machine.

| | |
| --- | --- |
| processor | %s, %d cores in use by all processes of a measurement together |
| memory | %s |
| system | %s, %s |
| file system | %s |
| other processes before the run | %.1f cores, load average %s; the run waited up to %v for an idle machine |

Unless a table states otherwise: two nodes, each in its own process, on loopback over QUIC or TCP as they choose; a random body of %d bytes per task,
sealed, signed and checked; every acknowledgement after its fsync; submitted through the Go API; %d tasks in flight. The tables of mail say what they measure. A measurement begins after a
warm-up of at most a quarter more tasks and ends after a number of tasks, or after %v. The rates of accepted and of whole tasks, of submits and of NATS were measured
%d times each, in new folders; the median is shown. CPU is getrusage of both processes, user and system. "+2ms" means that strace adds 2 ms to each fsync
and fdatasync of both nodes. "Cores: ours" is the average use of both nodes, "others'" that of all other processes on the machine at that time (with a slow
disk mostly strace): if it is not near zero, a rate is too low.

Differences from the default settings: the limits on waiting tasks are raised, because tasks that are accepted and never run accumulate far beyond any real
use; for the same reason the heap limit is 2 GiB where rates are measured, unless a table states otherwise. Memory is measured with the default heap limit.
`, note, time.Now().UTC().Format("2 January 2006"), time.Since(p.begin).Seconds(), m.cpu, m.cores, m.memory, m.kernel, goVersion(), m.disk, m.others, m.load, p.wait, bodySize, flying, longest, times)
}

func goVersion() string {
	if b, ok := debug.ReadBuildInfo(); ok {
		return b.GoVersion
	}
	return runtime.Version()
}
