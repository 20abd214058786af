package prose

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/balefire/balefire/wire"
)

// events has the sentences of each kind of event, with placeholders for its peer and its
// fields. The first one of which all are there is used.
var events = map[string][]string{
	wire.EventPeerConnected:    {"connected: {path}"},
	wire.EventPeerDisconnected: {"disconnected: {path}"},
	wire.EventPathChanged:      {"{detail} → {path}"},
	wire.EventPunched:          {"a direct path is open: {detail}"},
	wire.EventNotPunched:       {"no direct path: {detail}"},
	wire.EventRelayReserved:    {"it accepts connections for this node: {path}"},
	wire.EventRelayLost:        {"it accepts none for this node any more: {detail}"},
	wire.EventBodyBegan:        {"the {what} of task {task} is being transferred ({direction}): {bytes} of {size}"},
	wire.EventBodyMoves:        {"the {what} of task {task} is being transferred ({direction}): {bytes} of {size}"},
	wire.EventBodyEnded:        {"the transfer of the {what} of task {task} ended ({direction}): {bytes} of {size}"},
	wire.EventMemberChanged:    {"{detail}", "{from} → {to}, according to {by}", "{from} → {to}"},
	wire.EventMemberEligible:   {"it may get new work again"},
	wire.EventMemberSuppressed: {"it failed again while it recovered: it gets new work later"},
	wire.EventMemberDescribed:  {"what it says of itself changed"},
	wire.EventMemberPruned:     {"it was gone for long and is forgotten"},
	wire.EventMemberRefuted:    {"this node refuted {by}, which said that it is dead", "this node refuted that it is dead"},
	wire.EventMemberIsolated:   {"this node is {to}"},
	wire.EventMemberAlarm:      {"{detail}"},
	wire.EventBookFull:         {"{count} peers are known, which is the limit: new ones are refused until some are forgotten (balefire-node peers forget); if you did not admit that many, revoke the admin who did"},
	wire.EventHomeGone:         {"the home of {queues} is {state}: none of their tasks is granted until it is back"},
	wire.EventHomeBack:         {"the home of {queues} is back"},
	wire.EventHandedOver:       {"queue {queue}: {peer} is its home now"},
	wire.EventHandoffRefused:   {"task {task} of queue {queue} is refused by its new home: {code}: {detail}", "task {task} of queue {queue} is refused by its new home: {code}"},
	wire.EventReclaimSkipped:   {"the clocks jumped or the node was suspended: no lease is reclaimed in this round"},
	wire.EventForged:           {"queue {queue}: {why}", "{why}"},
	wire.EventResultLost:       {"the result of task {task} of queue {queue} does not count: {why}"},
	wire.EventResultRejected:   {"the result {state} of task {task}, with epoch {epoch}, does not count: balefire-node lease conflicts"},
	wire.EventLaneBlocked:      {"queue {queue}: dead letter {task} blocks its ordering key"},
	wire.EventTaskForgotten:    {"it no longer knows task {task}"},
	wire.EventResultTooLarge:   {"the result of task {task} is larger than it takes: {detail}"},
	wire.EventResultRefused:    {"the home of task {task} refuses its result: {code}: {detail}", "the home of task {task} refuses its result: {code}"},
	wire.EventResultDead:       {"the result of task {task} does not reach its home: {why}"},
	wire.EventResultStale:      {"the home of task {task} has recorded its result, which does not count: {detail}", "the home of task {task} has recorded its result, which does not count"},
	wire.EventScheduleRemoved:  {"schedule {schedule} of queue {queue} was removed at its old home"},
	wire.EventScheduleDropped:  {"schedule {schedule} of queue {queue} from an old home was dropped because a schedule with that name exists here"},
	wire.EventScheduleJump:     {"the clock jumped by {by}: schedules pause briefly"},
	wire.EventStoreFull:        {"new work is refused: there is too little space ({cause}): balefire-node status"},
	wire.EventStoreRecovered:   {"new work is accepted again: there is space on the disk and in memory"},
	wire.EventClockDoubted:     {"the clock of this machine is doubted: it is off by {off}; nothing expires and nothing old is deleted (balefire-node status)"},
	wire.EventClockTrusted:     {"the clock of this machine is trusted again"},
	wire.EventComparing:        {"this node was restored from a snapshot: it admits only admins until it has compared revocations with one"},
	wire.EventCompared: {
		"revocations were compared with {peer}: members are admitted again",
		"no admin was met: members are admitted again, even one that was revoked after the snapshot was made (balefire-node peers ls)",
	},
	wire.EventLANStranger: {
		"found a node on the LAN that belongs to no mesh: {id}, code {code}",
		"found a node on the LAN that is not a member of this mesh: {id} ({detail})",
		"found a node on the LAN that is not a member of this mesh: {id}",
	},
	wire.EventJoinRequest:  {"{name} asks to join, code {code}: balefire-node peers accept {code}"},
	wire.EventMailUnproven: {"it has {count} mails for {box} and gives no receipt: {why}"},
	wire.EventMailUntold: {
		"mail {mail} is DONE, and {to} is not told: {why}",
		"mail {mail} is DONE, and its sender is not told: {why}",
	},
	wire.EventMailBounced: {
		"mail {mail} was not delivered, and {to} is not told: {why}",
		"mail {mail} was not delivered, and its sender is not told: {why}",
	},
	wire.EventMailArchived: {"{box}: {count} dead letters to {file}"},
	wire.EventMailSeized:   {"{box} was seized from {from}: what only {from} has is lost unless it comes back"},
	wire.EventMailMoved:    {"{peer} is the home of {box} now, and {count} mails that were in it here go there"},
}

// Event returns what an event reports. Of a kind that this program does not know it is the
// kind.
func Event(e wire.NodeEvent) string {
	for _, s := range events[e.Kind] {
		whole := true
		text := replace(s, func(name string) string {
			value := cmp.Or(e.Fields[name], map[string]string{"peer": e.Peer, "why": why(e)}[name])
			if name == "why" || name == "detail" {
				value = Plain(value)
			}
			if n, err := strconv.ParseInt(value, 10, 64); err == nil && (name == "bytes" || name == "size") {
				value = mib(n)
			}
			whole = whole && value != ""
			return value
		})
		if whole {
			return text
		}
	}
	if strings.HasPrefix(e.Kind, "mail.") {
		return mailEvent(e.Fields)
	}
	return e.Kind
}

// mailEvent returns what an event of a mail is about.
func mailEvent(f map[string]string) string {
	text := f["box"]
	if f["subscription"] != "" {
		text += "/" + f["subscription"]
	}
	text = strings.Join(strings.Fields(text+" "+f["number"]+" "+f["mail"]), " ")
	switch {
	case f["attempt"] != "":
		text += fmt.Sprintf(": to %q, attempt %s", f["text"], f["attempt"])
	case f["text"] != "":
		text += ": " + Plain(f["text"])
	}
	return text
}
