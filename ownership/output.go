package ownership

import (
	"fmt"
	"time"

	"github.com/balefire/balefire/proto"
)

// Now is when an input came, by the clocks of the node.
type Now struct {
	Wall int64         // Unix milliseconds: for not_after and for people, never for a lease
	Mono time.Duration // stands still while the machine is suspended: for the leases that a home gave
	Boot time.Duration // goes on while it is suspended: for the leases that an owner has

	Doubted bool // Wall is: nothing ends by it
}

// past reports whether a wall time, Unix milliseconds, is over for certain.
func (n Now) past(at int64) bool { return n.Wall > at && !n.Doubted }

// A Token is drawn with each epoch: it tells a grant from one of the same number
// that a rolled-back disk gave out.
type Token [16]byte

// An Output is what an input asks for. Writes are one batch, with whatever the
// ends call for. Everything else happens once that batch, and those of all earlier
// outputs, are durable.
type Output struct {
	Writes     []Write
	Ends       []End
	Sends      []Send
	Orphans    []Orphan
	Events     []Event
	Waits      []proto.TaskID // leases that are on disk and wait for a slot: [Owner.Ready]
	Starts     []Start        // handlers to start
	Stops      []Stop         // handlers to stop; their end is told to the [Owner] as ever
	HandedOff  []proto.TaskID // whose records their new homes have: they may be deleted here
	Probes     []proto.TaskID // ask the handler whether its effect has happened: [Owner.Probed]
	BodyOffers []BodyOffer    // bodies that owners wait for

	bytes int // of the writes
}

// maxOutput is how many bytes an output may write before what can wait does so: the
// store takes no batch of any size.
const maxOutput = 1 << 20

// full reports whether what can wait should.
func (o *Output) full() bool { return o.bytes >= maxOutput }

// Empty reports whether nothing is asked for.
func (o *Output) Empty() bool {
	return len(o.Writes)+len(o.Ends)+len(o.Sends)+len(o.Orphans)+len(o.Events)+len(o.Waits)+len(o.Starts)+len(o.Stops)+len(o.HandedOff)+len(o.Probes)+len(o.BodyOffers) == 0
}

// A Write puts a record into the bucket of leases, or deletes it when Val is nil.
type Write struct {
	Key string
	Val []byte
}

// size is what w takes up of a batch.
func (w Write) size() int { return len(w.Key) + len(w.Val) + writeCost }

const writeCost = 64

// A Send is a message for a node, which may be this one. A RESULT is an Outcome
// with state, digest and lease alone: its driver has the rest.
type Send struct {
	To   proto.PeerID
	Type proto.MessageType
	Task proto.TaskID // of a RESULT
	Body proto.Body
}

// An End is the end of a task at its home. The terminal record, and the result on
// its way to the origin, belong into the batch of the output.
type End struct {
	Task   proto.TaskID
	Queue  string
	State  proto.TaskState
	Reason string
	Digest []byte       // of the committed result; nil: the home ended it itself
	From   proto.PeerID // whose result it is
	Epoch  proto.Seq
	Grants []*proto.Granting

	block string // key of the record of its lane, which stands still from now on; empty: it goes on
}

// An Orphan is a result that does not count, kept and shown.
type Orphan struct {
	Task   proto.TaskID
	From   proto.PeerID
	Epoch  proto.Seq
	State  proto.TaskState
	Digest []byte
}

// A BodyOffer tells to offer the body of a task to its owner, which waits for it.
type BodyOffer struct {
	Task  proto.TaskID
	Owner proto.PeerID
}

// A Start tells to start a handler. Its start is durable.
type Start struct {
	Task    proto.TaskID
	Epoch   proto.Seq
	Attempt uint32
}

// A Stop tells to stop a handler.
type Stop struct {
	Task   proto.TaskID
	Cause  string
	Cancel bool // a person wants it, by its home
}

// An Event is one line of the timeline of ownership.
type Event struct {
	Kind  EventKind
	Task  proto.TaskID
	Queue string
	Peer  proto.PeerID // the owner, or who made the claim
	Epoch proto.Seq
	Cause string
}

// An EventKind says what happened.
type EventKind byte

// The kinds of events.
const (
	EventGranted  EventKind = iota + 1
	EventTaken              // the owner acknowledged the grant
	EventDeclined           // or did not want it
	EventReleased           // the owner gave the lease back
	EventLapsed             // the lease ran out
	EventDead               // the owner is dead; its lease was taken back at once
	EventRevived            // a lapsed lease goes on: nobody was granted it meanwhile
	EventConflict           // a claim came that does not count: a row of `lease conflicts`
	EventPermitted
	EventIndeterminate
	EventEnded
	EventLate      // a result counted although the lease was over
	EventMovedOut  // the task went to another home
	EventMovedIn   // and came here
	EventSeized    // a person made this node the home of the queue
	EventYielded   // another node is the home of the queue now
	EventBlocked   // the lane stands still: its head died and on_dead is block
	EventSkipped   // alarm: the clocks jumped or the node stood still; no lease was taken back this round
	EventAdopted   // the owner goes on under a higher epoch
	EventStarted   // the owner starts the handler
	EventLost      // the owner's lease is over; what it does may not count
	EventStalled   // the handler showed no progress; its lease is not renewed
	EventRefused   // the owner refused an old copy of a grant
	EventCrashed   // the node died while the handler ran
	EventHomeMoved // the owner speaks to another home from now on
	EventForged    // alarm: a member said what it has no right to say
	EventNotTaken  // alarm: the new home refuses a task that is handed over; it is sent again
	EventIgnored   // what came changes nothing: a late copy, or no word of who may say it; counted alone
)

var eventNames = [...]string{
	EventGranted: "granted", EventTaken: "taken", EventDeclined: "declined", EventReleased: "released", EventLapsed: "lapsed",
	EventDead: "owner_dead", EventRevived: "revived", EventConflict: "conflict", EventPermitted: "permitted",
	EventIndeterminate: "indeterminate", EventEnded: "ended", EventLate: "late_result", EventMovedOut: "moved_out",
	EventMovedIn: "moved_in", EventSeized: "seized", EventYielded: "yielded", EventBlocked: "lane_blocked",
	EventSkipped: "reclaim_skipped", EventAdopted: "adopted", EventStarted: "started", EventLost: "lease_lost",
	EventStalled: "stalled", EventRefused: "old_grant_refused", EventCrashed: "crashed", EventHomeMoved: "home_moved",
	EventForged: "forged", EventNotTaken: "handoff_refused", EventIgnored: "unheeded",
}

// String names the kind as people and the API read it.
func (k EventKind) String() string {
	if int(k) < len(eventNames) && eventNames[k] != "" {
		return eventNames[k]
	}
	return fmt.Sprintf("event %d", byte(k))
}

// Prefixes of the keys in the bucket of leases.
const (
	keyLease     = 't' // + task id: the cell of a task, here or ended here
	keyMoved     = 'v' // + task id: where its cell went
	keyOwner     = 'o' // + task id: a lease of this node
	keyQueue     = 'q' // + name
	keyBlock     = 'b' // + SHA-256 of queue, zero, origin, ordering key
	keyHomeBoot  = 'h' // + PeerID of this node: the boot number of its epochs
	keyCreation  = 'd' // + name: the deed by which this node, an admin, has signed that a queue is made
	keyWatermark = 's' // + PeerID of a home: the epochs that it will not send again

)

func taskKey(prefix byte, id proto.TaskID) string { return string(prefix) + string(id[:]) }

// put writes a record. Records are made here and clipped to their limits: one that
// cannot be written is a fault of this package.
func (o *Output) put(key string, m proto.Body) {
	val, err := proto.Encode(nil, m)
	if err != nil {
		panic(fmt.Sprintf("ownership: a record that cannot be written: %v", err))
	}
	o.write(Write{Key: key, Val: val})
}

func (o *Output) drop(key string) { o.write(Write{Key: key}) }

func (o *Output) write(w Write) {
	o.Writes = append(o.Writes, w)
	o.bytes += w.size()
}

func (o *Output) send(to proto.PeerID, t proto.MessageType, body proto.Body) {
	o.Sends = append(o.Sends, Send{To: to, Type: t, Body: body})
}

// A claim is a proto.Claim as it is compared.
type claim struct {
	task  proto.TaskID
	epoch proto.Seq
	token Token
	boot  proto.BootID
	gen   uint64
}

// claimFrom reads a claim; ok is false when a part of it has a wrong size.
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

// ruling answers k.
func (k claim) ruling(code proto.Code) *proto.Ruling {
	return &proto.Ruling{Task: k.task[:], EpochBoot: k.epoch.Boot, EpochCounter: k.epoch.Counter, Code: code, Token: k.token[:], BootId: k.boot[:]}
}
