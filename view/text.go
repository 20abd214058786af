package view

import (
	"errors"
	"fmt"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/gossip"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/wire"
)

// riskText describes the risk to a person, and what happens next.
func riskText(r wire.LeaseRisk) string {
	text := fmt.Sprintf("%s, which is %s, has %s of queues whose home is here", r.Owner, r.State, plural(r.Tasks, "task", "tasks"))
	if r.State == gossip.Suspect.String() {
		text += ": others get them once it is DEAD or their leases are over"
	} else {
		text += ": they are being granted to others"
	}
	if r.Once > 0 {
		text += fmt.Sprintf("; %s only once and may end INDETERMINATE", plural(r.Once, "may be started", "may each be started"))
	}
	return text + " (balefire-node lease ls --role home; balefire-node mesh recover)"
}

// DoubtText explains why the clock is doubted and what ends the doubt.
func DoubtText(s clock.State) string {
	off, way := s.Off.Round(time.Second), "ahead of"
	if off < 0 {
		off, way = -off, "behind"
	}
	text := fmt.Sprintf("the clock of this machine is doubted: it is %s %s the time expected from the uptime of the machine", off, way)
	if s.Stopped {
		text = fmt.Sprintf("the clock of this machine is doubted: it is %s %s its time when this node stopped", off, way)
	}
	if s.Denied {
		text += ", and a connected peer disagrees"
	}
	return fmt.Sprintf("%s; until a connected peer agrees with it, or for %s, nothing expires and nothing old is deleted", text, s.Left.Round(time.Second))
}

const doubtFix = "check the clock of this machine (date) and its time synchronization; nothing else is needed"

// refusal explains to a person why new work is refused; it is empty if it is not.
func refusal(why error) string {
	switch {
	case why == nil:
		return ""
	case errors.Is(why, store.ErrNoMemory):
		return "new work is refused: the store uses all the memory it may; let tasks end, give the node more (limits.memory_limit, or the limit of its container), or convert its store: balefire-node store migrate --to pebble"
	}
	return "new work is refused: the disk is below its reserve; free some space (balefire-node store stats shows how much); results, ends and deletes still work"
}

// fullBookText is the warning for an operator.
var fullBookText = fmt.Sprintf("%d peers are known, which is the limit: new ones are refused until some are forgotten (balefire-node peers forget); if you did not admit that many, revoke the admin who did", addressbook.MaxPeers)

const comparingText = "this node was restored from a snapshot: it admits only admins until it has compared revocations with one, or has met none for 5 minutes"
