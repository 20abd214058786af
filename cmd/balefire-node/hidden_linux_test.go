package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A ticket that is typed at a terminal is not shown. The terminal shows again what is typed
// once the command has ended, also if it is interrupted.
func TestTicketIsNotShown(t *testing.T) {
	for name, tt := range map[string]struct {
		typed string // "": it is interrupted
		code  int
		says  string
	}{
		"typed":       {"BALE1X\n", exitUsage, "paste the ticket (it is not shown):\nerror: "},
		"interrupted": {"", exitInterrupted, "paste the ticket (it is not shown):\n"},
	} {
		t.Run(name, func(t *testing.T) {
			c := openTerminal(t)
			said := new(bytes.Buffer)
			join := exec.CommandContext(t.Context(), "balefire-node", "join", "-", "--dir", t.TempDir())
			join.Stdin, join.Stderr = c.device, said
			if err := join.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { _ = join.Wait(); close(ended) }()
			c.awaitHidden(t, ended)
			var err error
			if tt.typed != "" {
				_, err = c.keyboard.WriteString(tt.typed)
			} else {
				err = join.Process.Signal(os.Interrupt)
			}
			if err != nil {
				t.Fatal(err)
			}
			<-ended
			if code := join.ProcessState.ExitCode(); code != tt.code || !bytes.HasPrefix(said.Bytes(), []byte(tt.says)) || bytes.Contains(said.Bytes(), []byte("no ticket")) {
				t.Errorf("%d, %q", code, said)
			}
			if shown := c.shown(t); shown != "" {
				t.Errorf("the terminal shows %q", shown)
			}
			if !c.echoes(t) {
				t.Error("the terminal no longer shows what is typed")
			}
		})
	}
}

// A terminal is what a process has as its standard input, and what a person sees and types.
type terminal struct {
	device   *os.File // of the process
	keyboard *os.File // and screen
}

func openTerminal(t *testing.T) terminal {
	t.Helper()
	open := func(path string) *os.File {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	keyboard := open("/dev/ptmx")
	fd := int(keyboard.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	return terminal{open(fmt.Sprintf("/dev/pts/%d", n)), keyboard}
}

// echoes reports whether the terminal shows what is typed.
func (c terminal) echoes(t *testing.T) bool {
	t.Helper()
	s, err := unix.IoctlGetTermios(int(c.device.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return s.Lflag&unix.ECHO != 0
}

// awaitHidden waits until the terminal does not show what is typed. The limit catches a
// process that never hides it.
func (c terminal) awaitHidden(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	limit := time.After(time.Minute)
	for c.echoes(t) {
		select {
		case <-ended:
			t.Fatal("the command has ended and asked for nothing")
		case <-limit:
			t.Fatal("what is typed is shown")
		case <-time.After(time.Millisecond):
		}
	}
}

// shown returns what the terminal has shown so far.
func (c terminal) shown(t *testing.T) string {
	t.Helper()
	const end = "."
	if _, err := c.device.WriteString(end); err != nil {
		t.Fatal(err)
	}
	var all []byte
	for !bytes.HasSuffix(all, []byte(end)) {
		b := make([]byte, 100)
		n, err := c.keyboard.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b[:n]...)
	}
	return string(bytes.TrimSuffix(all, []byte(end)))
}
