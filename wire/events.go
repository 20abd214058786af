package wire

import "time"

// A NodeEvent reports a change of a peer, a path, a member, a task or a mail on this node: a
// kind, and what it is about.
type NodeEvent struct {
	Seq    uint64            `json:"seq" doc:"starts at 1 with each start of the node and increases by one; a missing number was dropped"`
	Time   time.Time         `json:"time"`
	Kind   string            `json:"kind" example:"peer.connected" doc:"stable; the documentation lists all kinds and their fields"`
	Peer   string            `json:"peer,omitempty" doc:"name"`
	Fields map[string]string `json:"fields,omitempty"`
}

// Kinds of events.
const (
	EventPeerConnected    = "peer.connected"            // the first connection of a peer: path
	EventPeerDisconnected = "peer.disconnected"         // its last connection was closed: path
	EventPathChanged      = "path.changed"              // another path to the peer is in use: path, detail (the one before)
	EventPunched          = "path.punched"              // a direct path through NATs was established: detail
	EventNotPunched       = "path.not_punched"          // establishing one failed: detail
	EventRelayReserved    = "relay.reserved"            // a relay accepts connections for this node: path
	EventRelayLost        = "relay.lost"                // it no longer does: detail
	EventBodyBegan        = "body.began"                // the transfer of a body started: task, what (body, result), direction (out, in), bytes (durable at the receiver), size
	EventBodyMoves        = "body.moves"                // its progress, reported repeatedly: as body.began
	EventBodyEnded        = "body.ended"                // it arrived, or this attempt ended: as body.began
	EventMemberChanged    = "member.changed"            // the status of a member changed: from, to, by (the member that said so), detail
	EventMemberEligible   = "member.eligible"           // it may get new work again
	EventMemberSuppressed = "member.suppressed"         // it failed again during its recovery time, which restarts
	EventMemberDescribed  = "member.described"          // what it says of itself changed
	EventMemberPruned     = "member.pruned"             // it was dead for mesh.prune_age and is forgotten
	EventMemberRefuted    = "member.refuted"            // this node refuted that it is dead: by (the member that said so)
	EventMemberIsolated   = "member.isolated"           // this node became isolated, or is no longer: to (isolated, connected)
	EventMemberAlarm      = "member.alarm"              // something about a member needs attention: by, detail
	EventBookFull         = "member.book_full"          // the address book is full, and new peers are refused: count
	EventHomeGone         = "queue.home_gone"           // the home of queues is lost: queues, state
	EventHomeBack         = "queue.home_back"           // it is back: queues
	EventHandedOver       = "queue.handed_over"         // the peer is the home of a queue now: queue
	EventHandoffRefused   = "ownership.handoff_refused" // the new home of a queue refuses a task: task, queue, code, detail
	EventReclaimSkipped   = "ownership.reclaim_skipped" // the clocks jumped, and no lease was reclaimed
	EventForged           = "ownership.forged"          // a member sent what it is not authorized to send: task, queue, cause, detail
	EventResultLost       = "ownership.result_lost"     // a result of this node does not count, or no home takes it: task, queue, cause
	EventResultRejected   = "ownership.result_rejected" // the peer sent a result that does not count: task, state, epoch
	EventLaneBlocked      = "ownership.lane_blocked"    // a dead letter blocks its ordering key: task, queue, state
	EventTaskForgotten    = "task.forgotten"            // the target of a task no longer knows it: task
	EventResultTooLarge   = "task.result_too_large"     // the target of a task sent a larger result than it accepts: task, detail
	EventResultRefused    = "result.refused"            // the home of a task refuses its result for now: task, cause, code, detail
	EventResultDead       = "result.dead"               // a result will not reach its home: task, cause, code, detail
	EventResultStale      = "result.stale"              // the home has recorded a result, and it does not count: task, cause, code, detail
	EventScheduleRemoved  = "schedule.removed"          // a schedule was removed at its old home: queue, schedule
	EventScheduleDropped  = "schedule.dropped"          // a schedule of an old home was dropped, because one with its name exists here: queue, schedule
	EventScheduleJump     = "schedule.clock_jump"       // the clock jumped, and schedules pause briefly: by
	EventStoreFull        = "store.full"                // new work is refused: cause (disk, memory)
	EventStoreRecovered   = "store.recovered"           // it is accepted again
	EventClockDoubted     = "clock.doubted"             // the clock of this machine is doubted: off (the clock minus the expected time)
	EventClockTrusted     = "clock.trusted"             // it is trusted again
	EventComparing        = "node.comparing"            // this node was restored from a snapshot and admits only admins until it has compared revocations with one
	EventCompared         = "node.compared"             // it admits all members again: peer (the admin; empty: none was met)
	EventLANStranger      = "lan.stranger"              // a node on the LAN is not a member of this mesh: addrs, id, code (if it belongs to no mesh), detail (why it is no member)
	EventJoinRequest      = "lan.join_request"          // a node on the LAN asks to join: name, code
	EventMailAccepted     = "mail.accepted"             // a mail is in its box; this kind and those up to mail.rescued are only shown by mail watch and with ?mail=BOX, and have: box, subscription, number (in the box), mail (its id)
	EventMailSent         = "mail.sent"                 // it is in the spool for a box on another node
	EventMailDelivered    = "mail.delivered"            // it was leased to a reader: attempt, text (the reader)
	EventMailRetry        = "mail.retry"                // a delivery failed or was given back: text (why)
	EventMailDone         = "mail.done"                 // it was acknowledged; of a spool: the node of the box has it
	EventMailDead         = "mail.dead"                 // it became a dead letter: text (why)
	EventMailExpired      = "mail.expired"              // its time to live is over
	EventMailCancelled    = "mail.cancelled"            // it was purged, sent back, or its box was removed
	EventMailDropped      = "mail.dropped"              // the retention of a topic took it
	EventMailRefused      = "mail.refused"              // its box refused it, for now or for good: text (why)
	EventMailStale        = "mail.stale"                // it was settled after somebody else was given it
	EventMailBlocked      = "mail.blocked"              // a dead letter blocks the mails with its key
	EventMailUnblocked    = "mail.unblocked"            // they go on, because too many keys are blocked
	EventMailRescued      = "mail.rescued"              // low was served only because so many had passed it
	EventMailUnproven     = "mail.unproven"             // the node of a box has mails and did not sign that, though it was asked to: box, count, cause (that of a receipt)
	EventMailUntold       = "mail.untold"               // a mail is DONE, and its sender, who asked for that, is not told: mail, to, cause, code, detail, bounce
	EventMailBounced      = "mail.bounced"              // a mail was not delivered, and its sender is not told: mail, to, cause, code, detail, bounce
	EventMailArchived     = "mail.archived"             // dead letters were moved to a file: box, count, file
	EventMailSeized       = "mail.seized"               // this node is the home of a box of the mesh that was seized, and what only the home before has is lost unless it comes back: box, from (the home before)
	EventMailMoved        = "mail.moved"                // another node is the home of a box of the mesh now, and what was in the box here goes there: box, count; peer (the home)
)

// An EventPage contains the events after a sequence number.
type EventPage struct {
	Boot   uint64      `json:"boot" doc:"number of this start; sequence numbers restart with each start"`
	Items  []NodeEvent `json:"items"`
	Missed uint64      `json:"missed,omitempty" doc:"events dropped before the first item because the reader was too slow or too late"`
	Next   uint64      `json:"next" doc:"pass this to get the events that follow"`
}

// A Missed replaces dropped events in a stream.
type Missed struct {
	Missed uint64 `json:"missed" doc:"number of dropped events: the reader was too slow or too late"`
}
