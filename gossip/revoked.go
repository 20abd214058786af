package gossip

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// revokedSet holds the revocations that the Directory stores. It is safe for concurrent
// use.
type revokedSet struct {
	mu  sync.Mutex
	set identity.Revocations
}

// loadRevoked reads the revocations that the Directory stores.
func (r *Runner) loadRevoked() {
	keeper, ok := r.dir.(Revoker)
	if !ok {
		return
	}
	for _, s := range keeper.Revocations() {
		if e, err := r.mesh.VerifyRevocation(s); err == nil {
			r.revoked.add(e)
		}
	}
}

// add adds r, and returns the revocations that it makes void.
func (e *revokedSet) add(r identity.Revocation) (void []identity.Revocation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, void = e.set.Add(r)
	return void
}

func (e *revokedSet) root() [32]byte { e.mu.Lock(); defer e.mu.Unlock(); return e.set.Digest() }

func (e *revokedSet) count() int { e.mu.Lock(); defer e.mu.Unlock(); all, _ := e.set.Len(); return all }

func (e *revokedSet) knows(id [32]byte) bool { e.mu.Lock(); defer e.mu.Unlock(); return e.set.Has(id) }

// void reports whether r is void, as far as is known here.
func (e *revokedSet) void(r identity.Revocation) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.set.IsVoid(r)
}

// revokes reports whether m is revoked.
func (e *revokedSet) revokes(m identity.Member) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.set.Revokes(m)
}

// rumors returns the revocations with these ids.
func (e *revokedSet) rumors(ids [][32]byte) (all []*proto.Rumor) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, id := range ids {
		if r, ok := e.set.Get(id); ok && len(all) < proto.MaxRumors {
			all = append(all, &proto.Rumor{Revocation: r.Signed})
		}
	}
	return all
}

// limitAsk returns the ids in the range of a. If they do not fit in a message, it
// shortens a to end with the last one that does; the exchange continues after it.
func (e *revokedSet) limitAsk(a *Ask) [][]byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	ids := e.set.IDs(a.After, a.Until)
	if len(ids) > proto.MaxDigests {
		ids = ids[:proto.MaxDigests]
		a.Until = ids[len(ids)-1]
		for n := len(a.Lines); n > 0 && !a.covers(a.Lines[n-1].Peer); n-- {
			a.Lines = a.Lines[:n-1]
		}
	}
	all := make([][]byte, len(ids))
	for i := range ids {
		all[i] = slices.Clone(ids[i][:])
	}
	return all
}

// diff compares the ids of an asker with those known here in the same range. It returns
// the revocations that the asker is missing, at most one more than a reply holds, and the
// ids unknown here, both in order.
func (e *revokedSet) diff(a *Ask, theirs [][32]byte) (missing []identity.Revocation, unknown [][32]byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	have := make(map[[32]byte]bool, len(theirs))
	for _, id := range theirs {
		if have[id] = true; !e.set.Has(id) {
			unknown = append(unknown, id)
		}
	}
	for _, id := range e.set.IDs(a.After, a.Until) {
		if r, ok := e.set.Get(id); ok && !have[id] && len(missing) <= proto.MaxRumors {
			missing = append(missing, r)
		}
	}
	return missing, unknown
}

// Revoke stores and spreads a revocation.
func (r *Runner) Revoke(ctx context.Context, s *proto.Signed) error {
	e, err := r.mesh.VerifyRevocation(s)
	if err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	if r.revoked.void(e) {
		return fmt.Errorf("revoke: %w: this admin itself was revoked", identity.ErrNotAdmin)
	}
	if err := r.applyRevocation(ctx, e); err != nil {
		return fmt.Errorf("revoke: %w", err)
	}
	if err := r.broadcast(ctx, &proto.Rumors{Rumors: []*proto.Rumor{{Revocation: s}}}); err != nil {
		r.log.Debug("revocation not published: exchanges will spread it", "error", err)
	}
	return nil
}

// receiveRevocation handles a received revocation.
func (r *Runner) receiveRevocation(ctx context.Context, s *proto.Signed) {
	e, err := r.mesh.VerifyRevocation(s)
	if err != nil {
		r.met.refused.Inc()
		return
	}
	if err := r.applyRevocation(ctx, e); err != nil {
		r.log.Warn("revocation not stored: it will be received again", "error", err)
	}
}

// applyRevocation stores e and removes the members that it revokes. A void revocation is
// ignored: its sender will learn why.
func (r *Runner) applyRevocation(ctx context.Context, e identity.Revocation) error {
	keeper, ok := r.dir.(Revoker)
	if !ok {
		return fmt.Errorf("%w: this node stores no revocations", identity.ErrBadRecord)
	}
	if r.revoked.knows(e.ID()) || r.revoked.void(e) {
		return nil
	}
	if err := keeper.Revoke(ctx, e.Signed); err != nil {
		return err
	}
	if void := r.revoked.add(e); len(void) > 0 {
		r.alarm(e.Peer, fmt.Sprintf("an admin was revoked, which voids the %d revocations that it signed: check which members it revoked, and revoke those again that should stay out", len(void)))
	}
	for _, m := range r.Members() {
		if (e.Peer.IsZero() || e.Peer == m.Peer) && !r.verifier.member(m.Peer) {
			r.step(func(now time.Duration) []Action { return r.core.Forgotten(now, m.Peer) })
		}
	}
	return nil
}

// alarm logs and reports something that needs an operator's attention.
func (r *Runner) alarm(p proto.PeerID, cause string) {
	r.log.Warn(cause, "peer", p)
	r.out.event(Event{Kind: Alarm, Peer: p, Cause: cause})
}
