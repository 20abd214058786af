//go:build e2e

package e2e

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/wire"
)

// handlerPoints are the moments at which the node of a handler can be killed, or the home of
// what it forwards: around the end of a run, and until the forward has arrived.
var handlerPoints = []struct {
	name string
	home bool // of the forward
}{
	{mailbox.PointSettle, false},
	{mailbox.PointSettled, false},
	{mailbox.PointAnswer, false},
	{mailbox.PointReceive, true},
	{mailbox.PointReceived, true},
}

// TestMailHandlerIsKilled checks I19, I21 and I22 when the node of a handler is killed while its
// programs run, and at each step from their end until what they forward has arrived: each mail
// is handled, its forward arrives once, no program outlives its node, and each run has one end
// in the audit, or one crash.
func TestMailHandlerIsKilled(t *testing.T) {
	a, b := pair(t, config{engine: engines[0]})
	h := newHandled(t, a, b)
	h.killRunning()
	for _, pt := range handlerPoints {
		side, who := b, "handler"
		if pt.home {
			side, who = a, "home"
		}
		for _, visit := range either([]int{2}, []int{1, 2, 4}) {
			t.Run(fmt.Sprintf("%s %s %d", who, strings.ReplaceAll(pt.name, "/", " "), visit), func(t *testing.T) {
				side.stop()
				side.start(fmt.Sprintf("BALEFIRE_FAILPOINT=%s:%d", pt.name, visit))
				side.until("it dies", func() bool { // runs that end together are forwarded together
					h.send(1)
					h.arrive()
					return !side.alive()
				})
				side.waitFailpoint()
				h.settle()
			})
		}
	}
	h.killRunning()
	h.check()
}

// handled are the mails that the handler of a box at b forwards to a box at a.
type handled struct {
	t       *testing.T
	a, b    *machine
	marks   string // the file to which a program writes the type of its mail
	pids    string // the file to which it writes its process, and that of its child
	gate    string // while this file is there, programs do not end
	sent    []wire.Mail
	arrived map[string]int // forwards, by type
	cut     int            // runs that were killed
}

func newHandled(t *testing.T, a, b *machine) *handled {
	t.Helper()
	dir := shortDir(t)
	h := &handled{t: t, a: a, b: b, marks: filepath.Join(dir, "marks"), pids: filepath.Join(dir, "pids"), gate: filepath.Join(dir, "gate"), arrived: map[string]int{}}
	if _, err := a.SetMailbox(t.Context(), "out", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: &[]string{"*"}}}); err != nil {
		t.Fatal(err)
	}
	script := `if test -e "$3"; then sleep 600 & echo "$$ $!" >> "$2"; fi; echo "$BALEFIRE_TYPE" >> "$1"; wait; sha256sum`
	if _, err := b.SetMailbox(t.Context(), "raw", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: &[]string{"*"}, Handler: &wire.MailHandler{
		Exec: []string{"/bin/sh", "-c", script, "sh", h.marks, h.pids, h.gate}, Forward: "agent:out@a", Concurrency: 3,
	}}}); err != nil {
		t.Fatal(err)
	}
	return h
}

// send sends n more mails, and those again of which it is not known whether they were sent.
func (h *handled) send(n int) (errs []error) {
	for range n {
		name := fmt.Sprint("mail ", len(h.sent))
		h.sent = append(h.sent, wire.Mail{To: "agent:raw@b", Type: name, Dedupe: name, Body: []byte(strings.Repeat(name, 1000))})
	}
	_, errs = h.a.SendMails(h.t.Context(), h.sent)
	return errs
}

// arrive reads the forwards that are there.
func (h *handled) arrive() {
	given, err := h.a.LeaseMail(h.t.Context(), "out", "", wire.LeaseMail{Max: 100, Wait: wire.Wait(100e6)})
	if err != nil {
		return // the node is dead
	}
	for _, d := range given {
		n, err := strconv.Atoi(strings.TrimPrefix(d.Mail.Type, "mail "))
		if err != nil || n >= len(h.sent) {
			h.t.Fatalf("I21: nobody sent %+v", d.Mail)
		}
		if want := fmt.Sprintf("%x  -\n", sha256.Sum256(h.sent[n].Body)); string(d.Mail.Body) != want {
			h.t.Errorf("I21: what came of %s is %q, want %q", d.Mail.Type, d.Mail.Body, want)
		}
		if items, err := h.a.SettleMail(h.t.Context(), "out", "", wire.SettleMail{Ack: []string{d.Lease}}); err == nil && items[0].Code == wire.SettledOK {
			h.arrived[d.Mail.Type]++
		}
	}
}

// settle waits until each mail is handled and what came of it has arrived, and checks that
// it has once.
func (h *handled) settle() {
	h.t.Helper()
	h.a.until("every mail is sent", func() bool { return errors.Join(h.send(0)...) == nil })
	n := uint64(len(h.sent))
	h.b.until("every mail is handled", func() bool {
		box, err := h.b.Mailbox(h.t.Context(), "raw")
		return err == nil && box.Next == n+1 && box.Waiting == 0
	})
	h.a.until("every forward is read", func() bool {
		h.arrive()
		spools, err := h.b.Outgoing(h.t.Context())
		box, failed := h.a.Mailbox(h.t.Context(), "out")
		return err == nil && failed == nil && len(spools) == 0 && box.Waiting == 0
	})
	raw, err := h.b.Mailbox(h.t.Context(), "raw")
	out, failed := h.a.Mailbox(h.t.Context(), "out")
	if err != nil || failed != nil || raw.Ended.Done != n || out.Ended.Done != n || out.Next != n+1 {
		h.t.Errorf("I22: of %d mails %+v were handled, and %+v forwards read, the next is %d: %v, %v", n, raw.Ended, out.Ended, out.Next, err, failed)
	}
}

// killRunning kills the node of the handler alone while programs run: they are gone when it
// has started again, and their mails are handled.
func (h *handled) killRunning() {
	h.t.Helper()
	const programs = 3
	_ = os.Remove(h.pids) // there is none the first time
	if err := os.WriteFile(h.gate, nil, 0o600); err != nil {
		h.t.Fatal(err)
	}
	ran := len(h.runs())
	h.send(programs)
	h.b.until("the programs run", func() bool { return len(h.runs()) == ran+programs })
	if err := syscall.Kill(h.b.cmd.Process.Pid, syscall.SIGKILL); err != nil { // not its process group
		h.t.Fatal(err)
	}
	h.b.died()
	h.cut += programs
	if err := os.Remove(h.gate); err != nil {
		h.t.Fatal(err)
	}
	h.b.start()
	text, err := os.ReadFile(h.pids)
	if err != nil || len(strings.Fields(string(text))) != 2*programs {
		h.t.Fatalf("%q, %v", text, err)
	}
	h.b.until("the programs of the dead node are gone", func() bool { return !slices.ContainsFunc(strings.Fields(string(text)), running) })
	h.settle()
}

// runs returns the type of the mail of each run.
func (h *handled) runs() []string {
	text, err := os.ReadFile(h.marks)
	if err != nil && !os.IsNotExist(err) {
		h.t.Fatal(err)
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

// check checks how often each mail was handled and each forward read, and the audit.
func (h *handled) check() {
	h.t.Helper()
	ran := map[string]int{}
	for _, name := range h.runs() {
		ran[name]++
	}
	for _, m := range h.sent {
		if ran[m.Type] == 0 || h.arrived[m.Type] > 1 {
			h.t.Errorf("I22: %s was handled %d times, and its forward was read %d times", m.Type, ran[m.Type], h.arrived[m.Type])
		}
	}
	h.b.stop()
	type run struct{ task, epoch string }
	starts, ends, actions := map[run]int{}, map[run]int{}, map[string]int{}
	if err := audit.Scan(filepath.Join(h.b.dir, audit.DirName), func(r audit.Record) error {
		switch actions[r.Action]++; r.Action {
		case "command.start":
			starts[run{r.Task, r.Epoch}]++
		case "command.end", "command.crash":
			ends[run{r.Task, r.Epoch}]++
		}
		return nil
	}); err != nil {
		h.t.Fatal(err)
	}
	for r, n := range starts {
		if n != 1 || ends[r] != 1 {
			h.t.Errorf("I19: run %v has %d starts and %d ends in the audit", r, n, ends[r])
		}
	}
	if actions["command.start"] < len(h.runs()) || actions["command.crash"] < h.cut || len(ends) != len(starts) {
		h.t.Errorf("I19: %d runs, of which at least %d were killed; the audit has %v", len(h.runs()), h.cut, actions)
	}
}
