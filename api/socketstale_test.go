package api

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
)

// Listen waits for a socket that still accepts connections for a moment, like that of a node
// that was just killed; it does not replace one that continues to accept them.
func TestListenAwaitsADyingNode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	looked := make(chan error, 1)
	go func() {
		c, err := old.Accept() // the first check
		if err == nil {
			err = errors.Join(c.Close(), old.Close())
		}
		looked <- err
	}()
	l, err := Listen(path)
	if err != nil {
		t.Fatalf("the old node has died: %v", err)
	}
	defer l.Close()
	if err := <-looked; err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); !errors.Is(err, ErrInUse) {
		t.Errorf("the old node is alive: %v", err)
	}
}
