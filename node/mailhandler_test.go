package node

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// runMail gives the mailbox ceo a handler that runs a shell script.
func (l *testNode) runMail(t *testing.T, script string, change func(*wire.MailHandler)) {
	t.Helper()
	h := &wire.MailHandler{Exec: []string{"sh", "-c", script}}
	if change != nil {
		change(h)
	}
	if _, err := l.Mail.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Handler: h}, SubscriptionSettings: wire.SubscriptionSettings{Attempts: new(2)}}); err != nil {
		t.Fatal(err)
	}
}

// waitBox waits until a mailbox is as wanted, and returns its dead letters.
func (l *testNode) waitBox(t *testing.T, name string, ok func(wire.Box) bool) (dead []wire.BoxedMail) {
	t.Helper()
	var v wire.Box
	eventually(t, func() bool {
		var err error
		if v, err = l.Mail.Get(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		return ok(v)
	}, func() string { return fmt.Sprintf("the mailbox has the problem %+v", v.Problem) })
	dead, _, err := l.Mail.Mails(t.Context(), name, "", wire.MailQuery{State: "DEAD", Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	return dead
}

func ended(done, dead uint64) func(wire.Box) bool {
	return func(v wire.Box) bool { return v.Ended.Done == done && v.Ended.Dead == dead && v.Waiting == 0 }
}

// The exit code of a program decides what becomes of its mail, and what it wrote stays with a
// dead letter.
func TestProgramsHandleMail(t *testing.T) {
	t.Parallel()
	a := startAlone(t)
	a.runMail(t, `read body; echo "$BALEFIRE_BOX $BALEFIRE_ATTEMPT: $body" >&2; exit ${body#exit }`, nil)
	if err := a.mail(t, "exit 0\n", "exit 65\n", "exit 75\n"); err != nil {
		t.Fatal(err)
	}
	dead := a.waitBox(t, "ceo", ended(1, 2))
	for i, want := range []struct {
		attempts      int
		cause, stderr string
	}{{1, "final", " 1: exit 65\n"}, {2, "nacked", " 2: exit 75\n"}} {
		if d := dead[i]; d.Attempts != want.attempts || d.Cause != want.cause || !strings.HasSuffix(d.Reason, strings.TrimSpace(want.stderr)) || !strings.HasSuffix(d.Stderr, want.stderr) {
			t.Errorf("%+v", d)
		}
	}
	a.runMail(t, "sleep 600", func(h *wire.MailHandler) { h.Timeout = wire.Duration(1e8) })
	if err := a.mail(t, "slow"); err != nil {
		t.Fatal(err)
	}
	if dead := a.waitBox(t, "ceo", ended(1, 3)); len(dead) != 3 || dead[2].Cause != "nacked" {
		t.Errorf("%+v", dead)
	}
}

// The output of a program goes on with the headers, also after a restart of the node while the
// program ran, which spends nothing.
func TestProgramsForwardMail(t *testing.T) {
	t.Parallel()
	a := startAlone(t)
	if _, err := a.Mail.SetMailbox(t.Context(), "next", wire.MailboxSettings{}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	started, blocked := filepath.Join(dir, "started"), filepath.Join(dir, "blocked")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a.runMail(t, "echo >>"+started+"; test -e "+blocked+" && exec sleep 600; printf '%s, ' \"$BALEFIRE_ATTEMPT\"; cat", func(h *wire.MailHandler) { h.Forward = "agent:next" })
	if err := a.mail(t, "the body"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { _, err := os.Stat(started); return err == nil }, func() string { return "it did not start" })
	a.halt()
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	b := start(t, a.cfg)
	b.waitBox(t, "ceo", ended(1, 0))
	if bodies, _ := b.leased(t, "next"); len(bodies) != 1 || bodies[0] != "1, the body" {
		t.Errorf("%q", bodies)
	}
}

// Mail is posted to a URL, and its answer decides.
func TestMailIsPosted(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Balefire-Box") == "" {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	defer server.Close()
	a := startAlone(t)
	a.runMail(t, "", func(h *wire.MailHandler) { h.Exec, h.Post, h.Concurrency = nil, server.URL, 3 })
	if err := a.mail(t, "1", "2", "3", "4", "5"); err != nil {
		t.Fatal(err)
	}
	a.waitBox(t, "ceo", ended(5, 0))
}

// What is dangerous runs only if the configuration of the node names its mailbox.
func TestDangerousProgramsOfMailboxes(t *testing.T) {
	t.Parallel()
	a := startAlone(t)
	h := &wire.MailHandler{Exec: []string{"true"}, Profile: "dangerous"}
	_, err := a.Mail.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Handler: h}})
	if wire.CodeOf(err) != wire.CodeDenied || !strings.Contains(err.Error(), "name ceo under dangerous") {
		t.Errorf("%v", err)
	}
	h.Profile, h.RunAs = "", "nobody-at-all"
	if _, err := a.Mail.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Handler: h}}); wire.CodeOf(err) != wire.CodeDenied {
		t.Errorf("%v", err)
	}
	h.RunAs, h.Dir = "", "/nowhere"
	if _, err := a.Mail.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Handler: h}}); wire.CodeOf(err) != wire.CodeInvalid || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("%v", err)
	}
}

// A handler that was added, and that the configuration does not allow any more, is not offered and
// not forgotten: the node opens, says why, and can remove it.
func TestAddedHandlerThatIsNotAllowedAnyMore(t *testing.T) {
	t.Parallel()
	cfg := testConfig(t, filepath.Join(t.TempDir(), "node"))
	if _, err := pairing.Init(pairing.InitOptions{Dir: cfg.Dir, Name: "a", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	cfg.Dangerous = []string{"wipe"}
	a := start(t, cfg)
	if err := a.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "wipe", Exec: []string{"true"}, Profile: "dangerous", Allow: []string{"peer:a"}}); err != nil {
		t.Fatal(err)
	}
	a.halt()
	cfg.Dangerous = nil
	a = start(t, cfg)
	all := a.Handlers.List()
	if len(all) != 1 || all[0].Kind != "wipe" || all[0].Problem == nil || all[0].Problem.Code != wire.ProblemHandler || len(a.inbox.Specs()) != 0 {
		t.Errorf("%+v, offered %v", all, a.inbox.Specs())
	}
	if err := a.Handlers.Remove(t.Context(), "wipe"); err != nil || len(a.Handlers.List()) != 0 {
		t.Errorf("removed: %v, %+v", err, a.Handlers.List())
	}
}

// I19: each run of the program of a mailbox has one start in the audit and one end, or one crash:
// also two that a crash cut off at the same time, whose mails have one id.
func TestAuditHasOneEndForEachRunOfMail(t *testing.T) {
	t.Parallel()
	a := startAlone(t)
	dir := t.TempDir()
	gate, started := filepath.Join(dir, "gate"), filepath.Join(dir, "started")
	h := &wire.MailHandler{Exec: []string{"sh", "-c", `echo >>"$1"; if test "$BALEFIRE_TYPE" = wait; then until test -e "$2"; do sleep 0.1; done; fi`, "sh", started, gate}}
	for _, name := range []string{"ceo", "desk"} {
		if _, err := a.Mail.SetMailbox(t.Context(), name, wire.MailboxSettings{BoxSettings: wire.BoxSettings{Handler: h}}); err != nil {
			t.Fatal(err)
		}
	}
	send := func(mails ...wire.Mail) {
		t.Helper()
		if _, errs := a.Mail.Send(t.Context(), mails); errors.Join(errs...) != nil {
			t.Fatal(errs)
		}
	}
	send(wire.Mail{To: "agent:ceo"}, wire.Mail{To: "agent:desk"})
	a.waitBox(t, "ceo", ended(1, 0))
	a.waitBox(t, "desk", ended(1, 0))
	one := wire.Mail{To: "agent:ceo", Type: "wait", Producer: strings.Repeat("1", 32), Number: 1, ID: proto.NewMailID(time.Now()).String()}
	two := one
	two.To, two.Producer = "agent:desk", strings.Repeat("2", 32)
	send(one, two)
	eventually(t, func() bool {
		lines, err := os.ReadFile(started)
		return err == nil && len(lines) == 4
	}, func() string { return "the programs do not run" })
	crashed := a.copyAsCrashed(t)
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a.halt()
	for range 2 { // the second time there is nothing left to do
		again := start(t, crashed)
		for _, name := range []string{"ceo", "desk"} {
			again.waitBox(t, name, func(v wire.Box) bool { return v.Waiting == 0 })
		}
		again.halt()
	}
	type run struct{ box, task, epoch string }
	starts, ends, actions := map[run]int{}, map[run]int{}, map[string]int{}
	if err := audit.Scan(filepath.Join(crashed.Dir, audit.DirName), func(r audit.Record) error {
		key := run{r.Detail["kind"], r.Task, r.Epoch}
		switch actions[r.Action]++; r.Action {
		case "command.start":
			starts[key]++
		case "command.end", "command.crash":
			ends[key]++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if actions["command.start"] != 6 || actions["command.end"] != 4 || actions["command.crash"] != 2 {
		t.Errorf("the audit has %v", actions)
	}
	for key, n := range starts {
		if n != 1 || ends[key] != 1 {
			t.Errorf("%v has %d starts and %d ends", key, n, ends[key])
		}
	}
}
