package client

import (
	"errors"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/balefire/balefire/wire"
)

// A user who may not open the socket of a node learns what to do, and not that no node is
// running.
func TestDeniedSocket(t *testing.T) {
	err := New("/run/balefire/node.sock").dialError(t.Context(), &url.Error{Op: "Get", URL: "http://node/v1/status",
		Err: &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)}})
	if !errors.Is(err, wire.ErrDenied) || errors.Is(err, ErrNodeDown) || !strings.Contains(err.Error(), "permission denied for /run/balefire/node.sock: join its group") {
		t.Errorf("the error is %v", err)
	}
}
