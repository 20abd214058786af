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

// nameTime is how long a name server may take, and nameAgain for how long a name that could not be
// resolved is not asked for again.
const (
	nameTime  = time.Second
	nameAgain = 5 * time.Second
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
	at  time.Time
	why string
}

func newNameResolver(by network.MultiaddrDNSResolver) *nameResolver {
	return &nameResolver{MultiaddrDNSResolver: by, failed: make(map[string]nameFailure)}
}

// ResolveDNSComponent resolves the name that a begins with.
func (r *nameResolver) ResolveDNSComponent(ctx context.Context, a ma.Multiaddr, limit int) ([]ma.Multiaddr, error) {
	if why := r.failure(a); why != "" {
		return nil, errors.New(why)
	}
	ctx, cancel := context.WithTimeout(ctx, nameTime)
	defer cancel()
	found, err := r.MultiaddrDNSResolver.ResolveDNSComponent(ctx, a, limit)
	switch {
	case err == nil:
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		r.fail(a, "the name server does not answer in time")
	case ctx.Err() == nil:
		r.fail(a, "the name cannot be resolved")
	}
	return found, err
}

func (r *nameResolver) fail(a ma.Multiaddr, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, f := range r.failed {
		if time.Since(f.at) >= nameAgain {
			delete(r.failed, name)
		}
	}
	r.failed[a[0].String()] = nameFailure{time.Now(), why}
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
