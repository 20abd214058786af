package view

import (
	"context"
	"fmt"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// Status summarizes the state of this node.
func (v *Views) Status(ctx context.Context) wire.Status {
	home, owner := v.Outbox.Stats(), v.Inbox.Status()
	s := wire.Status{
		Name: v.Self.Name, ID: v.Self.Peer.String(), Mesh: v.Mesh.String(), Version: v.Version, Started: v.Started,
		Store: v.StoreStats(), Addrs: v.Local.Addrs(), Peers: v.Peers(ctx), Outbox: byName(home.ByState), Inbox: byName(owner.Backlog.ByState),
		Results: v.Outbox.Results(), Dead: home.Dead, Slots: owner.Slots, Busy: owner.Used,
	}
	s.Warnings = v.warnings(ctx, &s)
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
func (v *Views) warnings(ctx context.Context, s *wire.Status) []string {
	w := []string{}
	add := func(format string, a ...any) { w = append(w, fmt.Sprintf(format, a...)) }
	if cause, fix := v.SelfRevoked(); cause != "" {
		add("%s", cause)
		add("%s", fix)
	}
	if v.Local.Comparing() {
		add("%s", comparingText)
	}
	if v.Local.Drained() {
		add("%s", DrainedText)
	}
	if s.Store.Failed != "" {
		add("the store has failed and is being reopened: %s", s.Store.Failed)
	}
	if s.Store.Refuses != "" {
		add("%s", s.Store.Refuses)
	}
	for _, h := range v.Local.Handlers() {
		if h.Problem != "" {
			add("handler %s: %s", h.Kind, h.Problem)
		}
	}
	for _, a := range v.Queues.Alarms(ctx) {
		add("%s (%s)", a.Text, a.Fix)
	}
	for _, l := range v.Queues.LeaseRisks(ctx) {
		add("%s", riskText(l))
	}
	if c := v.Guard.State(); c.Doubted {
		add("%s (%s)", DoubtText(c), doubtFix)
	}
	if at := v.Queues.LastJump(); v.Clock.Now().Sub(at) < time.Hour {
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
	if list, count := v.Outbox.RefusedResults(1); count > 0 {
		r := list[0]
		home, _ := v.Book.Identify(r.Home[:])
		add("%s: %s answered %s: %s (balefire-node why %s)", plural(count, "result was refused by its home", "results were refused by their homes"), home, r.Code.Name(), r.Detail, r.ID)
	}
	if v.Book.Count() >= addressbook.MaxPeers {
		add("%s", fullBookText)
	}
	if s.Dead > 0 {
		add("%s (balefire-node dlq ls)", plural(s.Dead, "dead letter", "dead letters"))
	}
	if from := v.Book.Self().Member.NotBefore; from.Sub(v.Clock.Now()) > proto.Skew {
		add("the clock of this machine is behind: it shows %s, but this node became a member on %s; correct it, otherwise new members are refused",
			v.Clock.Now().UTC().Format(time.RFC3339), from.UTC().Format(time.RFC3339))
	}
	if until := v.Book.Self().Member.NotAfter; until.Sub(v.Clock.Now()) < 28*24*time.Hour {
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
func (v *Views) StoreStats() wire.StoreStats {
	st, c := v.Store.Stats(), v.Store.Counters()
	s := wire.StoreStats{
		Engine: st.Engine, Schema: store.Schema, DiskBytes: st.DiskBytes, LiveBytes: st.LiveBytes, Keys: st.Keys,
		BlobBytes: v.Local.BlobBytes(), Full: v.Store.Full(), Commits: c.Groups,
	}
	s.FreeBytes, s.Reserve = v.Store.Space()
	s.Refuses = refusal(v.Store.Refuses())
	if err := v.Store.Err(); err != nil {
		s.Failed = err.Error()
	}
	return s
}
