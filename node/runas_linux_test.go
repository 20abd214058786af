package node

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/balefire/balefire/wire"
)

// A node that may not become another user refuses a handler that would run as one when it
// is added; the error says what gives it the capabilities.
func TestRunAsNeedsCapabilities(t *testing.T) {
	const without = "BALEFIRE_TEST_NO_SETUID"
	if os.Geteuid() == 0 && os.Getenv(without) == "" {
		again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		again.Env = append(os.Environ(), without+"=1")
		if out, err := withoutSetuid(again); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
			t.Errorf("without the capabilities: %v\n%s", err, out)
		}
		return
	}
	a := startAlone(t)
	err := a.Handlers.Add(t.Context(), wire.HandlerSpec{Kind: "k", Exec: []string{"true"}, RunAs: "64401:64401", Allow: []string{"peer:a"}})
	if !errors.Is(err, wire.ErrInvalid) || !strings.Contains(err.Error(), "needs the capabilities CAP_SETUID and CAP_SETGID") || !strings.Contains(err.Error(), "run-as.conf") {
		t.Errorf("added: %v", err)
	}
	if all := a.Handlers.List(); len(all) != 0 {
		t.Errorf("it was added anyway: %+v", all)
	}
}

// withoutSetuid runs a program of root that may not become another user.
func withoutSetuid(cmd *exec.Cmd) (out []byte, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: no other goroutine loses the capabilities
		if err = errors.Join(unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SETUID, 0, 0, 0), unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SETGID, 0, 0, 0)); err == nil {
			out, err = cmd.CombinedOutput()
		}
	}()
	<-done
	return out, err
}
