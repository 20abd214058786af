package main

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
)

// page shows text that is longer than the terminal in a pager, as git does: in the program
// of BALEFIRE_PAGER or PAGER, less otherwise. It reports whether the text was shown; it is
// not if it fits, nobody looks at a terminal, the pager is off (--no-pager, an empty
// variable, cat) or cannot be started.
func (w *app) page(text []byte) bool {
	_, height := w.terminalSize()
	if w.runPager == nil || w.flags.noPager || !w.outTTY || height == 0 || bytes.Count(text, []byte("\n")) < height {
		return false
	}
	argv := w.pagerCommand()
	return argv != nil && w.runPager(argv, text) == nil
}

// pagerCommand returns the pager and its arguments, or nil if it is off.
func (w *app) pagerCommand() []string {
	command := "less"
	for _, name := range []string{"PAGER", "BALEFIRE_PAGER"} {
		if v, ok := w.lookupEnv(name); ok {
			command = v
		}
	}
	argv := strings.Fields(command)
	if len(argv) == 0 || argv[0] == "cat" {
		return nil
	}
	return argv
}

// startPager runs a pager on the terminal of this process until its user leaves it. less
// shows colors and leaves the text on the screen, unless LESS says otherwise.
func startPager(argv []string, text []byte) error {
	c := exec.Command(argv[0], argv[1:]...)
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(text), os.Stdout, os.Stderr
	if _, set := os.LookupEnv("LESS"); !set {
		c.Env = append(os.Environ(), "LESS=FRX")
	}
	if err := c.Start(); err != nil {
		return err
	}
	c.Wait() // how the pager ends says nothing about the answer
	return nil
}
