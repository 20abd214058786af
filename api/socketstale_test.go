package api

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
)

// A socket that is answered for a moment longer, as that of a node which was just
// killed, is awaited; one that continues to answer is not replaced.
func TestListenAwaitsADyingNode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	looked := make(chan error, 1)
	go func() {
		c, err := old.Accept() // the first look
		if err == nil {
			err = errors.Join(c.Close(), old.Close())
		}
		looked <- err
	}()
	l, err := Listen(path)
	if err != nil {
		t.Fatalf("it has died: %v", err)
	}
	defer l.Close()
	if err := <-looked; err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); !errors.Is(err, ErrInUse) {
		t.Errorf("it lives: %v", err)
	}
}
