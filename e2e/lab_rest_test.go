//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/balefire/balefire/internal/lab"
	"github.com/balefire/balefire/internal/lab/netfilter"
	"github.com/balefire/balefire/wire"
)

// A restMesh is a mesh of real nodes in one public network, all connected with each other.
// Each has a wire of its own length; that of the last one is long and thin.
type restMesh struct {
	t     *testing.T
	net   *lab.Net
	hosts []*lab.Host
	nodes []*machine
}

// Of the thin wire, and of a small task over it.
const (
	thinRate  = 64_000 // bits per second
	thinQueue = 16     // packets of 1500 bytes: three seconds
	thinDelay = 30 * time.Millisecond
	thinTask  = 3 * time.Second
)

func newRestMesh(t *testing.T, size int) *restMesh {
	t.Helper()
	m := &restMesh{t: t, net: lab.New(t).Net("public", "11.0.0.0/24")}
	for i := range size {
		m.add(fmt.Sprintf("n%d", i), false)
	}
	m.whole()
	m.narrow()
	return m
}

// narrow makes the wire of the last node long and thin.
func (m *restMesh) narrow() {
	m.hosts[len(m.hosts)-1].Port.Link.Set(lab.Shape{Delay: thinDelay, Rate: thinRate, Queue: thinQueue})
}

// add starts one more node; noUDP: it can send none.
func (m *restMesh) add(name string, noUDP bool) *machine {
	m.t.Helper()
	i := len(m.nodes)
	h := m.net.Host(name, lab.Attachment{Addr: fmt.Sprintf("11.0.0.%d", i+1), Wire: lab.Long})
	h.Port.Link.Set(lab.Shape{Delay: time.Duration(i%7) * 3 * time.Millisecond})
	n := newMachine(m.t, name, i == 0, place(h, config{engine: "nutsdb", net: "  mdns: off\n"}))
	if noUDP {
		if err := h.Do(func() error {
			return netfilter.Replace(netfilter.Table{Family: netfilter.Inet, Name: "narrow", Chains: []netfilter.Chain{
				{Name: "udp", Hook: netfilter.Output, Rules: []netfilter.Rule{{netfilter.Over(syscall.IPPROTO_UDP), netfilter.Drop()}}},
			}})
		}); err != nil {
			m.t.Fatal(err)
		}
	}
	if i > 0 {
		n.join(m.nodes[0])
	}
	n.start()
	m.hosts, m.nodes = append(m.hosts, h), append(m.nodes, n)
	return n
}

// whole waits until all are connected with each other, and considered ALIVE.
func (m *restMesh) whole() {
	m.t.Helper()
	for _, n := range m.nodes {
		n.until("it is connected to all, which are alive", func() bool {
			pause(200 * time.Millisecond)
			return len(n.considered("ALIVE")) == len(m.nodes)-1
		})
	}
}

// considered returns the peers to which m is connected, or once was, that have this status.
func (m *machine) considered(status string) (names []string) {
	m.t.Helper()
	all, err := m.Peers(context.Background())
	if err != nil {
		m.t.Fatal(err)
	}
	for _, p := range all {
		if p.Liveness == status && (p.State == "CONNECTED" || status != "ALIVE") {
			names = append(names, p.Name)
		}
	}
	return names
}

// TestBenchMeshAtRest measures what a mesh of real nodes costs that has nothing to do, with one
// member behind a thin wire, and what it makes of a pause, a death and a join. The bytes are
// those of the interfaces, in each direction, in quiet minutes long after the last join.
// BALEFIRE_REST is the number of nodes.
func TestBenchMeshAtRest(t *testing.T) {
	size := either(6, 15)
	if n, err := strconv.Atoi(os.Getenv("BALEFIRE_REST")); err == nil && n > 2 {
		size = n
	}
	m := newRestMesh(t, size)
	m.quiet(either(5*time.Second, 10*time.Minute), either(2, 10), either(5*time.Second, time.Minute))
	thin := m.nodes[size-1]
	id, began := m.nodes[1].submitSum(thin.name), time.Now()
	m.nodes[1].ends(id, "SUCCESS")
	within(t, "a small task over the thin wire", time.Since(began), thinTask)
	m.pauseOne()
	pause(either(time.Second, time.Minute)) // the news of the pause fill the thin wire for a while
	m.joinOne("late", "11.0.0.200", true)
	m.killOne()
	m.joinOne("later", "11.0.0.201", false)
}

// TestBenchNarrowedMember measures what becomes of a member whose wire becomes thin half a
// minute after all are connected, over both networks and over TCP alone: how many of the
// others consider it ALIVE, and what it carries.
func TestBenchNarrowedMember(t *testing.T) {
	for _, noUDP := range []bool{true, false} {
		t.Run(map[bool]string{true: "TCP alone", false: "QUIC"}[noUDP], func(t *testing.T) {
			m := &restMesh{t: t, net: lab.New(t).Net("public", "11.0.0.0/24")}
			size := either(4, 15)
			for i := range size {
				m.add(fmt.Sprintf("n%d", i), noUDP && i == size-1)
			}
			m.whole()
			pause(either(time.Second, 30*time.Second))
			m.narrow()
			began, before, whole, looks := time.Now(), m.counted(), 0, either(2, 20)
			for range looks {
				pause(either(time.Second, 5*time.Second))
				alive := 0
				for _, n := range m.nodes[:size-1] {
					if slices.Contains(n.considered("ALIVE"), m.nodes[size-1].name) {
						alive++
					}
				}
				if alive == size-1 {
					whole++
				}
				t.Logf("after %s ALIVE and connected for %d of %d", time.Since(began).Round(time.Second), alive, size-1)
			}
			after, thin := m.counted(), size-1
			seconds := time.Since(began).Seconds()
			t.Logf("counted: in %d of %d looks ALIVE and connected for all; it received %.1f kB/s and sent %.1f", whole, looks,
				float64(after[thin][0]-before[thin][0])/seconds/1000, float64(after[thin][1]-before[thin][1])/seconds/1000)
			if long && whole < looks*9/10 {
				t.Errorf("ALIVE and connected for all in %d of %d looks", whole, looks)
			}
		})
	}
}

func (m *machine) submitSum(to string) (id string) {
	m.t.Helper()
	s, err := m.Submit(context.Background(), wire.Request{Target: to, Kind: "sum"})
	if err != nil {
		m.t.Fatal(err)
	}
	return s.ID
}

func (m *machine) ends(id, state string) {
	m.t.Helper()
	m.until("the task ends", func() bool {
		task, err := m.Task(context.Background(), id)
		return err == nil && task.State == state
	})
}

// quiet measures some minutes of rest.
func (m *restMesh) quiet(settle time.Duration, minutes int, minute time.Duration) {
	m.t.Helper()
	pause(settle)
	others, thin := m.nodes[:len(m.nodes)-1], m.nodes[len(m.nodes)-1].name
	rates := make([][]float64, len(m.nodes)) // per node, in and out of each minute, in kB/s
	var cpu []float64
	before, spent, began := m.counted(), m.spent(), time.Now()
	looks, alive := 0, 0
	for range minutes {
		for end := time.Now().Add(minute); time.Now().Before(end); pause(time.Second) {
			if slices.Contains(others[looks%len(others)].considered("ALIVE"), thin) {
				alive++
			}
			looks++
		}
		after := m.counted()
		for i := range rates {
			for d := range 2 {
				rates[i] = append(rates[i], float64(after[i][d]-before[i][d])/minute.Seconds()/1000)
			}
		}
		before = after
	}
	for i, s := range m.spent() {
		cpu = append(cpu, (s-spent[i])/time.Since(began).Seconds()*100)
	}
	var all []float64
	for _, r := range rates {
		all = append(all, middle(r))
	}
	load, _ := os.ReadFile("/proc/loadavg")
	m.t.Logf("counted: %d nodes at rest: kB/s in each direction median %.2f, worst %.2f; CPU median %.2f %%, worst %.2f %% of a core; the one behind a thin wire ALIVE in %d of %d looks, each of another node; load %s",
		len(all), middle(all), slices.Max(all), middle(cpu), slices.Max(cpu), alive, looks, strings.TrimSpace(string(load)))
	if !long {
		return
	}
	most := map[bool]float64{true: 4, false: 6}[len(all) <= 15]
	if got := middle(all); got > most {
		m.t.Errorf("a node at rest carries %.2f kB/s, want at most %.0f", got, most)
	}
	if got := middle(cpu); got > 1 {
		m.t.Errorf("a node at rest uses %.2f %% of a core, want at most 1", got)
	}
	if alive < looks {
		m.t.Errorf("the node behind a thin wire is ALIVE in %d of %d looks", alive, looks)
	}
}

func middle(all []float64) float64 {
	s := slices.Sorted(slices.Values(all))
	return s[len(s)/2]
}

// counted returns the bytes that each host has received and sent.
func (m *restMesh) counted() (all [][2]int64) {
	m.t.Helper()
	for _, h := range m.hosts {
		out, err := h.Command("cat", "/proc/net/dev").Output()
		if err != nil {
			m.t.Fatal(err)
		}
		var got [2]int64
		for line := range strings.Lines(string(out)) {
			name, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
			if f := strings.Fields(rest); name == "eth0" && len(f) > 8 {
				got[0], _ = strconv.ParseInt(f[0], 10, 64)
				got[1], _ = strconv.ParseInt(f[8], 10, 64)
			}
		}
		all = append(all, got)
	}
	return all
}

// spent returns the CPU time of each node in seconds.
func (m *restMesh) spent() (all []float64) {
	m.t.Helper()
	for _, n := range m.nodes {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.cmd.Process.Pid))
		if err != nil {
			m.t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		user, _ := strconv.ParseFloat(f[11], 64)
		system, _ := strconv.ParseFloat(f[12], 64)
		all = append(all, (user+system)/100)
	}
	return all
}

// pauseOne pauses a node for 3 s: few others accuse it, none calls it dead, and its refutation
// is believed at once.
func (m *restMesh) pauseOne() {
	m.t.Helper()
	paused := m.nodes[2]
	from := map[*machine]uint64{}
	for _, n := range m.nodes {
		from[n] = n.eventsAfter(0, nil)
	}
	paused.pause()
	pause(3 * time.Second)
	paused.signal(syscall.SIGCONT)
	began := time.Now()
	for _, n := range slices.Delete(slices.Clone(m.nodes), 2, 3) {
		n.until("it considers the node alive again", func() bool { pause(50 * time.Millisecond); return slices.Contains(n.considered("ALIVE"), paused.name) })
	}
	within(m.t, "all consider it alive again after the pause", time.Since(began), 2*time.Second)
	accusers, dead := map[string]bool{}, 0
	for _, n := range m.nodes {
		page, err := n.EventPage(context.Background(), from[n], 1000, 0)
		if err != nil {
			m.t.Fatal(err)
		}
		for _, e := range page.Items {
			if e.Kind != wire.EventMemberChanged || e.Peer != paused.name {
				continue
			}
			switch e.Fields["to"] {
			case "SUSPECT":
				accusers[e.Fields["by"]] = true
			case "DEAD":
				dead++
			}
		}
	}
	m.t.Logf("counted: a pause of 3 s: accused by %d members, DEAD in %d views", len(accusers), dead)
	if long && (len(accusers) > 3 || dead > 0) {
		m.t.Errorf("a pause of 3 s: accused by %v, DEAD in %d views", accusers, dead)
	}
}

// killOne kills a node: all others know it soon.
func (m *restMesh) killOne() {
	m.t.Helper()
	killed := m.nodes[3]
	killed.kill()
	began := time.Now()
	others := slices.Delete(slices.Clone(m.nodes), 3, 4)
	for _, n := range others {
		n.until("it knows the death", func() bool { pause(100 * time.Millisecond); return slices.Contains(n.considered("DEAD"), killed.name) })
	}
	within(m.t, "a death is known to all", time.Since(began), 10*time.Second)
	m.nodes, m.hosts = others, slices.Delete(slices.Clone(m.hosts), 3, 4)
}

// joinOne adds a node: all others know it soon, the one behind the thin wire only at rest:
// right after a death it is busy with the search for another relay.
func (m *restMesh) joinOne(name, addr string, atRest bool) {
	m.t.Helper()
	h := m.net.Host(name, lab.Attachment{Addr: addr, Wire: lab.Long})
	late := newMachine(m.t, name, false, place(h, config{engine: "nutsdb", net: "  mdns: off\n"}))
	late.join(m.nodes[0])
	began := time.Now()
	late.start()
	knows := func(n *machine) {
		asked := time.Now()
		defer func() {
			if d := time.Since(asked); d > time.Second {
				m.t.Logf("%s knows the new node %s after those before it", n.name, d.Round(100*time.Millisecond))
			}
		}()
		n.until("it knows the new node", func() bool { pause(100 * time.Millisecond); return slices.Contains(n.considered("ALIVE"), late.name) })
	}
	last := len(m.nodes) - 1
	for _, n := range m.nodes[:last] {
		knows(n)
	}
	if atRest {
		knows(m.nodes[last])
		within(m.t, "a join is known to all", time.Since(began), 5*time.Second)
		return
	}
	within(m.t, "a join right after a death is known to all but the one behind the thin wire", time.Since(began), 5*time.Second)
	knows(m.nodes[last])
	m.t.Logf("counted: to that one after %s", time.Since(began).Round(100*time.Millisecond))
}
