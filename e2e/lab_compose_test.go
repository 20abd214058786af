//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/wire"
)

// project is the name of the containers, networks and volumes of the tests of this
// checkout.
var project = func() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf("balefire-e2e-%08x", crc32.ChecksumIEEE([]byte(dir)))
}()

// script runs scripts/mesh, or another program, at the root of the tree.
func script(t *testing.T, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "COMPOSE_PROJECT_NAME="+project)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("this test needs docker with a running daemon, and docker-compose: %s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// contained returns a node in a container, accessed through its folder.
func contained(t *testing.T, name string) *machine {
	t.Helper()
	dir := script(t, "docker", "volume", "inspect", "-f", "{{.Mountpoint}}", project+"_"+name)
	m := &machine{t: t, name: name, dir: dir, marks: filepath.Join(dir, "marks"), Client: client.New(filepath.Join(dir, "node.sock"))}
	t.Cleanup(m.Close)
	return m
}

// A flow is the tasks that one node sends to another.
type flow struct {
	from, to *machine
	promises *acknowledged
}

// TestMeshOfContainers checks I1, I6, S27 and S41 on containers: while
// tasks flow, a private network is partitioned and reconnected, a fifth of all packets is
// lost, a relay dies and comes back, a NAT becomes symmetric. No acknowledged task is
// lost or run twice. Then all nodes fail at once.
func TestMeshOfContainers(t *testing.T) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(script(t, "scripts/mesh", "logs"))
		}
		script(t, "scripts/mesh", "down")
	})
	script(t, "make", "mesh")
	script(t, "scripts/mesh", "up")
	nodes := map[string]*machine{}
	for _, name := range []string{"relay1", "relay2", "a1", "a2", "a3", "b1", "b2"} {
		nodes[name] = contained(t, name)
	}
	var flows []*flow
	for _, way := range routes {
		from, to, _ := strings.Cut(way, " ")
		flows = append(flows, &flow{nodes[from], nodes[to], newAcknowledged()})
		nodes[from].meets(to, anyhow)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	for _, f := range flows {
		sending.Go(func() {
			for ctx.Err() == nil {
				f.promises.submit(ctx, f.from, 2, wire.Request{Target: f.to.name, Kind: "mark"})
				pause(250 * time.Millisecond)
			}
		})
	}
	injectFaults(t)
	cancel()
	sending.Wait()
	for _, f := range flows {
		f.promises.checkAllEnd(t, f.from, "SUCCESS")
	}
	ledger(t, flows)
	stopAll(t, flows)
}

// TestThreeContainers is the short form of TestMeshOfContainers: three nodes, two of
// them behind NAT routers, a temporary partition and a router that restarts while
// tasks flow.
func TestThreeContainers(t *testing.T) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(script(t, "scripts/mesh", "logs"))
		}
		script(t, "scripts/mesh", "down")
	})
	script(t, "scripts/mesh", "down") // what a run that was killed has left
	script(t, "make", "mesh")
	script(t, "scripts/mesh", "up", "relay1", "pair", "router-a", "router-b", "a1", "b1")
	nodes := map[string]*machine{}
	for _, name := range []string{"relay1", "a1", "b1"} {
		nodes[name] = contained(t, name)
	}
	var flows []*flow
	for _, way := range []string{"a1 b1", "b1 relay1", "relay1 a1"} {
		from, to, _ := strings.Cut(way, " ")
		flows = append(flows, &flow{nodes[from], nodes[to], newAcknowledged()})
		nodes[from].meets(to, anyhow)
	}
	for _, step := range [][]string{{"partition", "a"}, {"heal"}, {"restart", "router-b"}} {
		for _, f := range flows {
			if errs := f.promises.submit(t.Context(), f.from, 20, wire.Request{Target: f.to.name, Kind: "mark"}); errs != nil {
				t.Fatalf("submit at %s: %v", f.from.name, errs[0])
			}
		}
		script(t, append([]string{"scripts/mesh"}, step...)...)
	}
	for _, f := range flows {
		f.promises.checkAllEnd(t, f.from, "SUCCESS")
	}
	ledger(t, flows)
	sharedQueue(t, nodes["relay1"], nodes["a1"], nodes["b1"])
}

// sharedQueue checks S19 and I20 on containers, with the commands of docs/ownership.md:
// an owner behind a NAT dies with tasks of a queue, then the home of the queue dies, and
// another admin seizes it. Every task ends, including those that waited for the old home.
func sharedQueue(t *testing.T, relay, owner, home *machine) {
	t.Helper()
	made := newAcknowledged()
	ended := func() { made.checkAllEnd(t, relay, "SUCCESS") }
	before := map[string]func(){ // what is waited for until a command is typed
		"queue members": func() { home.able("build", 2) },
		"send queue:build": func() {
			relay.until("it knows the queue", func() bool {
				_, err := relay.Queue(context.Background(), "build")
				return err == nil
			})
		},
		"kill a1": func() {
			home.until("both have tasks", func() bool {
				owners := map[string]bool{}
				ls, err := home.Leases(context.Background(), wire.LeaseFilter{})
				for _, l := range ls {
					owners[l.Peer] = true
				}
				if err == nil && len(ls) == 0 { // those of the page ended while they were typed
					if errs := made.submit(t.Context(), relay, 8, wire.Request{Target: "queue:build", Kind: "build"}); errs != nil {
						t.Fatal(errs[0])
					}
				}
				return owners[relay.name] && owners[owner.name]
			})
		},
		"mesh ownership-events": ended,
		"kill b1":               func() { home.able("build", 2) },
		"why queue:build": func() {
			owner.until("the queue has lost its home", func() bool {
				q, err := owner.Queue(context.Background(), "build")
				return err == nil && q.Alarm != nil
			})
		},
		"--wait": func() {
			relay.until("the queue has a home again", func() bool {
				q, err := relay.Queue(context.Background(), "build")
				return err == nil && q.Home == owner.name
			})
		},
		"task ls": ended,
	}
	prints := map[string]string{ // what must be in the output of a command
		"queue members": "a1", "mesh ownership-events": "a1", "why queue:build": "b1", "task ls": "SUCCESS",
	}
	idRE := regexp.MustCompile(`\b01[0-9a-f]{6}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	for _, line := range onContainers(t) {
		for part, wait := range before {
			if strings.Contains(line, part) {
				wait()
			}
		}
		out := script(t, "bash", "-ec", line)
		t.Logf("%s\n%s", line, out)
		for part, want := range prints {
			if strings.Contains(line, part) {
				delete(prints, part)
				if !strings.Contains(out, want) {
					t.Errorf("%s: no %q in\n%s", line, want, out)
				}
			}
		}
		if strings.Contains(line, " send ") && !strings.Contains(line, " --wait") { // which ends with its task
			ids := idRE.FindAllString(out, -1)
			if len(ids) == 0 {
				t.Fatalf("%s: no task in %q", line, out)
			}
			made.add(ids...)
		}
	}
	ended()
	if len(prints) > 0 || made.count() < 9 {
		t.Errorf("%d tasks were sent; these commands are not on the page: %v", made.count(), prints)
	}
}

// onContainers returns the commands of docs/ownership.md for containers, without those that
// start and remove the mesh.
func onContainers(t *testing.T) (lines []string) {
	t.Helper()
	page, err := os.ReadFile("../docs/ownership.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(page), "\n## On containers\n")
	block := fenceRE.FindStringSubmatch(part)
	if block == nil {
		t.Fatal("docs/ownership.md has no commands for containers")
	}
	for line := range strings.Lines(block[3]) {
		if !strings.HasPrefix(line, "make ") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// stopAll checks S27: all seven nodes and both routers stop at once and come back at new
// addresses, except for one relay. They find each other again, and pending tasks
// arrive. TestAllReturnAtNewAddresses in node covers addresses that are ten minutes old, in
// virtual time.
func stopAll(t *testing.T, flows []*flow) {
	t.Helper()
	for _, f := range flows {
		f.promises = newAcknowledged()
		if errs := f.promises.submit(t.Context(), f.from, 20, wire.Request{Target: f.to.name, Kind: "mark", Delay: wire.Duration(5 * time.Second)}); errs != nil {
			t.Fatalf("submit at %s: %v", f.from.name, errs[0])
		}
	}
	script(t, "scripts/mesh", "outage", "10")
	began := time.Now()
	for _, f := range flows {
		f.from.meets(f.to.name, anyhow)
		f.promises.checkAllEnd(t, f.from, "SUCCESS")
	}
	t.Logf("all routes work again %s after the containers were healthy", time.Since(began).Round(time.Millisecond))
}

// routes are pairs of sender and receiver. Relay2, which is killed, runs nothing: a task that
// runs when its node dies may run again.
var routes = []string{"a1 relay1", "relay1 a2", "a3 a1", "b1 relay1", "relay1 b2", "b2 b1", "a1 b1", "b2 a3"}

// injectFaults injects faults while tasks are sent.
func injectFaults(t *testing.T) {
	t.Helper()
	for _, step := range [][]string{
		{},
		{"partition", "a"}, {"heal"},
		{"loss", "0.2"}, {"heal"},
		{"kill", "relay2"}, {"start", "relay2"},
		{"partition", "b", "relay1"}, {"heal"},
		{"nat", "a", "symmetric"},
		{"restart", "router-b"},
	} {
		if len(step) > 0 {
			script(t, append([]string{"scripts/mesh"}, step...)...)
		}
		pause(5 * time.Second)
	}
}

// ledger checks the notes of the handlers against the acknowledged tasks: each task ran
// once.
func ledger(t *testing.T, flows []*flow) {
	t.Helper()
	total := 0
	for _, f := range flows {
		b, err := os.ReadFile(f.to.marks)
		if err != nil {
			t.Fatal(err)
		}
		ran := map[string]int{}
		for id := range strings.Lines(string(b)) {
			ran[strings.TrimSpace(id)]++
		}
		all := f.promises.all()
		for _, id := range all {
			if ran[id] != 1 {
				t.Errorf("%s, from %s to %s, ran %d times", id, f.from.name, f.to.name, ran[id])
			}
		}
		if len(all) < 50 {
			t.Errorf("only %d tasks were sent from %s to %s: the test proves little", len(all), f.from.name, f.to.name)
		}
		total += len(all)
	}
	t.Logf("counted: %d tasks on %d paths were acknowledged, each ran once", total, len(flows))
}
