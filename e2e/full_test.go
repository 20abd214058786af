//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// reserve is the disk space that machines with a small disk keep free for work that must
// continue when the disk is full.
const reserve = 24 << 20

// smallDisk mounts a disk of the given size.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := shortDir(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size+",mode=0700"); err != nil {
		t.Fatalf("this test mounts a tmpfs and needs to be root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill leaves n bytes of the disk free, and returns a function that frees the rest again.
func fill(t *testing.T, dir string, leave int64) (free func()) {
	t.Helper()
	var st syscall.Statfs_t
	path := filepath.Join(dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for try := 0; ; try++ {
		if err := syscall.Statfs(dir, &st); err != nil {
			t.Fatal(err)
		}
		size := int64(st.Bavail)*st.Bsize - leave
		if size <= 0 {
			break
		}
		err := syscall.Fallocate(int(f.Fd()), 0, 0, size)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.ENOSPC) || try == 20 { // the node may write at the same time
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// TestDiskFull checks I13, I21, S02, S03 and S47 on a disk that another program fills:
// to the reserve, and then to the last byte. Submits and sends of mail are refused as FULL,
// tasks and mail from peers wait at their home, running tasks end and deliver their results,
// mail that is there is read, no process exits, nothing acknowledged is lost; and when there is
// space again all tasks end, and all mail arrives, without intervention.
func TestDiskFull(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			ca := config{engine: engine, store: "  reserve: 24MiB\n  segment: 4MiB\n", mail: "mail:\n  segment: 4MiB\n"}
			cb := ca
			goOn := filepath.Join(shortDir(t), "go")
			ca.dir, cb.dir = filepath.Join(smallDisk(t, "160m"), "a"), filepath.Join(smallDisk(t, "160m"), "b")
			cb.kinds = fmt.Sprintf("  - {kind: wait, exec: [/bin/sh, -c, 'until test -e %s; do sleep 0.1; done'], allow: ['role:send']}\n", goOn)
			a, b := pairOf(t, ca, cb)
			f, running := fullDisk{a: a, b: b, tasks: newAcknowledged(), mails: newSentMails(t, b)}, newAcknowledged()
			running.submit(t.Context(), a, 4, wire.Request{Target: "b", Kind: "wait"})
			a.until("they run", func() bool {
				st, err := b.Status(t.Context())
				return err == nil && st.Inbox["RUNNING"] == 4
			})
			f.fill(t, a, reserve/2, func() {
				if err := os.WriteFile(goOn, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				running.checkAllEnd(t, a, "SUCCESS")
			})
			if err := f.mails.send(t, a); err != nil {
				t.Fatal(err)
			}
			f.mails.untilOneWaits(b)
			f.fill(t, b, reserve/2, func() { f.mails.readOne(t, b) })
			f.fill(t, a, 0, nothing)
			f.fill(t, b, 0, nothing)
			f.tasks.checkAllEnd(t, a, "SUCCESS")
			f.mails.readAll(t, b)
		})
	}
}

func nothing() {}

// A fullDisk is the test of one of two nodes whose disk is full, and what the nodes have taken.
type fullDisk struct {
	a, b  *machine
	tasks *acknowledged // of a, for b
	mails *sentMails    // by a, to b
}

// fill fills the disk of one of the two nodes until meanwhile has returned.
func (f *fullDisk) fill(t *testing.T, full *machine, leave int64, meanwhile func()) {
	t.Helper()
	p, a, b := f.tasks, f.a, f.b
	request := wire.Request{Target: "b", Kind: "mark", Body: make([]byte, 2000)}
	from, logged := full.eventsAfter(0, nil), len(full.logged())
	free := fill(t, filepath.Dir(full.dir), leave)
	refused := 0
	full.until("the full disk is noticed", func() bool {
		for _, err := range p.submit(t.Context(), a, 1, request) {
			if !errors.Is(err, wire.ErrFull) && leave > 0 {
				t.Errorf("a submit to a full disk: %v, want FULL", err)
			}
			refused++
		}
		if full == a {
			return refused > 0
		}
		st, err := b.StoreStats(t.Context())
		return err == nil && st.Full || leave == 0
	})
	for range 50 {
		refused += len(p.submit(t.Context(), a, 1, request))
		if err := f.mails.send(t, a); leave > 0 && (full == a && !errors.Is(err, wire.ErrFull) || full == b && err != nil) {
			t.Errorf("%s has a full disk, and a mail to b is sent with the error %v", full.name, err)
		}
	}
	pause(3 * time.Second) // longer than the time between two looks at the disk, and the delay before a failed store is reopened
	for _, m := range []*machine{a, b} {
		if !m.alive() {
			t.Errorf("S47: %s has exited on a full disk\n%s", m.name, m.tail())
		}
	}
	meanwhile()
	free()
	a.until("submits are accepted again", func() bool { return p.submit(t.Context(), a, 1, request) == nil })
	p.checkAllEnd(t, a, "SUCCESS")
	if leave == 0 {
		return // the node may have been reopened
	}
	kinds := map[string]int{}
	full.until("the end of it is an event", func() bool {
		from = full.eventsAfter(from, kinds)
		return kinds[wire.EventStoreRecovered] > 0
	})
	log := full.logged()[logged:]
	for what, n := range map[string]int{
		"lines that it is full": strings.Count(log, "new work is refused"), "lines that it no longer is": strings.Count(log, "new work is accepted again"),
		"events that it is full": kinds[wire.EventStoreFull], "events that it no longer is": kinds[wire.EventStoreRecovered],
	} {
		if n != 1 {
			t.Errorf("I13: of a full disk, and %d refused submits, %s has %d %s, not one", refused, full.name, n, what)
		}
	}
}

// eventsAfter counts the events after one by kind, and returns the number of the last.
func (m *machine) eventsAfter(from uint64, kinds map[string]int) uint64 {
	m.t.Helper()
	for {
		page, err := m.EventPage(m.t.Context(), from, 1000, 0)
		if err != nil {
			m.t.Fatal(err)
		}
		for _, e := range page.Items {
			if kinds != nil {
				kinds[e.Kind]++
			}
		}
		from = page.Next
		if len(page.Items) == 0 {
			return from
		}
	}
}

// TestOutputsStopAtTheReserve checks I13 for handlers that write output: their output stops
// at the reserve, so the node continues with other work; the task is not lost and runs when
// there is space, without a restart of the node.
func TestOutputsStopAtTheReserve(t *testing.T) {
	ca := config{engine: engines[0], store: "  reserve: 24MiB\n  segment: 4MiB\n"}
	cb := ca
	cb.dir = filepath.Join(smallDisk(t, "240m"), "b")
	cb.kinds = "  - {kind: big, exec: [head, -c, '60000000', /dev/zero], max_output: 70000000, max_attempts: 1, allow: ['role:send']}\n"
	a, b := pairOf(t, ca, cb)
	free := fill(t, filepath.Dir(b.dir), 80<<20)
	var ids []string
	for range 3 {
		s, err := a.Submit(t.Context(), wire.Request{Target: "b", Kind: "big"})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, s.ID)
	}
	b.until("a run is stopped for lack of space", func() bool {
		if st, err := b.StoreStats(t.Context()); err == nil && st.Full {
			t.Error("the outputs used the reserve of the disk")
		}
		stopped := 0
		for _, id := range ids {
			if task, err := b.Task(t.Context(), id); err == nil && task.Abandons > 0 {
				if task.Attempts > 0 {
					t.Errorf("%d attempts were used", task.Attempts)
				}
				stopped++
			}
		}
		return stopped == len(ids)
	})
	p := newAcknowledged()
	p.submit(t.Context(), a, 5, wire.Request{Target: "b", Kind: "mark", Body: make([]byte, 2000)})
	p.checkAllEnd(t, a, "SUCCESS")
	for _, id := range ids {
		b.until("why states that the task waits for space", func() bool {
			why, err := b.Why(t.Context(), id)
			return err == nil && why.Cause.Code == wire.NoteRetryWaits && why.Cause.Cause == proto.TaskUnready.Name()
		})
	}
	free()
	for _, id := range ids {
		task, err := a.Wait(t.Context(), id)
		if err != nil || task.State != "SUCCESS" || task.ResultSize != 60_000_000 || task.Truncated {
			t.Errorf("%s is %s (%s) with %d bytes, %v", id, task.State, task.Reason, task.ResultSize, err)
		}
	}
	if !b.alive() {
		t.Errorf("the node has exited\n%s", b.tail())
	}
}
