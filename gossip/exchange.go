package gossip

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

const (
	// maxSteps limits an exchange that does not terminate: enough for 4096 nodes and 10
	// 000 revocations that are all new.
	maxSteps = 512
	// stepTime limits one step, exchangeTime an entire background exchange: what it
	// transferred remains, and the next one gets further.
	stepTime     = 15 * time.Second
	exchangeTime = 5 * time.Minute
	// maxExchanges is how many exchanges run concurrently, each with another node, so
	// that an endless one does not block the others.
	maxExchanges = 4
)

var errSync = errors.New("gossip: not a reply to a sync")

// exchangeLoop runs the exchanges that the core requests.
func (r *Runner) exchangeLoop(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case p := <-r.syncs:
			if err := r.exchangeOnce(ctx, p); err != nil && ctx.Err() == nil {
				r.met.syncs.WithLabelValues("failed").Inc()
				r.log.Debug("exchange failed", "peer", p, "error", err)
			}
		}
	}
}

// exchangeOnce runs one exchange with p and then allows the next one.
func (r *Runner) exchangeOnce(ctx context.Context, p proto.PeerID) error {
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.syncing, p)
	}()
	return r.Compare(ctx, p)
}

// Compare runs an exchange with p now. On success this node knows what p knows, including
// revocations.
func (r *Runner) Compare(ctx context.Context, p proto.PeerID) error {
	ctx, cancel := context.WithTimeout(ctx, exchangeTime)
	defer cancel()
	_, err := r.exchange(ctx, p)
	return err
}

// exchange synchronizes with p step by step, and reports whether both know the same at
// the end.
func (r *Runner) exchange(ctx context.Context, p proto.PeerID) (bool, error) {
	r.mu.Lock()
	ask := r.core.Ask(proto.PeerID{}, nil)
	r.mu.Unlock()
	var revoked []*proto.Rumor
	for range maxSteps {
		ans, wanted, theirs, err := r.exchangeStep(ctx, p, ask, revoked)
		if err != nil {
			return false, err
		}
		var next *Ask
		r.step(func(now time.Duration) (actions []Action) {
			next, actions = r.core.Answered(now, p, ask, ans)
			return actions
		})
		if revoked = r.revoked.rumors(wanted); next == nil && len(revoked) > 0 {
			next = &Ask{After: maxPeerID}
		}
		if next == nil {
			r.met.syncs.WithLabelValues("complete").Inc()
			return r.sameRoot(theirs), nil
		}
		ask = next
	}
	return false, fmt.Errorf("exchange with %s: not finished after %d steps", p.Short(), maxSteps)
}

// exchangeStep sends one ask and reads its answer.
func (r *Runner) exchangeStep(ctx context.Context, p proto.PeerID, ask *Ask, revoked []*proto.Rumor) (ans *Answer, wanted [][32]byte, root []byte, err error) {
	payload, err := proto.Encode(nil, r.request(ask, revoked))
	if err != nil {
		return nil, nil, nil, fmt.Errorf("exchange with %s: %w", p.Short(), err)
	}
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	m, err := r.net.Exchange(ctx, p, &proto.Message{Type: proto.TypeSync, Payload: payload})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("exchange with %s: %w", p.Short(), err)
	}
	var reply proto.SyncReply
	if m.GetType() != proto.TypeSynced || len(m.GetPayload()) > proto.MaxControl {
		return nil, nil, nil, fmt.Errorf("exchange with %s: %w", p.Short(), errSync)
	}
	if err := proto.DecodeKnown(m.GetPayload(), &reply); err != nil {
		return nil, nil, nil, fmt.Errorf("exchange with %s: %w", p.Short(), err)
	}
	ans = &Answer{More: reply.GetMore()}
	ans.Updates, _ = r.verifyRumors(ctx, reply.GetRumors())
	for _, rumor := range reply.GetRumors() {
		if s := rumor.GetRevocation(); s != nil {
			ans.LastRevocation = maxPeer(ans.LastRevocation, identity.RevocationID(s))
		}
	}
	for _, w := range reply.GetWanted() {
		id, err := proto.PeerIDFrom(w)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("exchange with %s: %w: %w", p.Short(), errSync, err)
		}
		if r.revoked.knows(id) {
			wanted, ans.LastRevocation = append(wanted, id), maxPeer(ans.LastRevocation, id)
		} else {
			ans.Wanted = append(ans.Wanted, id)
		}
	}
	return ans, wanted, reply.GetRoot(), nil
}

func maxPeer(a, b proto.PeerID) proto.PeerID {
	if b.Compare(a) > 0 {
		return b
	}
	return a
}

// sameRoot reports whether this node knows the same as one with this root.
func (r *Runner) sameRoot(theirs []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	root := r.root()
	equal := bytes.Equal(theirs, root[:])
	r.rootCompared(r.now(), equal)
	return equal
}

// request encodes an ask, as far as it fits.
func (r *Runner) request(ask *Ask, revoked []*proto.Rumor) *proto.SyncRequest {
	m := &proto.SyncRequest{Rumors: revoked, Revocations: r.revoked.limitAsk(ask)}
	if !ask.After.IsZero() {
		m.After = ask.After[:]
	}
	if !ask.Until.IsZero() {
		m.Until = ask.Until[:]
	}
	for i := range ask.Lines {
		l := &ask.Lines[i]
		m.Digests = append(m.Digests, &proto.Digest{Peer: l.Peer[:], Incarnation: l.Incarnation, Revision: l.Revision, Liveness: l.Liveness})
	}
	size := proto.Size(m)
	for _, n := range ask.Updates {
		rumor := r.withIntroduction(n)
		if size += proto.Size(rumor) + 8; size > maxTopic || len(m.Rumors) >= proto.MaxRumors {
			break // it is requested again next time
		}
		m.Rumors = append(m.Rumors, rumor)
	}
	return m
}

// Sync answers a SYNC from a member with a SYNCED.
func (r *Runner) Sync(ctx context.Context, from proto.PeerID, m *proto.Message) (*proto.Message, error) {
	if !r.verifier.member(from) {
		r.met.strangers.Inc()
		return nil, fmt.Errorf("sync from %s: %w", from.Short(), errStranger)
	}
	var q proto.SyncRequest
	if m.GetType() != proto.TypeSync || len(m.GetPayload()) > proto.MaxControl {
		return nil, fmt.Errorf("sync from %s: %w", from.Short(), errMalformed)
	}
	if err := proto.DecodeKnown(m.GetPayload(), &q); err != nil {
		return nil, fmt.Errorf("sync from %s: %w", from.Short(), err)
	}
	ask, err := askOf(&q)
	if err != nil {
		return nil, fmt.Errorf("sync from %s: %w", from.Short(), err)
	}
	ended := make([][32]byte, 0, len(q.GetRevocations()))
	for _, b := range q.GetRevocations() {
		if len(b) != 32 {
			return nil, fmt.Errorf("sync from %s: %w: revocation id of %d bytes", from.Short(), errMalformed, len(b))
		}
		ended = append(ended, [32]byte(b))
	}
	ask.Updates, _ = r.verifyRumors(ctx, q.GetRumors())
	var ans *Answer
	var root [32]byte
	r.step(func(now time.Duration) (actions []Action) {
		ans, actions = r.core.Answer(now, from, ask)
		root = r.root()
		return actions
	})
	payload, err := proto.Encode(nil, r.reply(ask, ans, ended, root))
	if err != nil {
		return nil, fmt.Errorf("sync from %s: %w", from.Short(), err)
	}
	return &proto.Message{Type: proto.TypeSynced, Payload: payload}, nil
}

// askOf decodes a request, except for its rumors.
func askOf(q *proto.SyncRequest) (*Ask, error) {
	ask := &Ask{}
	for _, e := range []struct {
		from []byte
		to   *proto.PeerID
	}{{q.GetAfter(), &ask.After}, {q.GetUntil(), &ask.Until}} {
		if len(e.from) == 0 {
			continue
		}
		p, err := proto.PeerIDFrom(e.from)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errMalformed, err)
		}
		*e.to = p
	}
	before := ask.After
	for _, d := range q.GetDigests() {
		p, err := proto.PeerIDFrom(d.GetPeer())
		if err != nil || p.Compare(before) <= 0 || !ask.covers(p) {
			return nil, fmt.Errorf("%w: digests out of order", errMalformed)
		}
		if d.GetIncarnation() == 0 {
			return nil, fmt.Errorf("%w: a digest without an incarnation", errMalformed)
		}
		before = p
		ask.Lines = append(ask.Lines, Line{p, d.GetIncarnation(), d.GetRevision(), d.GetLiveness()})
	}
	return ask, nil
}

// rootCompared measures the time from a difference to equality. r.mu is held.
func (r *Runner) rootCompared(now time.Duration, same bool) {
	switch {
	case !same && r.differsSince == 0:
		r.differsSince = now
	case same && r.differsSince > 0:
		r.met.converged.Observe((now - r.differsSince).Seconds())
		r.differsSince = 0
	}
}

// root returns the hash of all that this node knows, including revocations. r.mu is held.
func (r *Runner) root() [32]byte {
	root := r.core.Root()
	ended := r.revoked.root()
	if ended == ([32]byte{}) {
		return root
	}
	return sha256.Sum256(append(root[:], ended[:]...))
}

// An Agreement is the result of an exchange with one node.
type Agreement struct {
	Peer proto.PeerID
	Same bool // both nodes know the same now
	Err  error
}

// Converge exchanges with every node that is not dead or gone, now, and returns the
// results. Of the nodes that were never heard from it tries only the connected ones.
func (r *Runner) Converge(ctx context.Context) []Agreement {
	var all []Agreement
	var mu sync.Mutex
	var g errgroup.Group
	g.SetLimit(4)
	for _, m := range r.Members() {
		if m.Status == Dead || m.Status == Left || m.Status == Unknown && !m.Connected {
			continue
		}
		g.Go(func() error {
			a := Agreement{Peer: m.Peer}
			for i := 0; i < 3 && a.Err == nil && !a.Same; i++ {
				a.Same, a.Err = r.exchange(ctx, m.Peer)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, a)
			return nil
		})
	}
	_ = g.Wait() // the functions return no error
	return all
}
