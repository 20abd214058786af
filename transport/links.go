package transport

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// links keeps the outgoing task and lease streams to each connected peer, and serves those of
// others and their mail.
type links struct {
	cfg     Config
	log     *slog.Logger
	met     *metrics
	group   *taskGroup
	peers   *peerTable
	rates   *rates
	recv    Receiver
	chooser *relayChooser
	update  func(*peerState) // looks for the best path again; called with the mu of peers held
}

// keep keeps a task stream to n open while there is a connection.
func (ls *links) keep(ctx context.Context, n *peerState) {
	for failures := 0; ; {
		ls.peers.mu.Lock()
		c := n.best()
		if c == nil || ctx.Err() != nil {
			n.linking = false
			ls.peers.mu.Unlock()
			return
		}
		ls.peers.mu.Unlock()
		began := ls.cfg.Clock.Mono()
		err := ls.linkOnce(ctx, n, c)
		if errors.Is(err, errMoved) {
			continue
		}
		if ls.cfg.Clock.Mono()-began > ls.cfg.Timing.Ack {
			failures = 0
		}
		failures++
		ls.log.Debug("link closed", "peer", n.peer, "why", err)
		timer := time.NewTimer(linkPause(failures, rand.Float64()))
		select {
		case <-ctx.Done():
		case <-c.gone:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// linkPause returns the delay before a task stream is reopened.
func linkPause(failures int, r float64) time.Duration {
	longest := min(10*time.Second, 100*time.Millisecond<<min(failures-1, 10))
	return time.Duration((0.5 + r/2) * float64(longest))
}

// linkOnce opens the task stream on c and lets the receiver use it until it closes.
func (ls *links) linkOnce(ctx context.Context, n *peerState, c *conn) error {
	s, err := openStream(ctx, c, streamTask, proto.MaxFrame, ls.cfg.Timing)
	if err != nil {
		return err
	}
	l := newLink(c, s, ls.cfg)
	if slices.Contains(c.hello.GetFeatures(), proto.FeatureLease) {
		s, err := openStream(ctx, c, streamLease, proto.MaxFrame, ls.cfg.Timing)
		if err != nil {
			l.stream.Reset()
			return err
		}
		leases := newSender(c, s)
		l.leases = &leases
	}
	l.mail.ended = func(err error) { ls.rates.streamEnded(c.peer, "mail", err) }
	ls.peers.mu.Lock()
	n.link = l
	ls.update(n)
	ls.peers.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel()
		l.run(ctx)
	}()
	err = ls.recv.Linked(ctx, l)
	cancel()
	<-ended
	ls.peers.mu.Lock()
	n.link = nil
	ls.peers.mu.Unlock()
	ls.rates.streamEnded(c.peer, "link", l.err)
	if errors.Is(l.err, errMoved) {
		return l.err
	}
	return cmp.Or(err, l.err)
}
