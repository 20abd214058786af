//go:build unix

package main

import (
	"errors"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/balefire/balefire/api/client/clienttest"
	"github.com/balefire/balefire/wire"
)

// A command whose request may have been stored does not say that it was, nor that it may be repeated.
func TestSendWithoutAnAnswer(t *testing.T) {
	n := newMailNode()
	silent := func(r *http.Request) any { <-r.Context().Done(); return errors.New("nobody hears this") }
	for _, route := range []string{"POST /v1/tasks", "POST /v1/mail", "POST /v1/mail/request"} {
		n.Answer(route, silent)
	}
	for line, advice := range map[string]string{
		"send laptop resize":                          "look whether it is there: balefire-node task ls. With --key from the first time on",
		"send laptop resize --key a":                  "repeat the command with the same --key: it is stored once",
		"mail send agent:ceo hello":                   "With --dedupe from the first time on",
		"mail send agent:ceo hello --dedupe a":        "repeat the command with the same --dedupe",
		"mail send agent:ceo hello --wait 1m":         "With --dedupe from the first time on",
		"send laptop resize --wait --max-result 1KiB": "balefire-node task ls",
	} {
		code, out, errs := command(t, n, append(words(line), "--timeout", "50ms")...)
		if code != exitError || out != "" || !strings.Contains(errs, "within 50ms: it is unknown whether it was stored") || !strings.Contains(errs, advice) {
			t.Errorf("%s: %d, %q\n%s", line, code, out, errs)
		}
	}
}

// A mail whose output cannot be written is not acknowledged.
func TestOutputThatCannotBeWritten(t *testing.T) {
	n := newMailNode()
	n.Answer("POST /v1/mailboxes/{box}/settle", func(r *http.Request) any {
		items := []wire.SettledItem{}
		s := document[wire.SettleMail](r)
		for range len(s.Nack) + len(s.Extend) {
			items = append(items, wire.SettledItem{Code: wire.SettledOK})
		}
		return wire.SettledMail{Items: items}
	})
	n.Answer("POST /v1/mailboxes/{box}/lease", leaseOf(testReceived("hello")))
	w, _, errs := newTestApp()
	w.out = fullDisk{}
	socket := socketPath(t)
	clienttest.Serve(t, n, socket)
	code := execute(t.Context(), w, []string{"--socket", socket, "mail", "read", "ceo", "--exec", "cat"})
	if calls := strings.Join(n.Requests(), "\n"); code != exitError || !strings.Contains(errs.String(), syscall.ENOSPC.Error()) || !strings.Contains(calls, `"reason":"what the program wrote could not be written"`) || strings.Contains(calls, `"ack"`) {
		t.Errorf("%d\n%s%s", code, errs, calls)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// The second interrupt ends a command that is not ended by the first.
func TestSecondInterrupt(t *testing.T) {
	const is = "BALEFIRE_TEST_INTERRUPTED"
	if os.Getenv(is) != "" {
		ctx, stop := signals()
		defer stop()
		os.Stdout.WriteString("ready\n")
		<-ctx.Done()
		os.Stdout.WriteString("first\n")
		select {}
	}
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSecondInterrupt$")
	c.Env = append(os.Environ(), is+"=yes")
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	said := make([]byte, len("ready\n"))
	for _, want := range []string{"ready\n", "first\n"} {
		if _, err := out.Read(said); err != nil || string(said) != want {
			t.Fatalf("%q, %v, want %q", said, err, want)
		}
		_ = c.Process.Signal(os.Interrupt)
	}
	ended := make(chan error)
	go func() { ended <- c.Wait() }()
	for again := time.NewTicker(10 * time.Millisecond); ; {
		select {
		case err := <-ended:
			if state, ok := c.ProcessState.Sys().(syscall.WaitStatus); !ok || state.Signal() != syscall.SIGINT {
				t.Errorf("it ended with %v", err)
			}
			return
		case <-again.C:
			_ = c.Process.Signal(os.Interrupt) // the one before may have come while the first was handled
		}
	}
}
