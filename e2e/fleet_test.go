//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/balefire/balefire/internal/lab"
	"github.com/balefire/balefire/wire"
)

// A fleet is five nodes in one network that share the queue build: its home, a node
// that only submits, and three workers.
type fleet struct {
	hosts []*lab.Host // in the order of nodes
	nodes []*machine  // home, submitter, worker1, worker2, worker3
}

const firstWorker = 2 // of fleet.nodes

func (f *fleet) home() *machine      { return f.nodes[0] }
func (f *fleet) submitter() *machine { return f.nodes[1] }
func (f *fleet) workers() []*machine { return f.nodes[firstWorker:] }

// newFleet starts the nodes and the queue, and waits until the home knows the workers.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{}
	n := lab.New(t).Net("fleet", "10.9.0.0/24")
	for i, name := range []string{"home", "submitter", "worker1", "worker2", "worker3"} {
		h := n.Host(name, lab.Attachment{Addr: fmt.Sprintf("10.9.0.%d", i+1)})
		c := config{engine: engines[i%len(engines)], dir: filepath.Join(shortDir(t), name), net: "  mdns: off\n"}
		if i >= firstWorker {
			c.kinds = notingHandler("build", c.dir, name, "") + notingHandler("slow", c.dir, name, "sleep 1; ")
		}
		m := newMachine(t, name, i == 0, place(h, c))
		m.env = []string{"BALEFIRE_CLOCK_FILE=" + m.clockFile()}
		if i > 0 {
			m.join(f.nodes[0])
		}
		m.start()
		f.hosts, f.nodes = append(f.hosts, h), append(f.nodes, m)
	}
	least := "least_loaded"
	if _, err := f.home().SetQueue(t.Context(), "build", wire.QueueSettings{Home: "here", Strategy: &least}); err != nil {
		t.Fatal(err)
	}
	f.submitter().until("it knows the queue", func() bool {
		_, err := f.submitter().Queue(context.Background(), "build")
		return err == nil
	})
	f.home().until("it knows the workers", func() bool {
		q, err := f.home().Queue(context.Background(), "build")
		able := 0
		for _, m := range q.Members {
			if m.Alive && len(m.Kinds) > 2 {
				able++
			}
		}
		return err == nil && able == len(f.workers())
	})
	return f
}

// notingHandler returns a handler that writes its start and end with the epoch of its
// lease, and returns as its result which run it was.
func notingHandler(kind, dir, name, work string) string {
	marks := filepath.Join(dir, "marks")
	run := "$BALEFIRE_TASK_ID $BALEFIRE_EPOCH $E2E_LIFE"
	script := fmt.Sprintf(`echo "S %s" >> %s; %secho "E %s" >> %s; echo "%s %s"`, run, marks, work, run, marks, name, run)
	return fmt.Sprintf("  - {kind: %s, exec: [/bin/sh, -c, '%s'], allow: ['role:send'], on_crash: retry, concurrency: 4, env: [E2E_LIFE]}\n", kind, script)
}

// clockFile is the file with the clock offset of the node.
func (m *machine) clockFile() string { return filepath.Join(m.dir, "clock") }

// clockWrong sets the clock offset of the node.
func (m *machine) clockWrong(by time.Duration) {
	m.t.Helper()
	if err := os.WriteFile(m.clockFile(), []byte(by.String()), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// outcome returns how a task ended at this node: its state, its cause and the output of
// its run. Before the end the state is empty.
func (m *machine) outcome(ctx context.Context, id string) (state, cause, said string, err error) {
	task, err := m.Task(ctx, id)
	if err != nil || task.Ended == nil {
		return "", "", "", err
	}
	if task.State != "SUCCESS" {
		return task.State, task.Cause, "", nil
	}
	r, _, err := m.Result(ctx, id)
	if err != nil {
		return "", "", "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return task.State, "", string(bytes.TrimSpace(b)), err
}
