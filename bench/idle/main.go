// Command idle measures what a node costs in a mesh that has nothing to do: it
// runs the built binary so many times on this machine, has all of them join one
// mesh over loopback, waits until everyone is connected with everyone and the
// mesh has come to rest, and reads from /proc what each process spends.
//
//	idle ─ init, invite, join, run ─▶ 30 × balefire-node ══ loopback ══ each other
//	     ◀─ CPU time twice, memory ── /proc/PID
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "idle:", err)
		os.Exit(1)
	}
}

func start() error {
	binary := flag.String("binary", "../dist/balefire-node", "program to run")
	size := flag.Int("nodes", 30, "nodes in the mesh")
	calm := flag.Duration("rest", 90*time.Second, "time between the last connection and the measuring")
	span := flag.Duration("for", time.Minute, "time to measure")
	flag.Parse()
	dir, err := os.MkdirTemp("", "balefire-idle-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m := &mesh{binary: *binary, dir: dir}
	defer m.stop()
	for range *size {
		if err := m.add(); err != nil {
			return err
		}
	}
	began := time.Now()
	for m.connected(0) < *size-1 || m.connected(*size-1) < *size-1 {
		if time.Since(began) > 5*time.Minute {
			return fmt.Errorf("the mesh is not whole: %d and %d of %d are connected", m.connected(0), m.connected(*size-1), *size-1)
		}
		time.Sleep(time.Second)
	}
	time.Sleep(*calm)
	return m.measure(*span)
}

// joinEvery keeps below what a node lets in of strangers: one a second.
const joinEvery = 1100 * time.Millisecond

// A mesh is the running nodes.
type mesh struct {
	binary, dir string
	nodes       []*exec.Cmd
}

func (m *mesh) folder(i int) string { return filepath.Join(m.dir, fmt.Sprint("n", i)) }

// ask runs a command of the binary on the folder of a node.
func (m *mesh) ask(i int, args ...string) ([]byte, error) {
	cmd := exec.Command(m.binary, append([]string{"--dir", m.folder(i)}, args...)...)
	cmd.Env = m.env()
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, failed.Stderr)
	}
	if err != nil {
		return nil, fmt.Errorf("node %d: %v: %w", i, args, err)
	}
	return out, nil
}

// env keeps the nodes off the LAN: other nodes there are none of theirs.
func (m *mesh) env() []string { return append(os.Environ(), "BALEFIRE_NET_MDNS=false") }

// add makes one more node, a member by a ticket of the first, and runs it.
func (m *mesh) add() error {
	i := len(m.nodes)
	port, err := freePort()
	if err != nil {
		return err
	}
	args := []string{"init", "--name", fmt.Sprint("n", i), "--listen", fmt.Sprint("127.0.0.1:", port)}
	if i == 0 {
		args = append(args, "--new-mesh")
	}
	if _, err := m.ask(i, args...); err != nil {
		return err
	}
	if i > 0 {
		out, err := m.ask(0, "invite", "-o", "json")
		if err != nil {
			return err
		}
		var inv struct {
			Ticket string `json:"ticket"`
		}
		if err := json.Unmarshal(out, &inv); err != nil {
			return err
		}
		time.Sleep(joinEvery)
		if _, err := m.ask(i, "join", inv.Ticket); err != nil {
			return err
		}
	}
	cmd := exec.Command(m.binary, "--dir", m.folder(i), "run", "--log-level", "error")
	cmd.Env, cmd.Stderr = m.env(), os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	m.nodes = append(m.nodes, cmd)
	for range 100 {
		if _, err = m.ask(i, "mesh", "summary", "-o", "json"); err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

// connected returns with how many a node is connected.
func (m *mesh) connected(i int) int {
	var s struct {
		Connected int `json:"connected"`
	}
	if out, err := m.ask(i, "mesh", "summary", "-o", "json"); err == nil {
		_ = json.Unmarshal(out, &s)
	}
	return s.Connected
}

// measure reads what each process spends in a while, and prints it.
func (m *mesh) measure(span time.Duration) error {
	before := make([]float64, len(m.nodes))
	var err error
	for i, n := range m.nodes {
		if before[i], _, err = spent(n.Process.Pid); err != nil {
			return err
		}
	}
	began := time.Now()
	time.Sleep(span)
	var cpu, rss []float64
	for i, n := range m.nodes {
		c, r, err := spent(n.Process.Pid)
		if err != nil {
			return err
		}
		cpu, rss = append(cpu, (c-before[i])/time.Since(began).Seconds()*100), append(rss, r)
	}
	slices.Sort(cpu)
	slices.Sort(rss)
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("%d nodes, %v: CPU %% of a core median %.2f, worst %.2f; resident MiB median %.0f, worst %.0f; load average %s",
		len(cpu), span, cpu[len(cpu)/2], cpu[len(cpu)-1], rss[len(rss)/2], rss[len(rss)-1], load)
	return nil
}

// spent returns the CPU seconds, user and system, and the resident MiB of a process.
func spent(pid int) (cpu, rss float64, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest) // from the third field of proc_pid_stat(5) on
	if len(f) < 22 {
		return 0, 0, fmt.Errorf("/proc/%d/stat: %q", pid, stat)
	}
	for _, i := range []int{11, 12} {
		ticks, err := strconv.ParseFloat(f[i], 64)
		if err != nil {
			return 0, 0, err
		}
		cpu += ticks / 100
	}
	pages, err := strconv.ParseFloat(f[21], 64)
	return cpu, pages * float64(os.Getpagesize()) / (1 << 20), err
}

// stop ends every node.
func (m *mesh) stop() {
	for _, n := range m.nodes {
		_ = n.Process.Signal(os.Interrupt)
	}
	for _, n := range m.nodes {
		_ = n.Wait()
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
