package wire

import (
	"io"
	"time"
)

// A Request describes a task to submit. Target and Kind are required.
type Request struct {
	Target    string            `json:"target" minLength:"1" doc:"where it runs: a peer's name or id, or queue:NAME"`
	Kind      string            `json:"kind" minLength:"1" maxLength:"128" doc:"which handler"`
	Class     string            `json:"class,omitempty" enum:"critical,high,normal,low" doc:"default normal"`
	Mode      string            `json:"mode,omitempty" enum:"at_least_once,at_most_once" doc:"after a crash during a run: run it again, or never; default at_least_once"`
	TTL       Duration          `json:"ttl,omitzero" example:"24h" doc:"not started after this; default 7d, at most 30d"`
	Delay     Duration          `json:"delay,omitzero" example:"90s" doc:"not sent before; not together with at"`
	At        time.Time         `json:"at,omitzero" doc:"not sent before"`
	Key       string            `json:"key,omitempty" maxLength:"256" doc:"idempotency key, like the header; auto: derived from the content"`
	Order     string            `json:"order,omitempty" maxLength:"256" doc:"ordering key: tasks with the same key run one after the other"`
	OnDead    string            `json:"on_dead,omitempty" enum:"skip,block" doc:"after a dead task with the same ordering key; default skip"`
	Args      []string          `json:"args,omitempty" stream:"arg" maxItems:"256" doc:"appended to the handler's arguments, if it allows that"`
	Body      []byte            `json:"body,omitempty" stream:"-" doc:"input of the handler; alternative to text"`
	Stream    io.Reader         `json:"-"` // instead of Body: input of any size, read to its end by Submit
	Type      string            `json:"type,omitempty" maxLength:"255" doc:"content type of the body"`
	Labels    map[string]string `json:"labels,omitempty" stream:"label" doc:"free labels, at most 32"`
	Trace     string            `json:"traceparent,omitempty" doc:"W3C trace context, like the header of that name; without a valid one the task gets a new one with the sampled flag"`
	Retries   uint32            `json:"retries,omitempty" minimum:"0" maximum:"4294967295" doc:"attempts of the handler, up to what it allows; default its own"`
	MaxResult int64             `json:"max_result,omitempty" minimum:"0" doc:"largest result in bytes, up to the handler's limit; default that limit"`
	Require   []string          `json:"require,omitempty" maxItems:"32" doc:"labels that the node must have; only for a queue"`
	Prefer    []string          `json:"prefer,omitempty" maxItems:"32" doc:"labels that the node should have: nodes with all of them are preferred"`
}

// Limits of a batch of tasks.
const (
	MaxBatch      = 1000     // tasks
	MaxBatchBytes = 10 << 20 // of the document, in bytes
)

// A Batch is the answer to a batch of tasks, in their order.
type Batch struct {
	Accepted int         `json:"accepted" doc:"how many are on disk"`
	Failed   int         `json:"failed"`
	Items    []BatchItem `json:"items" doc:"one for each task, in the order they were given"`
}

// A BatchItem is the result of one task of a batch.
type BatchItem struct {
	Status  int        `json:"status" doc:"202, or the status of the problem"`
	Task    *Submitted `json:"task,omitempty"`
	Problem *Problem   `json:"problem,omitempty"`
}

// A Query selects tasks. The zero value selects all.
type Query struct {
	States []string  `json:"states,omitempty" query:"state" doc:"like PENDING,SENT"`
	Role   string    `json:"role,omitempty" query:"role" enum:"home,owner" doc:"role of this node for the task; default both"`
	Peer   string    `json:"peer,omitempty" query:"peer" doc:"name or id of the other side"`
	Kind   string    `json:"kind,omitempty" query:"kind"`
	Label  string    `json:"label,omitempty" query:"label" doc:"name=value"`
	Before time.Time `json:"before,omitzero" query:"before" doc:"created before"`
	After  time.Time `json:"after,omitzero" query:"after" doc:"created after"`
	Oldest bool      `json:"-"` // the oldest first; default the newest
	Cursor string    `json:"-"` // Next of the previous page
	Limit  int       `json:"-"` // of a page; default 50, at most 1000
}

// Cancel configures how a task is canceled.
type Cancel struct {
	Hard   bool   `json:"hard,omitempty" doc:"kill the whole process group; otherwise the handler is asked to stop"`
	Reason string `json:"reason,omitempty" maxLength:"1024"`
}

// Reclass is the new class of a task.
type Reclass struct {
	Class string `json:"class" enum:"critical,high,normal,low"`
}

// Requeue is the new queue of a task.
type Requeue struct {
	Queue string `json:"queue" minLength:"1" maxLength:"63" doc:"its name, without queue: before it"`
}

// Purge selects the ended tasks to remove.
type Purge struct {
	Query
	DryRun bool `json:"dry_run,omitempty" doc:"only count"`
}

// Purged is the result of a purge, or what it would remove.
type Purged struct {
	Tasks  int  `json:"tasks"`
	DryRun bool `json:"dry_run"`
}

// A Redrive selects the dead letters to repeat: those with the given ids, or those that a
// query selects and that have not been repeated yet.
type Redrive struct {
	IDs []string `json:"ids,omitempty" maxItems:"1000"`
	Query
	All    bool `json:"all,omitempty" doc:"required when neither ids nor a filter is given; not with ids, nor is a filter"`
	DryRun bool `json:"dry_run,omitempty" doc:"only list them, with the problem of each that cannot be repeated"`
}

// Redriven is the result of a Redrive.
type Redriven struct {
	Items  []RedrivenItem `json:"items"`
	Failed int            `json:"failed"`
	More   bool           `json:"more" doc:"there were more than one request can take: repeat it"`
	DryRun bool           `json:"dry_run"`
}

// A RedrivenItem is one dead letter.
type RedrivenItem struct {
	ID      string     `json:"id" doc:"of the dead letter"`
	Task    *Submitted `json:"task,omitempty" doc:"the new task"`
	Problem *Problem   `json:"problem,omitempty"`
}
