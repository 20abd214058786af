// Command bench measures the performance of balefire on this machine and writes the
// figures with the method and the bottleneck of each.
//
//	parent ──requests──▶ sender ══ loopback ══▶ receiver     two nodes, each a process
//	       ──requests──▶ client ── unix socket ─▶ sender     the API server
//	       ──requests──▶ store                               the bare group commit
//	       ──requests──▶ rival ── loopback ─▶ broker         NATS JetStream, same guarantee
//
// Everything runs in one invocation, so that compared figures are measured on the
// same machine in the same hour. Slower disks are simulated by strace, which delays
// each fsync. It is a separate module: the product does not depend on NATS.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

func main() {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func start() error {
	asChild := flag.Bool("child", false, "read requests from standard input (for the program itself)")
	out := flag.String("out", "", "file to write the report to; default standard output")
	dir := flag.String("dir", "", "folder on the disk to be measured; default that of temporary files")
	quick := flag.Bool("quick", false, "a tenth of the tasks, each figure once, NutsDB alone")
	only := flag.String("only", "", "measurements by their names, with commas between them (see plan.go); default all")
	scale := flag.Int("scale", 1, "divide all numbers of tasks and mails by it, as -quick does by 10, to see whether a measurement works")
	offered := flag.Int("offered", offeredRate, "mails a second where the rate is fixed")
	span := flag.Duration("span", time.Minute, "how long mail is sent at that rate; -quick: 10s")
	profiles := flag.String("profiles", "", "folder to keep profiles in, of CPU and of allocations")
	wait := flag.Duration("wait", quietWait, "how long to wait for a quiet machine")
	flag.Parse()
	if *asChild {
		return serveRequests()
	}
	work, err := os.MkdirTemp(*dir, "balefire-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	p := &plan{dir: work, wait: *wait, profiles: *profiles, scale: max(*scale, 1), offered: *offered, span: *span, log: os.Stderr, begin: time.Now(), rivals: map[time.Duration]result{}}
	if *quick {
		p.scale, p.span = max(p.scale, 10), min(p.span, 10*time.Second)
	}
	r, err := p.run(*only)
	if err != nil {
		return err
	}
	var w io.Writer = os.Stdout
	if *out != "" {
		f, err := os.Create(*out)
		if err != nil {
			return err
		}
		defer f.Close()
		w = f
	}
	if err := r.write(w); err != nil {
		return err
	}
	if missed := r.missed(); len(missed) > 0 {
		return fmt.Errorf("%d targets were missed:\n  %s", len(missed), strings.Join(missed, "\n  "))
	}
	return nil
}
