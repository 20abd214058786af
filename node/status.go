package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/agent/command"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// Peers lists the known peers by name.
func (n *Node) Peers(ctx context.Context) []wire.Peer {
	status := n.statuses()
	out := []wire.Peer{}
	for _, p := range n.book.List() {
		out = append(out, n.peerView(p, status[p.Peer]))
	}
	return out
}

// Peer returns one peer by name or id.
func (n *Node) Peer(ctx context.Context, ref string) (wire.Peer, error) {
	p, err := n.findPeer(ref)
	if err != nil {
		return wire.Peer{}, err
	}
	return n.peerView(p, n.statuses()[p.Peer]), nil
}

func (n *Node) peerView(p transport.Peer, s transport.PeerStatus) wire.Peer {
	v := wire.Peer{
		Name: p.Label(), ID: p.Peer.String(), State: "OFFLINE", Roles: p.Member.Roles, Addrs: p.Addrs,
		Queued: n.outbox.Waiting(p.Peer), LastSeen: timeOrNil(p.LastSeen), CertUntil: timeOrNil(p.Member.NotAfter), Alias: p.Alias,
	}
	if s.LastSeen.After(p.LastSeen) { // the book records hellos only
		v.LastSeen = timeOrNil(s.LastSeen)
	}
	if m, ok := n.gossip.Member(p.Peer); ok {
		v.Liveness, v.Loss = m.Status.String(), m.Loss
	}
	switch {
	case n.book.Revoked(p.Peer):
		v.State = "REVOKED"
	case p.Blocked:
		v.State = "BLOCKED"
	case s.Connected:
		v.State, v.Path = "CONNECTED", s.Network+" "+s.Path
		v.Direct = s.Direct
		v.Relay = n.peerName(s.Relay)
		if s.RTT > 0 {
			v.RTT = seconds(s.RTT)
		}
	case !p.Member.NotAfter.IsZero() && n.cfg.Clock.Now().After(p.Member.NotAfter):
		v.State = "EXPIRED"
	}
	return v
}

// seconds converts a measured duration for the API, rounded to ten microseconds.
func seconds(d time.Duration) float64 { return d.Round(10 * time.Microsecond).Seconds() }

// Block blocks a peer: its connections are closed, and no new ones are made or accepted.
func (n *Node) Block(ctx context.Context, ref string) error {
	return n.changePeer(ctx, ref, "peer.block", func(p proto.PeerID) error {
		defer n.net.Disconnect(p)
		return n.book.Block(ctx, p)
	})
}

// Unblock unblocks a peer.
func (n *Node) Unblock(ctx context.Context, ref string) error {
	return n.changePeer(ctx, ref, "peer.unblock", func(p proto.PeerID) error { return n.book.Unblock(ctx, p) })
}

// Forget removes a peer from the address book. Its certificate stays valid; to keep the
// peer out, block it.
func (n *Node) Forget(ctx context.Context, ref string) error {
	return n.changePeer(ctx, ref, "peer.forget", func(p proto.PeerID) error {
		if w := n.outbox.Waiting(p); w > 0 {
			return fmt.Errorf("%w: %d tasks wait for it: cancel them first, or block the peer", wire.ErrRefused, w)
		}
		if err := n.book.Forget(ctx, p); err != nil {
			return err
		}
		n.gossip.Forgotten(p)
		return nil
	})
}

func (n *Node) changePeer(ctx context.Context, ref, action string, change func(proto.PeerID) error) error {
	p, err := n.findOtherPeer(ref)
	if err != nil {
		return err
	}
	if err := change(p.Peer); err != nil {
		return err
	}
	return n.audit(ctx, action, p.Peer.String())
}

// Handlers lists the handlers of this node by kind.
func (n *Node) Handlers() []wire.Handler {
	out := n.registered()
	for i, h := range out { // reads the disk, so outside the lock
		if absent := n.unknownAllowed(h.Allow); absent != "" {
			out[i].Warning = strings.TrimPrefix(h.Warning+"; "+absent, "; ")
		}
		if len(h.Exec) > 0 {
			if err := command.Find(h.Exec[0]); err != nil {
				out[i].Problem = err.Error()
			}
		}
	}
	return out
}

// unknownAllowed lists the names and roles of an allow list that no member has now: they
// may be mistyped, or belong to a member that has yet to join.
func (n *Node) unknownAllowed(allow []string) string {
	var unknown []string
	for _, a := range allow {
		what, who, _ := strings.Cut(a, ":")
		switch {
		case what == "peer" && who != n.self.Name && who != n.keys.Peer().String():
			if _, err := n.book.Find(who); err != nil && !errors.Is(err, transport.ErrAmbiguous) {
				unknown = append(unknown, "no member is named "+who)
			}
		case what == "role" && !n.roleIsKnown(who):
			unknown = append(unknown, "no member has the role "+who)
		}
	}
	return strings.Join(unknown, "; ")
}

// roleIsKnown reports whether a role is predefined or assigned to a member.
func (n *Node) roleIsKnown(role string) bool {
	return slices.Contains(identity.MeshRoles(), role) || slices.Contains(n.self.Roles, role) ||
		slices.ContainsFunc(n.book.List(), func(p transport.Peer) bool { return p.Member.HasRole(role) })
}

// registered is Handlers without a check of their programs.
func (n *Node) registered() []wire.Handler {
	n.handlers.Lock()
	defer n.handlers.Unlock()
	kinds := map[string]inbox.KindStatus{}
	for _, k := range n.inbox.Status().Kinds {
		kinds[k.Kind] = k
	}
	out := []wire.Handler{}
	for _, s := range n.inbox.Specs() {
		spec := n.handlers.specs[s.Kind]
		out = append(out, wire.Handler{
			Kind: s.Kind, Type: cmp.Or(spec.Type, wire.TypeCommand), Exec: spec.Exec, Allow: s.Allow, Profile: string(s.Profile),
			Timeout: max(s.Timeout, 0).String(), Concurrency: s.Concurrency, MaxAttempts: s.MaxAttempts, OnCrash: string(s.OnCrash), Warning: command.Warn(spec.Exec, spec.Args, spec.AllowFlags),
			Running: kinds[s.Kind].Running, Waiting: kinds[s.Kind].Waiting,
		})
	}
	return out
}

// Status summarizes the state of this node.
func (n *Node) Status(ctx context.Context) wire.Status {
	home, owner := n.outbox.Stats(), n.inbox.Status()
	s := wire.Status{
		Name: n.self.Name, ID: n.keys.Peer().String(), Mesh: n.mesh.ID.String(), Version: n.cfg.Version, Started: n.started,
		Store: n.StoreStats(), Addrs: n.reachable(), Peers: n.Peers(ctx), Outbox: byName(home.ByState), Inbox: byName(owner.Backlog.ByState),
		Results: n.outbox.Results(), Dead: home.Dead, Slots: owner.Slots, Busy: owner.Used,
	}
	s.Warnings = n.warnings(ctx, &s)
	return s
}

func byName(counts map[proto.TaskState]int) map[string]int {
	out := map[string]int{}
	for state, k := range counts {
		out[state.Name()] = k
	}
	return out
}

// warnings lists what an operator should look at, with hints.
func (n *Node) warnings(ctx context.Context, s *wire.Status) []string {
	w := []string{}
	add := func(format string, a ...any) { w = append(w, fmt.Sprintf(format, a...)) }
	if cause, fix := n.selfRevoked(); cause != "" {
		add("%s", cause)
		add("%s", fix)
	}
	if n.comparing.Load() {
		add("%s", comparingText)
	}
	if n.queues.drained.Load() {
		add("%s", drainedText)
	}
	if s.Store.Failed != "" {
		add("the store has failed and is being reopened: %s", s.Store.Failed)
	}
	if s.Store.Refuses != "" {
		add("%s", s.Store.Refuses)
	}
	for _, h := range n.Handlers() {
		if h.Problem != "" {
			add("handler %s: %s", h.Kind, h.Problem)
		}
	}
	for _, a := range n.queueAlarms(ctx) {
		add("%s (%s)", a.Text, a.Fix)
	}
	for _, l := range n.leaseRisks(ctx) {
		add("%s", riskText(l))
	}
	if c := n.guard.State(); c.Doubted {
		add("%s (%s)", doubtText(c), doubtFix)
	}
	if at := n.queues.log.lastJump(); n.cfg.Clock.Now().Sub(at) < jumpWarnFor {
		add("the clocks jumped, or this node was suspended, at %s: no lease was revoked in that round; check the machine's clock if this happens often", at.Format(time.RFC3339))
	}
	for _, p := range s.Peers {
		if p.State == "OFFLINE" && p.Queued > 0 {
			add("%s", waitingText(p.Queued, p.Name, p.Liveness))
		}
		if p.State == "EXPIRED" {
			add("the certificate of %s has expired: the node must join again", p.Name)
		}
	}
	if list, count := n.outbox.RefusedResults(1); count > 0 {
		r := list[0]
		home, _ := n.peerNameID(r.Home[:])
		add("%s: %s answered %s: %s (balefire-node why %s)", plural(count, "result was refused by its home", "results were refused by their homes"), home, r.Code.Name(), r.Detail, r.ID)
	}
	if n.book.Count() >= transport.MaxPeers {
		add("%s", fullBookText)
	}
	if s.Dead > 0 {
		add("%s (balefire-node dlq ls)", plural(s.Dead, "dead letter", "dead letters"))
	}
	if from := n.book.Self().Member.NotBefore; from.Sub(n.cfg.Clock.Now()) > proto.Skew {
		add("the clock of this machine is behind: it shows %s, but this node became a member on %s; correct it, otherwise new members are refused",
			n.cfg.Clock.Now().UTC().Format(time.RFC3339), from.UTC().Format(time.RFC3339))
	}
	if until := n.book.Self().Member.NotAfter; until.Sub(n.cfg.Clock.Now()) < renewBefore-2*24*time.Hour {
		add("this node's certificate expires on %s: it is renewed once the node connects to one with the role admin", until.Format(time.DateOnly))
	}
	return w
}

// waitingText describes what waits for an unreachable peer, with the same text in all
// places.
func waitingText(n int, name, liveness string) string {
	how := "offline"
	if liveness == gossip.Dead.String() {
		how = "dead"
	}
	return fmt.Sprintf("%s for %s, which is %s (balefire-node peers show %s)", plural(n, "task or result waits", "tasks and results wait"), name, how, name)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// StoreStats returns the current statistics of the store.
func (n *Node) StoreStats() wire.StoreStats {
	st, c := n.storage.Store.Stats(), n.storage.Store.Counters()
	s := wire.StoreStats{
		Engine: st.Engine, Schema: store.Schema, DiskBytes: st.DiskBytes, LiveBytes: st.LiveBytes, Keys: st.Keys,
		BlobBytes: n.storage.Blobs.Usage().Bytes, Full: n.storage.Store.Full(), Commits: c.Groups,
	}
	s.FreeBytes, s.Reserve = n.storage.Store.Space()
	s.Refuses = refusal(n.storage.Store.Refuses())
	if err := n.storage.Store.Err(); err != nil {
		s.Failed = err.Error()
	}
	return s
}

// Compact returns the space of deleted records to the disk now.
func (n *Node) Compact(ctx context.Context) error { return n.storage.Store.Compact(ctx) }

// Snapshot writes a consistent copy of the store to dir, which must not exist. With
// toKey, a public key of [NewSnapshotKey], it writes one file that only the private key
// can open.
func (n *Node) Snapshot(ctx context.Context, dir, toKey string) error {
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("%w: %s already exists: name a folder that does not", wire.ErrRefused, dir)
	}
	if toKey != "" {
		if err := n.storage.SealedSnapshot(ctx, dir, toKey); err != nil {
			return err
		}
		return n.audit(ctx, "store.snapshot", dir+" for "+toKey)
	}
	err := n.storage.Store.Snapshot(dir)
	if e, ok := errors.AsType[*fs.PathError](err); ok && (strings.HasPrefix(e.Path, dir) || strings.HasPrefix(dir, e.Path)) && !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%w: the node cannot write to %s: %w: name a folder whose parent exists and belongs to the node's user", wire.ErrRefused, filepath.Dir(dir), e)
	}
	if err != nil {
		return err
	}
	return n.audit(ctx, "store.snapshot", dir)
}

// Healthy returns the reason why this node should be restarted, or nil if it is running
// and its latest commit succeeded.
func (n *Node) Healthy() error {
	if err := n.storage.Store.Err(); err != nil {
		return err
	}
	if !n.running.Load() {
		return errors.New("the node is not running")
	}
	return nil
}

// Ready returns the reason why this node accepts no new work, or nil.
func (n *Node) Ready() error {
	switch {
	case n.draining.Load():
		return wire.ErrDraining
	case n.storage.Store.Full():
		return fmt.Errorf("%w: %w", wire.ErrFull, n.storage.Store.Refuses())
	}
	return n.Healthy()
}

// Registry returns the node's metrics.
func (n *Node) Registry() *prometheus.Registry { return n.registry }

// Addrs returns the multiaddrs of this node, the best first.
func (n *Node) Addrs() []string { return n.reachable() }

// Name returns this node's name in its mesh.
func (n *Node) Name() string { return n.self.Name }
