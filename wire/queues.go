package wire

import (
	"time"
)

// A MemberRule is the setting of a queue for one node. If a queue has any, only the
// named nodes work on it, in that order.
type MemberRule struct {
	Node        string `json:"node" minLength:"1" maxLength:"128" doc:"name or id"`
	Weight      int    `json:"weight,omitempty" doc:"relative share of the tasks; 0: 1"`
	Priority    int    `json:"priority,omitempty" doc:"higher goes first; 0: the node's own priority"`
	Concurrency int    `json:"concurrency,omitempty" doc:"limit of tasks of this queue at a time; 0: the queue's limit for each node"`
	Draining    bool   `json:"draining,omitempty" doc:"gets no new tasks from this queue"`
}

// A Queue is a shared queue as known to this node. Only its home knows its counts and
// members.
type Queue struct {
	Name       string `json:"name"`
	Home       string `json:"home" doc:"name of the node that manages it"`
	HomeID     string `json:"home_id"`
	Here       bool   `json:"here" doc:"this node is its home"`
	Generation uint64 `json:"generation" doc:"increases with each handoff and seizure of the home"`
	SeizedFrom string `json:"seized_from,omitempty" doc:"former home from which it was seized"`
	QueueRules
	QueueCounts
	Alarm   *Note         `json:"alarm,omitempty" doc:"set if its home is lost"`
	Members []QueueMember `json:"members" doc:"nodes that could work on it, as seen by its home"`
	Blocked []BlockedLane `json:"blocked,omitempty" doc:"ordering keys whose tasks are blocked; known at its home only"`
	Changed *time.Time    `json:"changed,omitempty"`
}

// A BlockedLane describes the tasks of one ordering key that are blocked because an
// earlier one became a dead letter and its on_dead is block.
type BlockedLane struct {
	Key     string `json:"key"`
	Origin  string `json:"origin,omitempty" doc:"origin whose tasks are blocked; empty: all origins, because the lanes of the queue are shared"`
	Died    string `json:"died,omitempty" doc:"task that became a dead letter"`
	Waiting int    `json:"waiting" doc:"number of blocked tasks"`
}

// MaxQueueLimit is the highest limit, weight and priority in the settings of a queue.
const MaxQueueLimit = 1 << 20

// QueueRules are the settings of a queue.
type QueueRules struct {
	Strategy        string       `json:"strategy" enum:"ordered,round_robin,priority,least_loaded"`
	Paused          bool         `json:"paused,omitempty" doc:"grants no tasks"`
	Draining        bool         `json:"draining,omitempty" doc:"accepts no new tasks and works on those that it has"`
	Concurrency     int          `json:"concurrency,omitempty" doc:"tasks granted at a time; 0: no limit"`
	NodeConcurrency int          `json:"node_concurrency,omitempty" doc:"tasks granted at a time to each node; 0: no limit"`
	Kinds           []KindLimit  `json:"kinds,omitempty"`
	Labels          []string     `json:"labels,omitempty" doc:"labels that a member must have"`
	Allow           []string     `json:"allow,omitempty" doc:"who may submit: peer:NAME, peer:ID, role:ROLE, *; empty: every member with the role send"`
	LeaseMs         int          `json:"lease_ms,omitempty" doc:"lease duration without a renewal; 0: the node's setting"`
	OnLostLease     string       `json:"on_lost_lease,omitempty" enum:"continue,stop" doc:"what happens to a handler whose lease cannot be renewed; empty: continue"`
	Homes           []string     `json:"homes,omitempty" doc:"preferred homes: the first of these nodes that is available"`
	Lanes           string       `json:"lanes,omitempty" enum:"origin,shared" doc:"which tasks with the same ordering key run one after the other: those of the same origin, or all"`
	MemberRules     []MemberRule `json:"member_rules,omitempty" doc:"rules for single nodes; if there are any, only these nodes work on it"`
}

// A KindLimit limits how many tasks of a kind are granted at a time.
type KindLimit struct {
	Kind            string `json:"kind"`
	Concurrency     int    `json:"concurrency,omitempty" doc:"in the whole queue; 0: no limit"`
	NodeConcurrency int    `json:"node_concurrency,omitempty" doc:"on each node; 0: no limit"`
}

// QueueCounts are the numbers of tasks of a queue at its home.
type QueueCounts struct {
	Waiting int `json:"waiting" doc:"waiting for their due time, for an earlier task or for a node"`
	Owned   int `json:"owned" doc:"granted to a node with an active lease"`
	Going   int `json:"going,omitempty" doc:"moving to another home"`
}

// A QueueMember is a node that could work on a queue.
type QueueMember struct {
	Name     string   `json:"name"`
	ID       string   `json:"id"`
	Alive    bool     `json:"alive" doc:"alive for long enough to get work"`
	Draining bool     `json:"draining,omitempty"`
	Kinds    []string `json:"kinds" doc:"kinds that it has handlers for"`
	Labels   []string `json:"labels,omitempty"`
	Slots    int      `json:"slots" doc:"handler slots, as announced by the node"`
	Busy     int      `json:"busy" doc:"busy handler slots, as announced by the node"`
	Priority int      `json:"priority,omitempty"`
	Owned    int      `json:"owned" doc:"tasks of this queue granted to it"`
}

// QueueSettings change a queue. A nil field leaves its setting unchanged; an empty list
// clears it.
type QueueSettings struct {
	Home            string        `json:"home,omitempty" doc:"here: creates the queue, if it is not known yet, with this node as its home"`
	Strategy        *string       `json:"strategy,omitempty" doc:"ordered, round_robin, priority or least_loaded"`
	Paused          *bool         `json:"paused,omitempty"`
	Draining        *bool         `json:"draining,omitempty"`
	Concurrency     *int          `json:"concurrency,omitempty"`
	NodeConcurrency *int          `json:"node_concurrency,omitempty"`
	Kinds           *[]KindLimit  `json:"kinds,omitempty"`
	Labels          *[]string     `json:"labels,omitempty"`
	Allow           *[]string     `json:"allow,omitempty"`
	LeaseMs         *int          `json:"lease_ms,omitempty"`
	OnLostLease     *string       `json:"on_lost_lease,omitempty" doc:"continue or stop"`
	Lanes           *string       `json:"lanes,omitempty" doc:"origin (default): tasks of the same origin with the same ordering key run one after the other; shared: those of all origins"`
	Homes           *[]string     `json:"homes,omitempty" doc:"names or ids of the preferred homes: the queue moves at once to the first of them that is available"`
	MemberRules     *[]MemberRule `json:"member_rules,omitempty" doc:"the nodes that work on it, in this order; empty: every node that serves the kind"`
}

// Seize names the home of a queue, or of a mailbox or topic of the mesh, to give up.
type Seize struct {
	From       string `json:"from" minLength:"1" maxLength:"128" doc:"name or id of the home to give up"`
	AcceptLoss bool   `json:"accept_loss,omitempty" doc:"must be true: accepts that what only that home knows is lost unless it comes back"`
}

// HandOff names the new home of a queue.
type HandOff struct {
	To string `json:"to,omitempty" maxLength:"128" doc:"name or id of the new home; default the best node"`
}

// UnblockLane names tasks that are blocked because the one before them died.
type UnblockLane struct {
	Key string `json:"key" minLength:"1" maxLength:"256" doc:"their ordering key"`
}

// A LeaseFilter selects leases. An empty field matches all.
type LeaseFilter struct {
	Queue string `query:"queue" maxLength:"128"`
	Owner string `query:"owner" maxLength:"128" doc:"name or id of the owner"`
	Role  string `query:"role" enum:"home,owner" doc:"home: granted by this node; owner: owned by it; default both"`
	Limit int    `query:"limit" minimum:"1" maximum:"1000" default:"50"`
}

// A Lease is the right of one node to run a task, as seen by its home or its owner.
type Lease struct {
	Task     string     `json:"task"`
	Queue    string     `json:"queue"`
	Kind     string     `json:"kind,omitempty"`
	Role     string     `json:"role" enum:"home,owner" doc:"role of this node"`
	Peer     string     `json:"peer" doc:"name of the other side: the owner at the home, the home at the owner"`
	PeerID   string     `json:"peer_id"`
	State    string     `json:"state" doc:"state of the task, as far as this node knows"`
	Epoch    string     `json:"epoch" doc:"boot.counter"`
	Attempts uint32     `json:"attempts"`
	Abandons uint32     `json:"abandons,omitempty" doc:"leases that were lost"`
	Cancel   bool       `json:"cancel_asked,omitempty"`
	Lapsed   bool       `json:"lapsed,omitempty" doc:"the lease has expired; its owner may still commit as long as no other node has the task"`
	Until    *time.Time `json:"until,omitempty" doc:"expiry time unless it is renewed"`
	Granted  *time.Time `json:"granted,omitempty"`
}

// A LeaseConflict is a rejected claim.
type LeaseConflict struct {
	Time   time.Time  `json:"time"`
	Task   string     `json:"task,omitempty"`
	Queue  string     `json:"queue,omitempty"`
	Mail   string     `json:"mail,omitempty" doc:"in place of a task: the mail that was settled too late, if its id is still known"`
	Box    string     `json:"box,omitempty" doc:"of that mail: its mailbox, or TOPIC/SUBSCRIPTION"`
	Peer   string     `json:"peer,omitempty" doc:"node that made the claim; not known of mail"`
	PeerID string     `json:"peer_id,omitempty"`
	Epoch  string     `json:"epoch" doc:"of a mail: the lease that did not count"`
	Cause  LeaseCause `json:"cause" example:"older_lease" doc:"a code; the documentation lists all"`
	State  string     `json:"state,omitempty" doc:"state in the result that came too late"`
	Digest string     `json:"digest,omitempty" doc:"digest of the result that came too late, algorithm:hex"`
}

// An OwnershipEvent is one ownership event on this node.
type OwnershipEvent struct {
	Number uint64     `json:"number" doc:"increases by one; pass it to read the events that follow"`
	Time   time.Time  `json:"time"`
	Kind   string     `json:"kind"`
	Task   string     `json:"task,omitempty"`
	Queue  string     `json:"queue,omitempty"`
	Peer   string     `json:"peer,omitempty" doc:"the owner, or the node that made the claim"`
	PeerID string     `json:"peer_id,omitempty"`
	Epoch  string     `json:"epoch,omitempty"`
	State  string     `json:"state,omitempty" doc:"of the task that ended"`
	Code   string     `json:"code,omitempty" doc:"of a refusal, such as FULL"`
	Cause  LeaseCause `json:"cause,omitempty" example:"not_renewed" doc:"a code; the documentation lists all; absent: the kind says it"`
	Detail string     `json:"detail,omitempty" doc:"text of the cause or the refusal"`
}

// Recover selects the leases to revoke.
type Recover struct {
	Owner  string `json:"owner,omitempty" maxLength:"128" doc:"name or id of a node that is not alive; default all nodes that are dead or have left"`
	DryRun bool   `json:"dry_run,omitempty" doc:"only list"`
}

// A Recovered lists the leases of lost owners that were revoked, or would be.
type Recovered struct {
	DryRun bool    `json:"dry_run"`
	Taken  []Lease `json:"taken" doc:"leases that were revoked, as they were; their tasks wait again or are already granted to other nodes"`
	Kept   []Lease `json:"kept" doc:"leases kept because their tasks may have been started and must not start twice"`
}

// Drain turns draining on or off.
type Drain struct {
	On bool `json:"on" doc:"false: accept tasks again"`
}

// A Drained reports what a drained node still has to do.
type Drained struct {
	On      bool     `json:"on"`
	Running int      `json:"running" doc:"running handlers"`
	Going   int      `json:"going" doc:"tasks and queues that are moving to another home"`
	Kept    []string `json:"kept,omitempty" doc:"queues whose home is still here because no other node can take them over"`
}

// Stop configures how the node stops.
type Stop struct {
	HandOff bool     `json:"handoff,omitempty" doc:"first hand over its queues; a node that cannot hand them over does not stop"`
	Within  Duration `json:"within,omitzero" example:"30s" doc:"time limit for the handover; default 30s"`
}
