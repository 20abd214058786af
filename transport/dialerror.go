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
		if isCircuit(e.Address) && errors.Is(e.Cause, swarm.ErrGaterDisallowedConnection) {
			continue // it leads through this node, or was not chosen: it was not dialed
		}
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

// joinDialErrors returns the errors of dials that ran in parallel, in one line.
func joinDialErrors(errs []error) error {
	var texts []string
	for _, err := range errs {
		texts = append(texts, err.Error())
	}
	return &dialError{strings.Join(texts, "; "), errors.Join(errs...)}
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
	}
	for _, c := range libp2pCauses {
		if strings.Contains(err.Error(), c.text) {
			return c.means
		}
	}
	return "the connection failed; the log at level debug says how"
}

// libp2pCauses explains errors that have no type, or that a peer or a relay sent. The first
// that matches counts.
var libp2pCauses = []struct{ text, means string }{
	{"peer id mismatch", "another node answers there"},
	{"NO_RESERVATION", "it has no place at the relay"},
	{"CONNECTION_FAILED", "the relay does not reach it"},
	{"RESOURCE_LIMIT_EXCEEDED", "the relay has no room"},
	{"PERMISSION_DENIED", "the relay refused"},
	{"opening hop stream to relay", "the relay does not answer"},
	{"opening relay circuit", "the relay did not connect it"},
	{"resource limit", "this node has too many connections"},
	{"no good addresses", "no usable address is known"},
	{"no addresses", "no usable address is known"},
	{"black hole", "this network lets nothing of that kind through"},
	{"negotiate security protocol", "the encrypted handshake failed"},
	{"handshake", "the encrypted handshake failed"},
	{"CRYPTO_ERROR", "the encrypted handshake failed"},
	{"stream reset", "the connection was closed"},
	{"Application error", "the connection was closed"},
	{"connection closed", "the connection was closed"},
	{"EOF", "the connection was closed"},
}

// describeHelloError returns err, which ended a connection before or in the hello, in one
// line and without libp2p's words.
func describeHelloError(err error) error {
	_, refused := errors.AsType[*RefusedError](err)
	_, described := errors.AsType[*dialError](err)
	if refused || described || errors.Is(err, ErrProtocol) || errors.Is(err, errNoMember) || errors.Is(err, errNoHello) {
		return err
	}
	return &dialError{"no hello was received: " + dialCause(err), err}
}
