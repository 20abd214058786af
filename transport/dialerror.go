package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"

	"github.com/libp2p/go-libp2p/p2p/net/swarm"
)

// A dialError explains in one line why all addresses of a peer failed.
type dialError struct {
	text string
	err  error
}

func (e *dialError) Error() string { return e.text }

// ErrUnreached matches the error returned when no address of a peer answered.
var ErrUnreached = errors.New("transport: not reached")

// Is reports whether target is ErrUnreached.
func (e *dialError) Is(target error) bool { return target == ErrUnreached }

// Unwrap returns libp2p's error.
func (e *dialError) Unwrap() error { return e.err }

// maxDialCauses bounds the addresses that a dialError lists.
const maxDialCauses = 4

// describeDialError turns libp2p's tree of failed dials into one line; other errors are
// returned unchanged.
func describeDialError(err error) error {
	d, ok := errors.AsType[*swarm.DialError](err)
	switch {
	case !ok && errors.Is(err, context.DeadlineExceeded):
		return &dialError{"no answer in time", err}
	case !ok:
		return err
	}
	var causes []string
	for _, e := range d.DialErrors {
		causes = append(causes, fmt.Sprintf("%s: %s", e.Address, dialCause(e.Cause)))
	}
	left := len(causes) - maxDialCauses + d.Skipped
	causes = causes[:min(len(causes), maxDialCauses)]
	switch {
	case len(causes) == 0 && d.Cause != nil:
		return &dialError{"no dial was possible: " + dialCause(d.Cause), err}
	case len(causes) == 0:
		return &dialError{"no dialable address is known", err}
	case left > 0:
		causes = append(causes, fmt.Sprintf("and %d more", left))
	}
	return &dialError{"no address answers: " + strings.Join(causes, "; "), err}
}

// describeListenError explains in one line why no address can be listened on.
func describeListenError(addrs []string, err error) error {
	text := err.Error()
	switch {
	case strings.Contains(text, "cannot assign requested address"):
		text = "this machine does not have the address: set net.listen to one that it has, or to 0.0.0.0 for all"
	case strings.Contains(text, "address already in use"):
		text = "another program is using the port: stop it, or set net.listen to another one"
	case strings.Contains(text, "permission denied"):
		text = "this user may not use the port: choose one above 1023"
	default:
		return fmt.Errorf("listen on %s: %w", strings.Join(addrs, ", "), err)
	}
	return fmt.Errorf("listen on %s: %s", strings.Join(addrs, ", "), text)
}

// dialCause describes the cause of one failed dial.
func dialCause(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there"
	case errors.Is(err, syscall.ECONNRESET):
		return "the connection was reset"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "no route"
	case errors.Is(err, swarm.ErrGaterDisallowedConnection):
		return "rejected by this node"
	case errors.Is(err, swarm.ErrDialToSelf):
		return "this node itself has that address"
	case errors.Is(err, swarm.ErrNoTransport):
		return "unsupported protocol"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout(), strings.Contains(err.Error(), "no recent network activity"):
		return "no answer in time"
	case errors.Is(err, context.Canceled):
		return "given up"
	case strings.Contains(err.Error(), "peer id mismatch"):
		return "another node answers there"
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	return text[max(0, len(text)-120):]
}
