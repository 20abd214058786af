package node

import (
	"errors"
	"io"
	"time"

	"github.com/balefire/balefire/proto"
)

// Errors that callers act on. The API maps each to a status, the CLI to an exit code.
var (
	ErrNotFound    = errors.New("not found")
	ErrInvalid     = errors.New("invalid request")
	ErrRefused     = errors.New("refused")
	ErrKeyConflict = errors.New("idempotency key used for another request")
	ErrFull        = errors.New("full")
	ErrDenied      = errors.New("denied")
	ErrDraining    = errors.New("node is stopping")
)

// A Request describes a task to submit. Target and Kind are required.
type Request struct {
	Target string            // who runs it: a peer's name or id, or queue:NAME
	Kind   string            // kind of the handler
	Class  proto.Class       // default normal
	Mode   proto.Mode        // whether it may run again after a crash; default at_least_once
	TTL    time.Duration     // time after which it must not start; default 7 days, at most 30
	Delay  time.Duration     // delay before it is sent; default none
	At     time.Time         // time before which it is not sent; zero: at once
	Key    string            // idempotency key; "auto": derived from the content
	Order  string            // ordering key: tasks with the same key run one after the other
	OnDead string            // what happens to later tasks of its key if it becomes a dead letter: skip (default) or block
	Args   []string          // appended to the handler's arguments if it allows that
	Body   []byte            // input of the handler; or
	Stream io.Reader         // input of any size, read to its end by Submit
	Type   string            // content type of the body
	Labels map[string]string // arbitrary labels to find it by
	Trace  string            // W3C traceparent; a new one if empty or not valid
	Bounds
	Affinity
	// RedriveOf names the ended task that this one repeats.
	RedriveOf proto.TaskID

	delegates [][]byte // homes that its schedule passed through
	digest    []byte   // digest of the original request, if different
}

// Bounds limit the handler of a task.
type Bounds struct {
	Retries   uint32 // attempts, at most what the handler allows; 0: the handler's limit
	MaxResult int64  // size of the result in bytes, at most what the handler allows; 0: the handler's limit
}

// An Affinity selects the nodes of a queue for a task.
type Affinity struct {
	Require []string // labels that the executing node must have
	Prefer  []string // labels that it should have: nodes with all of them are preferred
}

// A Submitted is the result of Submit for a task that is on disk.
type Submitted struct {
	ID       string     `json:"id"`
	State    string     `json:"state"`
	Target   string     `json:"target" doc:"the peer's name"`
	Known    bool       `json:"known,omitempty" doc:"the idempotency key was used before; this is the first task with it"`
	NotAfter time.Time  `json:"not_after"`
	Due      *time.Time `json:"due,omitempty" doc:"time before which it is not sent"`
	Waits    string     `json:"waits,omitempty" doc:"what it waits for, if it cannot be sent at once"`
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
	Reason     string `json:"reason,omitempty"`
	Code       string `json:"code,omitempty" doc:"code of the refusal that ended it, such as DENIED; absent: it was not refused"`
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
	Status     string            `json:"status,omitempty" doc:"status of a dead letter: new, seen or redriven"`
	Cancel     bool              `json:"cancel_asked,omitempty"`
}

// An Event is one state change of a task.
type Event struct {
	Time    time.Time `json:"time"`
	Node    string    `json:"node"`
	State   string    `json:"state"`
	Attempt uint32    `json:"attempt,omitempty"`
	Cause   string    `json:"cause,omitempty"`
	Folded  uint32    `json:"folded,omitempty" doc:"number of omitted events that this entry stands for"`
}

// An Attempt is one start of the handler.
type Attempt struct {
	Number   uint32    `json:"number"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	ExitCode int32     `json:"exit_code"`
	Error    string    `json:"error,omitempty"`
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
	Problem  string `json:"problem,omitempty"`
}

// A Query selects tasks. The zero value matches all of them.
type Query struct {
	States []proto.TaskState
	Role   string // home, owner or empty for both
	Peer   string // name or id
	Kind   string
	Label  string // key=value
	Before time.Time
	After  time.Time
	Oldest bool   // the oldest first; default the newest
	Cursor string // Next of the previous page
	Limit  int    // default 50, at most 1000
}

// A Page is a part of a list. Next is empty on the last page.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// A Peer is another node as known to this one.
type Peer struct {
	Name      string     `json:"name"`
	ID        string     `json:"id"`
	State     string     `json:"state" enum:"CONNECTED,OFFLINE,BLOCKED,EXPIRED,REVOKED,ACCEPTED" doc:"ACCEPTED: admitted, but it has not fetched its certificate yet"`
	Liveness  string     `json:"liveness,omitempty" enum:"ALIVE,SUSPECT,DEAD,LEFT,UNKNOWN" doc:"state according to gossip, whether or not this node can reach it"`
	Alias     string     `json:"alias,omitempty" doc:"name used on this node only"`
	Roles     []string   `json:"roles"`
	Path      string     `json:"path,omitempty" doc:"address and protocol of the connection"`
	Direct    bool       `json:"direct,omitempty" doc:"not through a relay"`
	Relay     string     `json:"relay,omitempty" doc:"name of the relay"`
	RTT       float64    `json:"rtt_seconds,omitempty" doc:"round-trip time of the connection; absent: not measured yet"`
	Loss      float64    `json:"loss,omitempty" doc:"share of packets or probes, 0 to 1"`
	Queued    int        `json:"queued" doc:"tasks and results that wait for it"`
	LastSeen  *time.Time `json:"last_seen,omitempty"`
	Addrs     []string   `json:"addrs,omitempty"`
	CertUntil *time.Time `json:"certificate_until,omitempty"`
}

// A Handler describes how this node runs tasks of one kind.
type Handler struct {
	Kind        string   `json:"kind"`
	Type        string   `json:"type" enum:"command,discard,echo,sha256"`
	Exec        []string `json:"exec,omitempty"`
	Allow       []string `json:"allow"`
	Profile     string   `json:"profile"`
	Timeout     string   `json:"timeout" doc:"limit of one run, such as 10m0s; 0s: none"`
	Concurrency int      `json:"concurrency"`
	MaxAttempts int      `json:"max_attempts"`
	OnCrash     string   `json:"on_crash"`
	Running     int      `json:"running"`
	Waiting     int      `json:"waiting"`
	Problem     string   `json:"problem,omitempty" doc:"why its program cannot be started now"`
	Warning     string   `json:"warning,omitempty" doc:"what allowed senders could do with its program, and which entries of its allow list match no member"`
}

// A Status summarizes this node.
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
	Outbox   map[string]int `json:"outbox" doc:"tasks whose home is this node, by state"`
	Inbox    map[string]int `json:"inbox" doc:"tasks accepted by this node, by state"`
	Results  int            `json:"results" doc:"results being sent to their homes"`
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

// A Blocker is the reason why a task does not make its next step, or why a peer or a
// queue does not get its tasks, and what to do about it.
type Blocker struct {
	Subject string     `json:"subject" doc:"a task's id, a peer's name, or queue:NAME"`
	State   string     `json:"state"`
	Cause   string     `json:"cause"`
	Fix     string     `json:"fix,omitempty"`
	Next    *time.Time `json:"next,omitempty" doc:"time of the next automatic retry"`
	Steps   []string   `json:"steps" doc:"what was checked, in order"`
}

// An Invitation is a ticket and its QR code.
type Invitation struct {
	Ticket  string    `json:"ticket"`
	QR      string    `json:"qr,omitempty"`
	Expires time.Time `json:"expires"`
	Roles   []string  `json:"roles"`
	Warning string    `json:"warning,omitempty" doc:"why a node that joins with the ticket may be refused or get unexpected rights"`
}

// Purged is the result of a purge, or what it would remove.
type Purged struct {
	Tasks  int   `json:"tasks"`
	Bytes  int64 `json:"bytes"`
	DryRun bool  `json:"dry_run"`
}
