package mailbox

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/wire"
)

// A ledgerOpener has the broker of this node's ledger. A node that never had a box has none: it
// is made with the first one, or the first mail for another node.
type ledgerOpener struct {
	openLog func() (mail.Ledger, error)             // opens the ledger, or makes it
	load    func(mail.Ledger) (*mail.Broker, error) // makes the broker from what it has

	mu    sync.Mutex  // held while the ledger is opened and loaded
	log   mail.Ledger // once it was opened, which is done once; under mu
	ended bool        // Run has returned: it is not opened any more; under mu
	now   atomic.Pointer[mail.Broker]
	ready chan struct{} // closed when there is a broker
}

// broker returns the broker; nil: there is none yet.
func (l *ledgerOpener) broker() *mail.Broker { return l.now.Load() }

// open opens the ledger, or makes it, if that was not done before. One that could not be loaded
// stays open, and is loaded again by the next call.
func (l *ledgerOpener) open() (*mail.Broker, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k := l.broker(); k != nil {
		return k, nil
	}
	if l.ended {
		return nil, wire.ErrDraining
	}
	if l.log == nil {
		log, err := l.openLog()
		if err != nil {
			return nil, err
		}
		l.log = log
	}
	k, err := l.load(l.log)
	if err != nil {
		return nil, err
	}
	l.now.Store(k)
	close(l.ready)
	return k, nil
}

// wait waits for the broker, if there is none yet. The error is that of ctx.
func (l *ledgerOpener) wait(ctx context.Context) (*mail.Broker, error) {
	if k := l.broker(); k != nil {
		return k, nil
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.ready:
		return l.broker(), nil
	}
}

// await waits for the broker as long as the node runs. Without one then, there will be none: nil.
func (l *ledgerOpener) await(ctx context.Context) *mail.Broker {
	_, _ = l.wait(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.broker()
	l.ended = k == nil
	return k
}

// viewBox calls f with the id of a box of a ledger. The error is [box.ErrNotFound] if it is not
// there.
func viewBox(ctx context.Context, k *mail.Broker, name string, f func(s *box.State, id box.BoxID)) error {
	found := false
	err := k.View(ctx, func(s *box.State) {
		id, ok := s.Find(name)
		if found = ok; ok {
			f(s, id)
		}
	})
	if err == nil && !found {
		err = box.ErrNotFound
	}
	return err
}
