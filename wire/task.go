package wire

import "time"

// The roles of a node for a task.
const (
	RoleHome  = "home"
	RoleOwner = "owner"
)

// A Transfer is a body or a result that is being sent or received.
type Transfer struct {
	What      string  `json:"what" enum:"body,result"`
	Direction string  `json:"direction" enum:"out,in"`
	Peer      string  `json:"peer"`
	Bytes     int64   `json:"bytes" doc:"durable at the receiver"`
	Size      int64   `json:"size" doc:"size of the sealed body"`
	Rate      float64 `json:"bytes_per_second" doc:"average of the last seconds; 0: not known yet, or stalled"`
	Left      float64 `json:"seconds_left,omitempty" doc:"estimate at the current rate"`
}

// A Submitted is the result of Submit for a task that is on disk.
type Submitted struct {
	ID       string     `json:"id"`
	State    string     `json:"state"`
	Target   string     `json:"target" doc:"the peer's name"`
	Known    bool       `json:"known,omitempty" doc:"the idempotency key was used before; this is the first task with it"`
	NotAfter time.Time  `json:"not_after"`
	Due      *time.Time `json:"due,omitempty" doc:"time before which it is not sent"`
}

// A Task is the view of a task for users and programs.
type Task struct {
	ID       string   `json:"id"`
	State    string   `json:"state"`
	Role     string   `json:"role" enum:"home,owner" doc:"role of this node"`
	Kind     string   `json:"kind"`
	Class    string   `json:"class"`
	Target   string   `json:"target,omitempty" doc:"target as given in the request"`
	Peer     string   `json:"peer" doc:"name of the other side: the target at the home, the origin at the owner"`
	PeerID   string   `json:"peer_id"`
	Attempts uint32   `json:"attempts"`
	Abandons uint32   `json:"abandons,omitempty"`
	Epoch    string   `json:"epoch" doc:"boot.counter of its lease"`
	BodySize uint64   `json:"body_size"`
	Receipts []string `json:"receipts" doc:"facts that are proven by a signature"`
	// Transfers are the current transfers of its bodies.
	Transfers []Transfer `json:"transfers,omitempty"`
	Events    []Event    `json:"events,omitempty"`
	History   []Attempt  `json:"history,omitempty"`
	Times
	Ending
	Marks
}

// Times are the timestamps of a task.
type Times struct {
	Created  time.Time  `json:"created"`
	NotAfter time.Time  `json:"not_after" doc:"time after which it must not start"`
	Due      *time.Time `json:"due,omitempty" doc:"time before which it is not sent"`
	Ended    *time.Time `json:"ended,omitempty"`
}

// Ending is the result of a task, or of its latest failure.
type Ending struct {
	Cause      string `json:"cause,omitempty" example:"crashed_often" doc:"why it ended, or why its latest attempt failed, as a stable code; the documentation lists all"`
	Reason     string `json:"reason,omitempty" doc:"the detail of the cause, such as what the handler, the peer or the person said"`
	MayHaveRun bool   `json:"may_have_run,omitempty" doc:"it ended without a start on record, and may have run before an unclean stop"`
	Code       string `json:"code,omitempty" doc:"code of the refusal that ended it, such as DENIED, or of the last failure to deliver it; absent: it was not refused"`
	ExitCode   *int32 `json:"exit_code,omitempty" doc:"exit code of the latest run; absent: no run has ended"`
	Stderr     string `json:"stderr,omitempty" doc:"the last 4 KiB"`
	ResultSize uint64 `json:"result_size,omitempty" doc:"size in bytes; absent: no result"`
	ResultHash string `json:"result_digest,omitempty" doc:"algorithm:hex"`
	ResultType string `json:"result_type,omitempty"`
	Truncated  bool   `json:"truncated,omitempty" doc:"the handler wrote more than its limit"`
	Orphans    int    `json:"orphans,omitempty" doc:"results that came too late"`
}

// Marks are attributes set by the submitter or later by commands.
type Marks struct {
	Key        string            `json:"idempotency_key,omitempty"`
	Order      string            `json:"ordering_key,omitempty"`
	Trace      string            `json:"traceparent,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Mode       string            `json:"mode,omitempty" doc:"at_most_once if requested"`
	RedriveOf  string            `json:"redrive_of,omitempty"`
	RedrivenAs string            `json:"redriven_as,omitempty"`
	Status     string            `json:"status,omitempty" doc:"status of a dead letter: new or redriven"`
	Cancel     bool              `json:"cancel_asked,omitempty"`
}

// An Event is one state change of a task.
type Event struct {
	Time    time.Time `json:"time"`
	Node    string    `json:"node"`
	State   string    `json:"state"`
	Attempt uint32    `json:"attempt,omitempty"`
	Cause   string    `json:"cause,omitempty" doc:"why, as a stable code; absent: the state says it"`
	Code    string    `json:"code,omitempty" doc:"code of a refusal"`
	Detail  string    `json:"detail,omitempty" doc:"of the cause"`
	Folded  uint32    `json:"folded,omitempty" doc:"number of omitted events that this entry stands for"`
}

// An Attempt is one start of the handler.
type Attempt struct {
	Number   uint32    `json:"number"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	ExitCode int32     `json:"exit_code"`
	Cause    string    `json:"cause,omitempty" doc:"why it ended so, as a stable code"`
	Error    string    `json:"error,omitempty" doc:"the detail of the cause"`
}

// A Receipt is a signed statement and whether its signature is valid.
type Receipt struct {
	Fact    string    `json:"fact"`
	Node    string    `json:"node"`
	NodeID  string    `json:"node_id"`
	Time    time.Time `json:"time"`
	Epoch   string    `json:"epoch"`
	Attempt uint32    `json:"attempt,omitempty"`
	State   string    `json:"state,omitempty"`
	Digest  string    `json:"digest,omitempty"`
	// Proof is the signed receipt as base64 of its protobuf encoding; it can be verified
	// on another machine.
	Proof    string `json:"proof"`
	Verified bool   `json:"verified"`
	Problem  *Note  `json:"problem,omitempty" doc:"why it is not valid"`
}

// A Page is a part of a list. Next is empty on the last page.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}
