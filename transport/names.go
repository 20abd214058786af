package transport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	ma "github.com/multiformats/go-multiaddr"
)

// A name server has nameTime at first, and after each time that it was too slow twice as long, up to
// maxNameTime: it may be the second one that the system asks. For nameAgain a name that could not be
// resolved is not asked for again, and for nameMemory its failures count.
const (
	nameTime    = time.Second
	maxNameTime = 8 * time.Second
	nameAgain   = 5 * time.Second
	nameMemory  = 5 * time.Minute
)

// A nameResolver resolves the names in addresses. libp2p resolves all names of a peer, one after the
// other, before it dials any of its addresses, for as long as the system takes, and only logs what
// fails. So a name has little time, counts once for all its ports, and its error is kept.
type nameResolver struct {
	network.MultiaddrDNSResolver
	mu     sync.Mutex
	failed map[string]nameFailure
}

// A nameFailure is why a name could not be resolved.
type nameFailure struct {
	at   time.Time
	why  string
	slow int // how often in a row the name server was too slow
}

func newNameResolver(by network.MultiaddrDNSResolver) *nameResolver {
	return &nameResolver{MultiaddrDNSResolver: by, failed: make(map[string]nameFailure)}
}

// ResolveDNSComponent resolves the name that a begins with.
func (r *nameResolver) ResolveDNSComponent(ctx context.Context, a ma.Multiaddr, limit int) ([]ma.Multiaddr, error) {
	if why := r.failure(a); why != "" {
		return nil, errors.New(why)
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeFor(a))
	defer cancel()
	found, err := r.MultiaddrDNSResolver.ResolveDNSComponent(ctx, a, limit)
	switch {
	case err == nil:
		r.mu.Lock()
		delete(r.failed, a[0].String())
		r.mu.Unlock()
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		r.fail(a, "the name server does not answer in time", 1)
	case ctx.Err() == nil:
		r.fail(a, "the name cannot be resolved", 0)
	}
	return found, err
}

// timeFor returns how long the name that a begins with may take.
func (r *nameResolver) timeFor(a ma.Multiaddr) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return min(nameTime<<r.failed[a[0].String()].slow, maxNameTime)
}

func (r *nameResolver) fail(a ma.Multiaddr, why string, slow int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, f := range r.failed {
		if time.Since(f.at) >= nameMemory {
			delete(r.failed, name)
		}
	}
	name := a[0].String()
	r.failed[name] = nameFailure{time.Now(), why, min(r.failed[name].slow+slow, 8)}
}

// forget lets each name be asked for again at once: this machine's network has changed.
func (r *nameResolver) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.failed)
}

// failure returns why the name that a begins with could not be resolved lately, or "".
func (r *nameResolver) failure(a ma.Multiaddr) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f, ok := r.failed[a[0].String()]; ok && time.Since(f.at) < nameAgain {
		return f.why
	}
	return ""
}

// explain adds to the error of a dial which of the addresses have such a name.
func (r *nameResolver) explain(err error, addrs []ma.Multiaddr) error {
	if err == nil {
		return nil
	}
	all := []error{err}
	for _, a := range addrs {
		if why := r.failure(a); why != "" {
			all = append(all, fmt.Errorf("%s: %s", a, why))
		}
	}
	if len(all) == 1 {
		return err
	}
	return joinDialErrors(all[:min(len(all), maxDialCauses)])
}
