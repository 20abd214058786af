//go:build !windows

package command

import (
	"os/exec"
	"testing"
)

// A program that closes its input, or ends, before it has read the body is not stopped for
// that: the rest of the body is dropped.
func TestUnreadInputIsDropped(t *testing.T) {
	p, err := openPipes(new(exec.Cmd), true)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	p.started() // nobody has the other ends
	stopped := make(chan struct{})
	close(stopped)
	<-p.feed(zeros{}, func(err error) { t.Errorf("the program is stopped: %v", err) }, stopped)
}

// A process that was not found, keeps the input open and does not read it does not keep the
// run from its end.
func TestInputKeptOpenEndsWithTheRun(t *testing.T) {
	p, err := openPipes(new(exec.Cmd), true)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	ended := make(chan struct{})
	close(ended)
	p.drain(p.feed(zeros{}, func(err error) { t.Errorf("the program is stopped: %v", err) }, ended), ended)
}
