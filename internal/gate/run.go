//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A result is the result of one run of a step.
type result struct {
	step    step
	took    time.Duration
	cpu     time.Duration // of its processes
	counted string
	err     error
}

func (r result) verdict() string {
	if r.err != nil {
		return "FAIL"
	}
	return "pass"
}

// log returns the file with the output of the step's last run.
func (s step) log() string {
	return filepath.Join(logs, strings.ReplaceAll(s.name, " ", "-")+".log")
}

// run runs the step once. Its output goes to out and to the step's log file.
func (s step) run(ctx context.Context, out io.Writer) result {
	fmt.Fprintf(out, "\n== %s == %s\n", s.name, time.Now().UTC().Format(time.TimeOnly))
	file, err := os.Create(s.log())
	if err != nil {
		return result{step: s, err: err}
	}
	defer file.Close()
	var output bytes.Buffer
	began := time.Now()
	cpu, err := execute(ctx, s, io.MultiWriter(out, file, &output))
	r := result{step: s, took: time.Since(began), cpu: cpu, counted: counted(output.String()), err: err}
	if missing := s.missing(output.String()); err == nil && len(missing) > 0 {
		r.err = fmt.Errorf("these tests did not run and pass: %v", missing)
	}
	return r
}

// execute runs the step's command in its own process group, which ends with it, and returns
// the CPU time that it used.
func execute(ctx context.Context, s step, out io.Writer) (cpu time.Duration, err error) {
	cmd := exec.CommandContext(ctx, s.argv[0], s.argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, out, out
	cmd.Env = append(append(os.Environ(), "CI=true", "CGO_ENABLED=0", goflags()), s.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) } // a gate ends its own steps then
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // what is left of the group, usually nothing
	}
	if state := cmd.ProcessState; state != nil {
		cpu = state.UserTime() + state.SystemTime()
	}
	return cpu, err
}

// goflags makes all steps build like the Makefile does (without cgo), so that each package
// is compiled once. What only costs time is left out: symbols for a debugger, and vet with
// each test, as lint vets everything.
var goflags = sync.OnceValue(func() string {
	const ours = "-trimpath -ldflags=-w -vet=off"
	flags, err := exec.Command("go", "env", "GOFLAGS").Output()
	if err != nil {
		return "GOFLAGS=" + ours // the steps will report problems with go
	}
	return "GOFLAGS=" + strings.TrimSpace(strings.TrimSpace(string(flags))+" "+ours)
})

// missing returns the tests of the step that did not pass.
func (s step) missing(output string) []string {
	return slices.DeleteFunc(slices.Clone(s.tests), func(test string) bool {
		return strings.Contains(output, "--- PASS: "+test+" ")
	})
}

var (
	passed = regexp.MustCompile(`(?m)^--- PASS: `)
	oks    = regexp.MustCompile(`(?m)^ok  \t`)
	counts = regexp.MustCompile(`(?m)counted: (.*)$`)
)

// counted summarizes the output of a step: the counts that its tests report, and how many
// tests or packages passed. What several tests report alike stands there once.
func counted(output string) string {
	n := len(passed.FindAllString(output, -1))
	if n == 0 {
		n = len(oks.FindAllString(output, -1)) // the tests do not name themselves
	}
	all := []string{fmt.Sprintf("%d passed", n)}
	times := make(map[string]int)
	var different []string
	for _, m := range counts.FindAllStringSubmatch(output, -1) {
		if times[m[1]]++; times[m[1]] == 1 {
			different = append(different, m[1])
		}
	}
	for _, what := range different {
		if times[what] > 1 {
			what = fmt.Sprintf("%d times: %s", times[what], what)
		}
		all = append(all, what)
	}
	return strings.Join(all, "; ")
}

// load returns the load average of the last minute, "" if unknown.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	avg, _, _ := strings.Cut(string(b), " ")
	return avg
}

// busy keeps n cores busy until the returned function is called.
func busy(n int) (stop func(), err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var loops []*exec.Cmd
	stop = func() {
		for _, l := range loops {
			_ = l.Process.Kill() // it never ends on its own
			_ = l.Wait()
		}
	}
	for range n {
		l := exec.Command(exe, "busy")
		l.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := l.Start(); err != nil {
			stop()
			return nil, errors.Join(errors.New("start a busy loop"), err)
		}
		loops = append(loops, l)
	}
	return stop, nil
}
