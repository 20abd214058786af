package node

import (
	"errors"
	"io"
	"time"

	"github.com/balefire/balefire/proto"
)

// Errors that callers act on. The window turns each into a status, the door
// into an exit code.
var (
	ErrNotFound    = errors.New("not found")
	ErrInvalid     = errors.New("invalid request")
	ErrRefused     = errors.New("refused")
	ErrKeyConflict = errors.New("idempotency key used for another request")
	ErrFull        = errors.New("full")
	ErrDenied      = errors.New("denied")
	ErrDraining    = errors.New("node is stopping")
)

// A Request is a task to be submitted. Target and Kind are required.
type Request struct {
	Target string            // who does it: a peer's name or id
	Kind   string            // which handler
	Class  proto.Class       // default normal
	Mode   proto.Mode        // what a crash while it runs may do; default at_least_once
	TTL    time.Duration     // no start after this; default 7 days, at most 30
	Delay  time.Duration     // not sent before; default none
	At     time.Time         // not sent before; zero: at once
	Key    string            // idempotency key; "auto": of the content
	Order  string            // ordering key: tasks of one key run one after the other
	OnDead string            // what follows a dead head of its key: skip (default) or block
	Args   []string          // appended to the handler's arguments where it allows that
	Body   []byte            // what the handler reads; or
	Stream io.Reader         // the same, of any size, read to its end by Submit
	Type   string            // content type of the body
	Labels map[string]string // free words to find it by
	Trace  string            // W3C traceparent; default, and instead of one that is not valid, a fresh one
	Bounds
	Affinity
	// RedriveOf names the ended task that this one repeats.
	RedriveOf proto.TaskID

	delegates [][]byte // peers that handed over the schedule that made it
	digest    []byte   // of the request that it was first, if it is not the one of this
}

// Bounds are what the handler of a task may spend on it.
type Bounds struct {
	Retries   uint32 // attempts, up to what the handler allows; 0: its own
	MaxResult int64  // bytes of the result, up to what the handler gives; 0: its own
}

// An Affinity says which nodes of a queue a task is for.
type Affinity struct {
	Require []string // labels that the node must have that does it
	Prefer  []string // labels that it should have: nodes with all of them go first
}

// A Submitted is what Submit returns once the task is on disk.
type Submitted struct {
	ID       string     `json:"id"`
	State    string     `json:"state"`
	Target   string     `json:"target" doc:"the peer's name"`
	Known    bool       `json:"known,omitempty" doc:"the idempotency key was used before: this is the first task"`
	NotAfter time.Time  `json:"not_after"`
	Due      *time.Time `json:"due,omitempty" doc:"not before this"`
	Waits    string     `json:"waits,omitempty" doc:"what it waits for, when it cannot go at once"`
}

// A Task is a task as people and programs read it.
type Task struct {
	ID       string   `json:"id"`
	State    string   `json:"state"`
	Role     string   `json:"role" enum:"home,owner" doc:"what this node is to it"`
	Kind     string   `json:"kind"`
	Class    string   `json:"class"`
	Target   string   `json:"target,omitempty" doc:"as it was written"`
	Peer     string   `json:"peer" doc:"name of the other side: the target at the home, the origin at the owner"`
	PeerID   string   `json:"peer_id"`
	Attempts uint32   `json:"attempts"`
	Abandons uint32   `json:"abandons,omitempty"`
	Epoch    string   `json:"epoch" doc:"boot.counter of its grant"`
	BodySize uint64   `json:"body_size"`
	Receipts []string `json:"receipts" doc:"facts that a signature proves"`
	// Transfers are its bodies on their way now, from here or to here.
	Transfers []Transfer `json:"transfers,omitempty"`
	Events    []Event    `json:"events,omitempty"`
	History   []Attempt  `json:"history,omitempty"`
	Times
	Ending
	Marks
}

// Times are the moments of a task.
type Times struct {
	Created  time.Time  `json:"created"`
	NotAfter time.Time  `json:"not_after" doc:"no start after this"`
	Due      *time.Time `json:"due,omitempty" doc:"not before this"`
	Ended    *time.Time `json:"ended,omitempty"`
}

// Ending is how a task ended, or failed last.
type Ending struct {
	Reason     string `json:"reason,omitempty"`
	ExitCode   *int32 `json:"exit_code,omitempty" doc:"of the last run; absent: none has ended"`
	Stderr     string `json:"stderr,omitempty" doc:"the last 4 KiB"`
	ResultSize uint64 `json:"result_size,omitempty" doc:"bytes; absent: there is none"`
	ResultHash string `json:"result_digest,omitempty" doc:"algorithm:hex"`
	ResultType string `json:"result_type,omitempty"`
	Truncated  bool   `json:"truncated,omitempty" doc:"the handler wrote more than its limit"`
	Orphans    int    `json:"orphans,omitempty" doc:"results that came too late"`
}

// Marks are what the submitter and people put on a task.
type Marks struct {
	Key        string            `json:"idempotency_key,omitempty"`
	Order      string            `json:"ordering_key,omitempty"`
	Trace      string            `json:"traceparent,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	Mode       string            `json:"mode,omitempty" doc:"at_most_once where it was asked for"`
	RedriveOf  string            `json:"redrive_of,omitempty"`
	RedrivenAs string            `json:"redriven_as,omitempty"`
	Status     string            `json:"status,omitempty" doc:"of a dead letter: new, seen or redriven"`
	Cancel     bool              `json:"cancel_asked,omitempty"`
}

// An Event is one change of a task.
type Event struct {
	Time    time.Time `json:"time"`
	Node    string    `json:"node"`
	State   string    `json:"state"`
	Attempt uint32    `json:"attempt,omitempty"`
	Cause   string    `json:"cause,omitempty"`
	Folded  uint32    `json:"folded,omitempty" doc:"this entry stands for so many left out"`
}

// An Attempt is one start of the handler.
type Attempt struct {
	Number   uint32    `json:"number"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	ExitCode int32     `json:"exit_code"`
	Error    string    `json:"error,omitempty"`
}

// A Receipt is a statement and whether its signature holds.
type Receipt struct {
	Fact    string    `json:"fact"`
	Node    string    `json:"node"`
	NodeID  string    `json:"node_id"`
	Time    time.Time `json:"time"`
	Epoch   string    `json:"epoch"`
	Attempt uint32    `json:"attempt,omitempty"`
	State   string    `json:"state,omitempty"`
	Digest  string    `json:"digest,omitempty"`
	// Proof is the signed receipt, base64 of its protobuf: enough to check it
	// on another machine.
	Proof    string `json:"proof"`
	Verified bool   `json:"verified"`
	Problem  string `json:"problem,omitempty"`
}

// A Query chooses tasks. The zero value means all of them.
type Query struct {
	States []proto.TaskState
	Role   string // home, owner or empty for both
	Peer   string // name or id
	Kind   string
	Label  string // key=value
	Before time.Time
	After  time.Time
	Oldest bool   // the oldest first; default the newest
	Cursor string // of the page before
	Limit  int    // default 50, at most 1000
}

// A Page is a part of a list. Next is empty at its end.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// A Peer is another node as this one knows it.
type Peer struct {
	Name      string     `json:"name"`
	ID        string     `json:"id"`
	State     string     `json:"state" enum:"CONNECTED,OFFLINE,BLOCKED,EXPIRED,REVOKED,ACCEPTED" doc:"ACCEPTED: let in, and has not fetched its certificate yet"`
	Liveness  string     `json:"liveness,omitempty" enum:"ALIVE,SUSPECT,DEAD,LEFT,UNKNOWN" doc:"what the members say of it, reached from here or not"`
	Alias     string     `json:"alias,omitempty" doc:"name that it has on this node alone"`
	Roles     []string   `json:"roles"`
	Path      string     `json:"path,omitempty" doc:"address and protocol of the connection"`
	Direct    bool       `json:"direct,omitempty" doc:"nobody stands in between"`
	Relay     string     `json:"relay,omitempty" doc:"name of the relay in between"`
	RTT       float64    `json:"rtt_seconds,omitempty" doc:"of the connection; absent: not measured yet"`
	Loss      float64    `json:"loss,omitempty" doc:"share of packets or probes, 0 to 1"`
	Queued    int        `json:"queued" doc:"tasks and results that wait for it"`
	LastSeen  *time.Time `json:"last_seen,omitempty"`
	Addrs     []string   `json:"addrs,omitempty"`
	CertUntil *time.Time `json:"certificate_until,omitempty"`
}

// A Handler is what this node does for a kind.
type Handler struct {
	Kind        string   `json:"kind"`
	Type        string   `json:"type" enum:"command,discard,echo,sha256"`
	Exec        []string `json:"exec,omitempty"`
	Allow       []string `json:"allow"`
	Profile     string   `json:"profile"`
	Timeout     string   `json:"timeout" doc:"of one run, as 10m0s; 0s: none"`
	Concurrency int      `json:"concurrency"`
	MaxAttempts int      `json:"max_attempts"`
	OnCrash     string   `json:"on_crash"`
	Running     int      `json:"running"`
	Waiting     int      `json:"waiting"`
	Problem     string   `json:"problem,omitempty" doc:"why its program cannot be started now"`
	Warning     string   `json:"warning,omitempty" doc:"what those who may ask for it could do with its program, and whom it allows that no member is"`
}

// A Status is this node at a glance.
type Status struct {
	Name     string         `json:"name"`
	ID       string         `json:"id"`
	Mesh     string         `json:"mesh"`
	Version  string         `json:"version"`
	Started  time.Time      `json:"started"`
	Store    StoreStats     `json:"store"`
	Addrs    []string       `json:"addrs"`
	Warnings []string       `json:"warnings"`
	Peers    []Peer         `json:"peers"`
	Outbox   map[string]int `json:"outbox" doc:"tasks that this node is home of, by state"`
	Inbox    map[string]int `json:"inbox" doc:"tasks that this node took custody of, by state"`
	Results  int            `json:"results" doc:"results on their way home"`
	Dead     int            `json:"dead_letters"`
	Slots    int            `json:"slots"`
	Busy     int            `json:"busy"`
}

// StoreStats describes the store. Sizes are bytes.
type StoreStats struct {
	Engine    string `json:"engine"`
	Schema    int    `json:"schema"`
	DiskBytes int64  `json:"disk_bytes"`
	LiveBytes int64  `json:"live_bytes"`
	Keys      int64  `json:"keys"`
	BlobBytes int64  `json:"blob_bytes"`
	FreeBytes int64  `json:"free_bytes"`
	Reserve   int64  `json:"reserve_bytes"`
	Full      bool   `json:"full" doc:"new work is refused"`
	Refuses   string `json:"refuses,omitempty" doc:"why new work is refused: the disk is below its reserve, or memory is short"`
	Commits   int64  `json:"commits"`
	Failed    string `json:"failed,omitempty"`
}

// A Blocker is the one thing that keeps a task from its next step, or a peer or a queue
// from its tasks, and what to do about it.
type Blocker struct {
	Subject string     `json:"subject" doc:"a task's id, a peer's name, or queue:NAME"`
	State   string     `json:"state"`
	Cause   string     `json:"cause"`
	Fix     string     `json:"fix,omitempty"`
	Next    *time.Time `json:"next,omitempty" doc:"when it is tried again by itself"`
	Steps   []string   `json:"steps" doc:"what was looked at, in order"`
}

// An Invitation is a ticket and its picture.
type Invitation struct {
	Ticket  string    `json:"ticket"`
	QR      string    `json:"qr,omitempty"`
	Expires time.Time `json:"expires"`
	Roles   []string  `json:"roles"`
	Warning string    `json:"warning,omitempty" doc:"why the node that joins with it may be refused, or get other rights than was meant"`
}

// Purged says what a purge removed, or would remove.
type Purged struct {
	Tasks  int   `json:"tasks"`
	Bytes  int64 `json:"bytes"`
	DryRun bool  `json:"dry_run"`
}
