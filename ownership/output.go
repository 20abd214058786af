package ownership

import (
	"container/list"
	"fmt"
	"iter"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Now is the time of an input, by the clocks of the node.
type Now struct {
	Wall int64         // Unix milliseconds: for not_after and for display, never for a lease
	Mono time.Duration // stops while the machine is suspended: for leases that a home granted
	Boot time.Duration // continues while the machine is suspended: for leases that an owner has

	Doubted bool // Wall is unreliable: nothing ends because of it
}

// past reports whether a wall time, in Unix milliseconds, has certainly passed.
func (n Now) past(at int64) bool { return n.Wall > at && !n.Doubted }

// A Token is drawn for each epoch: it distinguishes a grant from one with the same epoch
// that a rolled-back disk issued.
type Token [16]byte

// An Output is what an input asks for. Writes form one batch, together with what the ends
// require. Everything else happens once that batch and those of all earlier outputs are
// durable.
type Output struct {
	Writes     []Write
	Ends       []End
	Sends      []Send
	Orphans    []Orphan
	Events     []Event
	Waits      []proto.TaskID // leases that are on disk and wait for a slot: [Owner.Ready]
	Starts     []Start        // handlers to start
	Stops      []Stop         // handlers to stop; their end is reported to the [Owner] as usual
	HandedOff  []proto.TaskID // whose new homes have confirmed them: their records may be deleted here
	Probes     []proto.TaskID // handlers to ask whether the effect has happened: [Owner.Probed]
	BodyOffers []BodyOffer    // bodies that owners need

	bytes int // of the writes
}

// maxOutput is how many bytes an output may write before optional work is deferred: the
// store limits the size of a batch.
const maxOutput = 1 << 20

// full reports whether optional work should be deferred.
func (o *Output) full() bool { return o.bytes >= maxOutput }

// Empty reports whether the output asks for nothing.
func (o *Output) Empty() bool {
	return len(o.Writes)+len(o.Ends)+len(o.Sends)+len(o.Orphans)+len(o.Events)+len(o.Waits)+len(o.Starts)+len(o.Stops)+len(o.HandedOff)+len(o.Probes)+len(o.BodyOffers) == 0
}

// A Write puts a record into the Leases bucket, or deletes it when Val is nil.
type Write struct {
	Key string
	Val []byte
}

// size returns the bytes of a batch that w uses.
func (w Write) size() int { return len(w.Key) + len(w.Val) + writeCost }

const writeCost = 64

// A Send is a message for a node, which may be this one. A RESULT is an Outcome with only
// state, digest and lease; the driver has the rest.
type Send struct {
	To   proto.PeerID
	Type proto.MessageType
	Task proto.TaskID // of a RESULT
	Body proto.Body
}

// An End is the end of a task at its home. The terminal record and the result for the
// origin belong in the batch of the output.
type End struct {
	Task   proto.TaskID
	State  proto.TaskState
	Cause  proto.TaskCause // 0 for the end that its owner reports
	Reason string          // the detail of the cause, or what the owner says
	Code   proto.Code      // of the refusal that ended it; 0: it was not refused
	Digest []byte          // of the committed result; nil: the home ended the task itself
	From   proto.PeerID    // the owner of the result
	Epoch  proto.Seq
	Grants []*proto.Granting

	block string // key of the record that blocks its lane; empty: the lane continues
}

// An Orphan is a result that does not count. It is kept for display.
type Orphan struct {
	Task   proto.TaskID
	From   proto.PeerID
	Epoch  proto.Seq
	State  proto.TaskState
	Digest []byte
}

// A BodyOffer asks to offer the body of a task to its owner, which waits for it.
type BodyOffer struct {
	Task  proto.TaskID
	Owner proto.PeerID
}

// A Start asks to start a handler. The start is durable.
type Start struct {
	Task    proto.TaskID
	Epoch   proto.Seq
	Attempt uint32
	Early   bool // the handler may be called before the writes of the output are durable
}

// A Stop asks to stop a handler.
type Stop struct {
	Task   proto.TaskID
	Cause  string // why, for the log
	Cancel bool   // an operator cancelled the task at its home
	Hard   bool   // without letting the handler finish
}

// An Event is one entry of the ownership timeline.
type Event struct {
	Kind  EventKind
	Task  proto.TaskID
	Queue string
	Peer  proto.PeerID // the owner, or the sender of the claim
	Epoch proto.Seq
	State proto.TaskState // of an end, and of the one that blocks a lane
	Code  proto.Code      // of a refusal
	Cause wire.LeaseCause // empty: the kind says it
	// Detail is the argument of the cause or the code. A kind that is only counted has a text
	// for debugging.
	Detail string

	TaskKind string      // empty: not known here, as at an owner
	Class    proto.Class // likewise
	Attempt  uint32      // number of the newest attempt of the task; 0: none, or not known here
}

// of adds what the home knows of the task.
func (e Event) of(ts *taskState) Event {
	e.TaskKind, e.Class, e.Attempt = ts.task.Kind, ts.task.Class, ts.attempt()
	return e
}

// An EventKind is the kind of an [Event].
type EventKind byte

// The kinds of events.
const (
	EventGranted  EventKind = iota + 1
	EventTaken              // the owner acknowledged the grant
	EventDeclined           // the owner declined it
	EventReleased           // the owner gave the lease back
	EventLapsed             // the lease expired
	EventDead               // the owner is dead; its lease was taken back at once
	EventRevived            // a lapsed lease continues: no other node was granted one
	EventConflict           // a claim arrived that does not count: a row of `lease conflicts`
	EventPermitted
	EventIndeterminate
	EventEnded
	EventLate       // a result counted although the lease was over
	EventMovedOut   // the task went to another home
	EventMovedIn    // the task came here from another home
	EventSeized     // an operator made this node the home of the queue
	EventYielded    // another node is now the home of the queue
	EventBlocked    // the lane is blocked: its head failed and on_dead is block
	EventSkipped    // alarm: the clocks jumped or the node was suspended; no lease was reclaimed this round
	EventAdopted    // the owner continues under a higher epoch
	EventStarted    // the owner starts the handler
	EventLost       // the owner's lease is over; its result may not count
	EventResultLost // the owner has a result that does not count, or that no home takes
	EventStalled    // the handler reported no progress; its lease is not renewed
	EventRefused    // the owner refused an old copy of a grant
	EventCrashed    // the node died while the handler ran
	EventHomeMoved  // the owner reports to another home from now on
	EventForged     // alarm: a member sent what it is not authorized to send
	EventNotTaken   // alarm: the new home rejects a task that is handed over; it is sent again
	EventIgnored    // a message changed nothing: a late copy, or from a node without authority; only counted
)

var eventNames = [...]string{
	EventGranted: "granted", EventTaken: "taken", EventDeclined: "declined", EventReleased: "released", EventLapsed: "lapsed",
	EventDead: "owner_dead", EventRevived: "revived", EventConflict: "conflict", EventPermitted: "permitted",
	EventIndeterminate: "indeterminate", EventEnded: "ended", EventLate: "late_result", EventMovedOut: "moved_out",
	EventMovedIn: "moved_in", EventSeized: "seized", EventYielded: "yielded", EventBlocked: "lane_blocked",
	EventSkipped: "reclaim_skipped", EventAdopted: "adopted", EventStarted: "started", EventLost: "lease_lost", EventResultLost: "result_lost",
	EventStalled: "stalled", EventRefused: "old_grant_refused", EventCrashed: "crashed", EventHomeMoved: "home_moved",
	EventForged: "forged", EventNotTaken: "handoff_refused", EventIgnored: "ignored",
}

// String returns the name that people and the API see.
func (k EventKind) String() string {
	if int(k) < len(eventNames) && eventNames[k] != "" {
		return eventNames[k]
	}
	return fmt.Sprintf("event %d", byte(k))
}

// Prefixes of the keys in the Leases bucket.
const (
	keyLease     = 't' // + task id: the state of a task here, or of one that ended here
	keyMoved     = 'v' // + task id: where the task went
	keyOwner     = 'o' // + task id: a lease of this node
	keyQueue     = 'q' // + name
	keyBlock     = 'b' // + SHA-256 of queue, zero, origin, ordering key
	keyHomeBoot  = 'h' // + PeerID of this node: the boot number of its epochs
	keyCreation  = 'd' // + name: the deed by which this node, as an admin, created a queue
	keyWatermark = 's' // + PeerID of a home: its epochs up to this one will not be sent again

)

func taskKey(prefix byte, id proto.TaskID) string { return string(prefix) + string(id[:]) }

// each returns the values of a list, which are of type T. The present one may be removed
// meanwhile.
func each[T any](l *list.List) iter.Seq[T] {
	return func(yield func(T) bool) {
		for e := l.Front(); e != nil; {
			v := e.Value.(T)
			if e = e.Next(); !yield(v) {
				return
			}
		}
	}
}

// put writes a record. Records are created here and clipped to their limits, so a failure
// is a bug in this package.
func (o *Output) put(key string, m proto.Body) {
	val, err := proto.Encode(nil, m)
	if err != nil {
		panic(fmt.Sprintf("ownership: cannot encode a record: %v", err))
	}
	o.write(Write{Key: key, Val: val})
}

// ignored emits an event for a message that changes nothing.
func (o *Output) ignored(id proto.TaskID, from proto.PeerID, epoch proto.Seq, why string) {
	o.Events = append(o.Events, Event{Kind: EventIgnored, Task: id, Peer: from, Epoch: epoch, Detail: why})
}

func (o *Output) orphan(from proto.PeerID, k claim, in Result) {
	o.Orphans = append(o.Orphans, Orphan{Task: k.task, From: from, Epoch: k.epoch, State: in.State, Digest: in.Digest})
}

func (o *Output) drop(key string) { o.write(Write{Key: key}) }

func (o *Output) write(w Write) {
	o.Writes = append(o.Writes, w)
	o.bytes += w.size()
}

func (o *Output) send(to proto.PeerID, t proto.MessageType, body proto.Body) {
	o.Sends = append(o.Sends, Send{To: to, Type: t, Body: body})
}

// A claim is a proto.Claim in comparable form.
type claim struct {
	task  proto.TaskID
	epoch proto.Seq
	token Token
	boot  proto.BootID
	gen   uint64
}

// claimFrom reads a claim. ok is false when a field has a wrong size.
func claimFrom(m *proto.Claim) (k claim, ok bool) {
	if len(m.GetTask()) != len(k.task) || len(m.GetToken()) != len(k.token) || len(m.GetBootId()) != 0 && len(m.GetBootId()) != len(k.boot) {
		return k, false
	}
	copy(k.task[:], m.Task)
	copy(k.token[:], m.Token)
	copy(k.boot[:], m.BootId)
	k.epoch, k.gen = proto.Seq{Boot: m.EpochBoot, Counter: m.EpochCounter}, m.Generation
	return k, true
}

func (k claim) message() *proto.Claim {
	m := &proto.Claim{Task: k.task[:], EpochBoot: k.epoch.Boot, EpochCounter: k.epoch.Counter, Token: k.token[:], Generation: k.gen}
	if k.boot != (proto.BootID{}) {
		m.BootId = k.boot[:]
	}
	return m
}

// ruling returns the answer to k with a code.
func (k claim) ruling(code proto.Code) *proto.Ruling {
	return &proto.Ruling{Task: k.task[:], EpochBoot: k.epoch.Boot, EpochCounter: k.epoch.Counter, Code: code, Token: k.token[:], BootId: k.boot[:]}
}
