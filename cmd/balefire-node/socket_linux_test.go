package main

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// For a user who may not look into its folder, the system's socket may exist: a command
// opens it and reports that permission is denied, not that no node is running.
func TestSocketInAClosedFolder(t *testing.T) {
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(closed, "node.sock")
	asStranger(func() {
		if _, err := os.Stat(socket); !os.IsPermission(err) {
			t.Errorf("the folder is not closed: %v", err)
		}
		if !mayExist(socket) {
			t.Error("a socket that may not be looked at is missing")
		}
		if mayExist("/no-such-folder/node.sock") {
			t.Error("a missing socket may exist")
		}
	})
}

// asStranger calls f without the right of root to open every folder: with the user id of
// somebody else, on a thread that ends with f.
func asStranger(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		_ = syscall.Setfsuid(65534) // fails without root, who alone needs it
		f()
	}()
	<-done
}
