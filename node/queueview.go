package node

import "time"

// A Queue is a shared queue as this node knows it. Counts and members are known at
// its home alone.
type Queue struct {
	Name       string `json:"name"`
	Home       string `json:"home" doc:"name of the node that decides about it"`
	HomeID     string `json:"home_id"`
	Here       bool   `json:"here" doc:"this node is its home"`
	Generation uint64 `json:"generation" doc:"rises with each handoff and seizure of the home"`
	SeizedFrom string `json:"seized_from,omitempty" doc:"the home that a person gave up"`
	QueueRules
	QueueCounts
	Alarm   *QueueAlarm   `json:"alarm,omitempty" doc:"its home is gone"`
	Members []QueueMember `json:"members" doc:"who could work on it, as its home sees them"`
	Blocked []BlockedLane `json:"blocked,omitempty" doc:"ordering keys whose tasks stand still, at its home"`
	Changed *time.Time    `json:"changed,omitempty"`
}

// A BlockedLane is the tasks of one ordering key that stand still because the one
// before them died and its on_dead is block.
type BlockedLane struct {
	Key     string `json:"key"`
	Origin  string `json:"origin,omitempty" doc:"whose tasks stand still; empty: those of all, the lanes of the queue are shared"`
	Died    string `json:"died,omitempty" doc:"the task that died"`
	Waiting int    `json:"waiting" doc:"tasks that stand still"`
}

// QueueRules are what a person has set for a queue.
type QueueRules struct {
	Strategy        string       `json:"strategy" enum:"ordered,round_robin,priority,least_loaded"`
	Paused          bool         `json:"paused,omitempty" doc:"grants nothing"`
	Draining        bool         `json:"draining,omitempty" doc:"takes no new tasks; those that are in it are worked on"`
	Concurrency     int          `json:"concurrency,omitempty" doc:"tasks that are owned at a time; 0: no limit"`
	NodeConcurrency int          `json:"node_concurrency,omitempty" doc:"likewise on each node"`
	Kinds           []KindLimit  `json:"kinds,omitempty"`
	Labels          []string     `json:"labels,omitempty" doc:"that a member must have"`
	Allow           []string     `json:"allow,omitempty" doc:"who may submit: peer:NAME, peer:ID, role:ROLE, *; empty: every member with the role send"`
	LeaseMs         int          `json:"lease_ms,omitempty" doc:"of a grant without a renewal; 0: the node's setting"`
	OnLostLease     string       `json:"on_lost_lease,omitempty" enum:"continue,stop" doc:"what a handler does that cannot be renewed; empty: continue"`
	Homes           []string     `json:"homes,omitempty" doc:"nodes that shall be its home: the first of them that is there"`
	Lanes           string       `json:"lanes,omitempty" enum:"origin,shared" doc:"whose tasks with one ordering key follow each other: those of each origin, or those of all"`
	MemberRules     []MemberRule `json:"member_rules,omitempty" doc:"of single nodes; when there are any, nobody else works on it"`
}

// A KindLimit bounds how many tasks of a kind are owned at a time.
type KindLimit struct {
	Kind            string `json:"kind"`
	Concurrency     int    `json:"concurrency,omitempty" doc:"in the whole queue; 0: no limit"`
	NodeConcurrency int    `json:"node_concurrency,omitempty" doc:"on each node; 0: no limit"`
}

// QueueCounts are the tasks of a queue at its home.
type QueueCounts struct {
	Waiting int `json:"waiting" doc:"for a time, a turn or a node"`
	Owned   int `json:"owned" doc:"granted to a node under a lease that is not over"`
	Going   int `json:"going,omitempty" doc:"on their way to another home"`
}

// A QueueMember is a node that could work on a queue.
type QueueMember struct {
	Name     string   `json:"name"`
	ID       string   `json:"id"`
	Alive    bool     `json:"alive" doc:"and so for long enough to be trusted with work"`
	Draining bool     `json:"draining,omitempty"`
	Kinds    []string `json:"kinds" doc:"that it has handlers for"`
	Labels   []string `json:"labels,omitempty"`
	Slots    int      `json:"slots" doc:"for handlers, as it says"`
	Busy     int      `json:"busy" doc:"of them, as it says"`
	Priority int      `json:"priority,omitempty"`
	Owned    int      `json:"owned" doc:"tasks of this queue that it has"`
}

// QueueSettings change a queue. What is nil stays as it is; an empty list clears.
type QueueSettings struct {
	Home            string        `json:"home,omitempty" doc:"here: makes a queue that is not known yet, with this node as its home"`
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
	Lanes           *string       `json:"lanes,omitempty" doc:"origin (default): tasks of one origin with one ordering key follow each other; shared: those of all origins"`
	Homes           *[]string     `json:"homes,omitempty" doc:"names or ids of the nodes that shall be its home: it goes to the first of them that is there, at once"`
	MemberRules     *[]MemberRule `json:"member_rules,omitempty" doc:"the nodes that work on it, in their order; empty: every node that serves the kind"`
}

// A LeaseFilter picks leases. Empty fields match all.
type LeaseFilter struct {
	Queue string
	Owner string // a peer's name or id
	Role  string // home: given by this node; owner: that it has; empty: both
	Limit int    // default 50, at most 1000
}

// A Lease is the right of one node to run a task, as its home or as its owner
// sees it.
type Lease struct {
	Task     string     `json:"task"`
	Queue    string     `json:"queue"`
	Kind     string     `json:"kind,omitempty"`
	Role     string     `json:"role" enum:"home,owner" doc:"what this node is to it"`
	Peer     string     `json:"peer" doc:"name of the other side: the owner at the home, the home at the owner"`
	PeerID   string     `json:"peer_id"`
	State    string     `json:"state" doc:"of the task at its home; how far it came at its owner"`
	Epoch    string     `json:"epoch" doc:"boot.counter"`
	Attempts uint32     `json:"attempts"`
	Abandons uint32     `json:"abandons,omitempty" doc:"leases that were lost"`
	Cancel   bool       `json:"cancel_asked,omitempty"`
	Lapsed   bool       `json:"lapsed,omitempty" doc:"it is over; its owner may still commit while nobody else has the task"`
	Until    *time.Time `json:"until,omitempty" doc:"it ends then unless it is renewed"`
	Granted  *time.Time `json:"granted,omitempty"`
}

// A LeaseConflict is a claim that did not count.
type LeaseConflict struct {
	Time   time.Time `json:"time"`
	Task   string    `json:"task"`
	Queue  string    `json:"queue,omitempty"`
	Peer   string    `json:"peer" doc:"who made the claim"`
	PeerID string    `json:"peer_id"`
	Epoch  string    `json:"epoch"`
	Cause  string    `json:"cause"`
	State  string    `json:"state,omitempty" doc:"of the result that came too late"`
	Digest string    `json:"digest,omitempty" doc:"of the result that came too late, algorithm:hex"`
}

// An OwnershipEvent is one line of the timeline of ownership at this node.
type OwnershipEvent struct {
	Number uint64    `json:"number" doc:"rises by one; where to go on reading"`
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"`
	Task   string    `json:"task,omitempty"`
	Queue  string    `json:"queue,omitempty"`
	Peer   string    `json:"peer,omitempty" doc:"the owner, or who made the claim"`
	PeerID string    `json:"peer_id,omitempty"`
	Epoch  string    `json:"epoch,omitempty"`
	Cause  string    `json:"cause,omitempty"`
}

// A Recovered says which leases of lost owners were taken back, or would be.
type Recovered struct {
	DryRun bool    `json:"dry_run"`
	Taken  []Lease `json:"taken" doc:"as they were; their tasks wait again, or are with others by now"`
	Kept   []Lease `json:"kept" doc:"of tasks that may have been started, and may be started once only"`
}

// A Drained says what a node that takes nothing new still has to do.
type Drained struct {
	On      bool     `json:"on"`
	Running int      `json:"running" doc:"handlers at work"`
	Going   int      `json:"going" doc:"tasks and queues on their way to another home"`
	Kept    []string `json:"kept,omitempty" doc:"queues whose home is still here: nobody is there to take them over"`
}
