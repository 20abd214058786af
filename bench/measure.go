package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime/metrics"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A usage is what a process has used since it started.
type usage struct {
	User, System time.Duration // CPU
	Allocs       uint64        // objects
	AllocBytes   uint64
	Collections  uint64
	RSS          int64 // bytes, now
	Commits      int64 // of the node's store, each one fsync
}

func (u usage) cpu() time.Duration { return u.User + u.System }

func (u usage) since(b usage) usage {
	return usage{u.User - b.User, u.System - b.System, u.Allocs - b.Allocs, u.AllocBytes - b.AllocBytes, u.Collections - b.Collections, u.RSS, u.Commits - b.Commits}
}

func (u usage) plus(b usage) usage {
	return usage{u.User + b.User, u.System + b.System, u.Allocs + b.Allocs, u.AllocBytes + b.AllocBytes, u.Collections + b.Collections, u.RSS + b.RSS, u.Commits + b.Commits}
}

// measure returns the usage of this process.
func measure() usage {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	s := []metrics.Sample{{Name: "/gc/heap/allocs:objects"}, {Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(s)
	return usage{
		User: time.Duration(r.Utime.Nano()), System: time.Duration(r.Stime.Nano()),
		Allocs: s[0].Value.Uint64(), AllocBytes: s[1].Value.Uint64(), Collections: s[2].Value.Uint64(), RSS: rss("/proc/self/status"),
	}
}

// measure adds the usage of its node's store.
func (c *child) measure() usage {
	u := measure()
	if c.node != nil {
		u.Commits = c.node.Views.StoreStats().Commits
	}
	return u
}

// rss returns the resident memory of the process with this status in bytes, 0 if unknown.
func rss(status string) int64 {
	f, err := os.Open(status)
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "VmRSS:"); ok {
			var kib int64
			fmt.Sscanf(strings.TrimSpace(rest), "%d", &kib)
			return kib << 10
		}
	}
	return 0
}

// quantile returns the q-quantile of sorted durations.
func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[min(int(float64(len(d))*q), len(d)-1)]
}
