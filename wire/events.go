package wire

import "time"

// A NodeEvent reports a change of a peer, a path, a member or a task on this node.
type NodeEvent struct {
	Seq    uint64            `json:"seq" doc:"starts at 1 with each start of the node and increases by one; a missing number was dropped"`
	Time   time.Time         `json:"time"`
	Kind   string            `json:"kind" example:"peer.connected"`
	Peer   string            `json:"peer,omitempty" doc:"name"`
	Task   string            `json:"task,omitempty"`
	Text   string            `json:"text" doc:"text for display"`
	Fields map[string]string `json:"fields,omitempty"`
}

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
