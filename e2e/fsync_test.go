//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// syncTakes is the minimum duration of every fsync of a slowed node, measured from before the
// system call. An answer that comes sooner after its request did not wait for an fsync of its
// own.
const syncTakes = 150 * time.Millisecond

// slowFsync returns the command prefix that makes fsyncs slow.
func slowFsync(t *testing.T) []string {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatalf("this test needs strace: %v", err)
	}
	return []string{
		strace, "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=fsync,fdatasync",
		"-e", fmt.Sprintf("inject=fsync,fdatasync:delay_enter=%d", syncTakes.Microseconds()),
	}
}

// TestNoAnswerBeforeItsFsync checks I1, I8, I21 and S01 on a running node: no submit and no
// send of mail is answered and no task acknowledged before an fsync that started after its
// arrival, even if many arrive at once and share commits.
func TestNoAnswerBeforeItsFsync(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			a, b := pair(t, config{engine: engine})
			got := early(t, a, b, 8)
			if len(got.submits) > 0 {
				t.Errorf("submits were answered after %v, an fsync takes %v", got.submits, syncTakes)
			}
			if len(got.acks) > 0 {
				t.Errorf("tasks were acknowledged after %v, an fsync takes %v", got.acks, syncTakes)
			}
			for _, to := range []string{"agent:box@a", "agent:box@b"} {
				if mails := earlyMail(t, a, b, 8, wire.Mail{To: to}); len(mails) > 0 {
					t.Errorf("sends of mail to %s were answered after %v, an fsync takes %v", to, mails, syncTakes)
				}
			}
		})
	}
}

// TestMutantsAnswerTooEarly shows that the check above detects early answers. To mail that its
// sender calls relaxed a node that works answers early, so it shows that of mail.
func TestMutantsAnswerTooEarly(t *testing.T) {
	for _, kind := range []string{ackFirst, fsyncOff} {
		t.Run(kind, func(t *testing.T) {
			addrs := listen(t)
			a, b := pairOf(t, config{engine: "nutsdb"}, config{engine: "nutsdb", listen: addrs})
			b.stop()
			b.mutate(kind, addrs)
			b.start()
			if got := early(t, a, b, 1); len(got.acks) == 0 {
				t.Error("a node that acknowledges before it has synced was not detected by its acks")
			}
			addrs = listen(t)
			c, d := pairOf(t, config{engine: "nutsdb", listen: addrs}, config{engine: "nutsdb"})
			c.stop()
			c.mutate(kind, addrs)
			c.start()
			if got := early(t, c, d, 1); len(got.submits) == 0 {
				t.Error("a node that answers submits before it has synced was not detected")
			}
		})
	}
	t.Run("relaxed mail", func(t *testing.T) {
		a, b := pair(t, config{engine: engines[0]})
		for _, to := range []string{"agent:box@a", "agent:box@b"} {
			if got := earlyMail(t, a, b, 1, wire.Mail{To: to, Relaxed: true}); len(got) == 0 {
				t.Errorf("mail to %s that was answered before it was synced was not detected", to)
			}
		}
	})
}

// mutate makes the machine run a mutant instead of the node.
func (m *machine) mutate(kind string, listen []string) {
	m.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		m.t.Fatal(err)
	}
	m.instead = []string{exe}
	m.env = []string{mutantVariable + "=" + kind, mutantDir + "=" + m.dir, mutantListen + "=" + strings.Join(listen, ",")}
}

// Answers that came too early, each with the time after its request.
type answers struct{ submits, acks []time.Duration }

// early slows the fsyncs of the home, then of the owner, and returns the answers of the
// slowed node that came before one fsync could have finished.
func early(t *testing.T, home, owner *machine, at int) (got answers) {
	t.Helper()
	request := wire.Request{Target: owner.name, Kind: "mark"}
	got.submits = measure(t, home, owner, at, func() time.Duration {
		began := time.Now()
		if _, err := home.Submit(t.Context(), request); err != nil {
			t.Error(err)
		}
		return time.Since(began)
	})
	got.acks = measure(t, owner, home, at, func() time.Duration {
		began := time.Now()
		s, err := home.Submit(t.Context(), request)
		if err != nil {
			t.Error(err)
			return syncTakes
		}
		home.until("the task is acknowledged", func() bool {
			task, err := home.Task(t.Context(), s.ID)
			return err == nil && slices.Contains(task.Receipts, "accepted")
		})
		return time.Since(began)
	})
	return got
}

// earlyMail is early for sends of a mail at a node, of one mail or several at once. If it goes to a
// box of the other node, no send waits for an fsync there.
func earlyMail(t *testing.T, node, other *machine, at int, m wire.Mail) []time.Duration {
	t.Helper()
	for _, home := range []*machine{node, other} {
		if _, err := home.SetMailbox(t.Context(), "box", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: &[]string{"*"}}}); err != nil {
			t.Fatal(err)
		}
	}
	var calls atomic.Int64
	return measure(t, node, other, at, func() time.Duration {
		began := time.Now()
		if calls.Add(1)%2 == 0 {
			if _, err := node.SendMail(t.Context(), m); err != nil {
				t.Error(err)
			}
		} else if _, errs := node.SendMails(t.Context(), []wire.Mail{m, m, m}); errors.Join(errs...) != nil {
			t.Error(errs)
		}
		return time.Since(began)
	})
}

// measure calls one five times in each of some goroutines while the fsyncs of a node that is
// connected to another are slow, and returns what it returned below the time of one fsync.
func measure(t *testing.T, slow, other *machine, goroutines int, one func() time.Duration) (all []time.Duration) {
	t.Helper()
	slow.stop()
	if slow.instead != nil {
		pause(time.Second)
	}
	slow.trace = slowFsync(t)
	slow.start()
	slow.trace = nil
	linked(slow, other)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for range 5 {
				if took := one(); took < syncTakes {
					mu.Lock()
					all = append(all, took)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	slow.kill() // a graceful stop would take long
	if slow.instead != nil {
		pause(time.Second) // a mutant forgets its last boot number and uses the clock
	}
	slow.start()
	return all
}

// linked waits until both nodes are connected to each other.
func linked(a, b *machine) {
	sees := func(m, other *machine) bool {
		p, err := m.Peer(context.Background(), other.name)
		return err == nil && p.State == "CONNECTED"
	}
	a.until("they are connected", func() bool { return sees(a, b) && sees(b, a) })
}
