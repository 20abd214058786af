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

// maxSocketPath is the longest path that every system accepts (macOS: 104 with the final
// zero).
const maxSocketPath = 103

// ErrInUse means that a node answers on the socket.
var ErrInUse = errors.New("socket in use")

// Listen opens the unix socket at path. A stale socket of a dead node is replaced; one with
// a running node is not.
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

// staleTimeout is how long Listen retries a socket that accepts connections: after a node
// is killed, its socket may do so for a moment.
const (
	staleTimeout  = 3 * time.Second
	staleInterval = 20 * time.Millisecond
)

// removeStale makes sure that no process listens at path.
func removeStale(path string) error {
	for began := time.Now(); ; time.Sleep(staleInterval) {
		if err := checkStale(path); !errors.Is(err, ErrInUse) || time.Since(began) >= staleTimeout {
			return err
		}
	}
}

// checkStale reports whether no process listens at path now.
func checkStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return os.MkdirAll(filepath.Dir(path), 0o750)
	case err != nil:
		return err
	case info.Mode().Type() != os.ModeSocket && runtime.GOOS != "windows":
		return errors.New("it is a file but not a socket: remove it, or use another path with --socket")
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		return errors.Join(fmt.Errorf("%w: a node is running there: stop it first, or use another path with --socket", ErrInUse), conn.Close())
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), runtime.GOOS == "windows":
		return nil // the socket is stale; bind replaces it
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("it belongs to another user: %w", err)
	}
	return fmt.Errorf("%w: it is neither in use nor stale: %w", ErrInUse, err)
}

// bind creates the socket in its own folder and moves it to path, so that it never exists
// at path with another mode.
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

// A socket is a listener whose file was moved after it was created.
type socket struct {
	*net.UnixListener
	path string
	file os.FileInfo
}

// Addr returns the current path of the socket.
func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: s.path, Net: "unix"} }

// Close removes the socket, unless another node has replaced it.
func (s *socket) Close() error {
	err := s.UnixListener.Close()
	if now, statErr := os.Lstat(s.path); statErr == nil && os.SameFile(now, s.file) {
		err = errors.Join(err, os.Remove(s.path))
	}
	return err
}
