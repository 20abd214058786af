//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/balefire/balefire/wire"
)

// TestFewFileDescriptors checks S16: a node whose handlers need more file descriptors than
// it may open starts them later. No task loses an attempt, and each ends as it would have.
func TestFewFileDescriptors(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			kinds := "  - {kind: nap, exec: [/bin/sleep, '2'], allow: ['role:send'], on_crash: retry}\n"
			a, b := pairOf(t, config{engine: engine}, config{engine: engine, kinds: kinds, limits: "  slots: 32\n"})
			first := newAcknowledged()
			first.submit(t.Context(), a, 1, wire.Request{Target: "b", Kind: "nap"})
			first.checkAllEnd(t, a, "SUCCESS")
			open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.cmd.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			b.stop()
			b.trace = []string{"/bin/sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, len(open)+24)}
			b.start()
			p := newAcknowledged()
			p.submit(t.Context(), a, 60, wire.Request{Target: "b", Kind: "nap", Retries: 1})
			b.until("a handler finds no file descriptor", func() bool {
				return slices.ContainsFunc(p.all(), func(id string) bool {
					task, err := b.Task(t.Context(), id)
					return err == nil && strings.Contains(task.Reason, "too many open files")
				})
			})
			p.checkAllEnd(t, a, "SUCCESS")
			for _, id := range p.all() {
				if task, err := a.Task(t.Context(), id); err != nil || task.Attempts > 1 || task.Abandons > 0 {
					t.Errorf("%s had %d attempts and %d abandons, %v", id, task.Attempts, task.Abandons, err)
				}
			}
			if !b.alive() {
				t.Errorf("the node exited: %s", b.tail())
			}
		})
	}
}
