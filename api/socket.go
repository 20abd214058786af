package api

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// SocketMode is the mode of the socket: its owner and group may open it.
const SocketMode = 0o660

// maxSocketPath is what every system takes (macOS: 104 with the final zero).
const maxSocketPath = 103

// ErrInUse means that a node answers on the socket.
var ErrInUse = errors.New("socket in use")

// Listen opens the unix socket at path. A socket that a dead node left behind is
// replaced; one that is answered is not.
func Listen(path string) (net.Listener, error) {
	if len(path)+len("/.new-1234567890/s") > maxSocketPath {
		return nil, fmt.Errorf("listen on %s: the path is too long for a unix socket: choose a shorter one with --socket", path)
	}
	if err := removeStale(path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l, err := bind(path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return l, nil
}

// dying is how long a socket that is answered is looked at again: that of a node which
// was just killed may take callers for a moment longer, whom nobody hears.
const (
	staleTimeout  = 3 * time.Second
	staleInterval = 20 * time.Millisecond
)

// removeStale makes sure that nobody lives at path.
func removeStale(path string) error {
	for began := time.Now(); ; time.Sleep(staleInterval) {
		if err := checkStale(path); !errors.Is(err, ErrInUse) || time.Since(began) >= staleTimeout {
			return err
		}
	}
}

// checkStale reports whether nobody lives at path now.
func checkStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return os.MkdirAll(filepath.Dir(path), 0o750)
	case err != nil:
		return err
	case info.Mode().Type() != os.ModeSocket && runtime.GOOS != "windows":
		return errors.New("there is a file that is not a socket: remove it, or choose another path with --socket")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		return errors.Join(fmt.Errorf("%w: a node answers there: stop it first, or choose another path with --socket", ErrInUse), conn.Close())
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), runtime.GOOS == "windows":
		return nil // nobody is there; bind puts the new one in its place
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("it belongs to somebody else: %w", err)
	}
	return fmt.Errorf("%w: it is not answered, nor is it deserted: %w", ErrInUse, err)
}

// bind makes the socket in a folder of its own and moves it to path: there is no
// moment in which it stands there with another mode.
func bind(path string) (net.Listener, error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	fresh := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	s := &socket{UnixListener: l, path: path}
	if err = os.Chmod(fresh, SocketMode); err == nil {
		err = os.Rename(fresh, path)
	}
	if err == nil {
		s.file, err = os.Lstat(path)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

// A socket is a listener that was moved after it was made.
type socket struct {
	*net.UnixListener
	path string
	file os.FileInfo
}

// Addr returns where the socket is now.
func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// Close removes the socket, unless another node has put its own there.
func (s *socket) Close() error {
	err := s.UnixListener.Close()
	if now, statErr := os.Lstat(s.path); statErr == nil && os.SameFile(now, s.file) {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}
