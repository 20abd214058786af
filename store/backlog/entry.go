package backlog

import (
	"encoding/hex"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// A Part tells apart the entries that one task may have at a node.
type Part byte

// The parts.
const (
	PartTask   Part = 't' // the task itself
	PartResult Part = 'r' // its result on the way home
	PartCancel Part = 'c' // the wish to stop it, on the way to its owner
)

// String returns the part's name.
func (p Part) String() string {
	switch p {
	case PartTask:
		return "task"
	case PartResult:
		return "result"
	case PartCancel:
		return "cancel"
	}
	return fmt.Sprintf("part %d", byte(p))
}

// A Key names an entry.
type Key struct {
	ID   proto.TaskID
	Part Part
}

// TaskKey names the entry of the task itself.
func TaskKey(id proto.TaskID) Key { return Key{id, PartTask} }

// String returns the id, and the part unless it is the task.
func (k Key) String() string {
	if k.Part == PartTask {
		return k.ID.String()
	}
	return k.ID.String() + "/" + k.Part.String()
}

// An entry has up to two records on disk: key + kind.
const (
	kindInitial = 0 // proto.Stored, written once
	kindState   = 1 // proto.Record, overrides the one in the birth
	keySize     = 16 + 1 + 1
)

// append encodes k with the kind of a record behind dst.
func (k Key) append(dst []byte, kind byte) []byte {
	dst = append(dst, k.ID[:]...)
	return append(dst, byte(k.Part), kind)
}

func parseKey(b []byte) (k Key, kind byte, err error) {
	if len(b) != keySize || b[keySize-1] > kindState {
		return k, 0, fmt.Errorf("%w: %s is no key of a backlog", store.ErrCorrupt, hex.EncodeToString(b))
	}
	copy(k.ID[:], b)
	k.Part = Part(b[16])
	return k, b[17], nil
}

// A place is where an entry stands in memory.
type place uint8

const (
	adding       place = iota // reserved, not yet on disk
	queuedBehind              // not the first of its lane
	waiting                   // for its time
	ready                     // to be taken
	taken                     // by a worker of the caller
	parked                    // waits for an event, not for a time
	changing                  // in no heap while a change of it is being written
	removed                   // finished
	blocking                  // dead, and holds its lane until a person has decided
)

// An entry is what memory keeps of a task: 88 bytes beside its place in the map
// and the heaps.
type entry struct {
	key        Key
	class      uint8 // proto.Class, never unspecified
	state      uint8 // proto.TaskState
	place      place
	busy       bool // a change of it is being written
	absolute   bool // due is what the task asked for, by the wall
	hasInitial bool // there is a birth on disk
	attempts   uint8
	version    uint32 // changes written; 0: there is no state on disk
	size       uint32 // bytes of the birth
	group      *group
	lane       *lane
	tenant     *tenant
	arrival    uint64 // rises from entry to entry
	due        int64  // milliseconds of the backlog's own time
	expires    int64  // Unix milliseconds, 0 never
	pos        int32  // in the heap of its place
	xpos       int32  // in the heap of expiries, -1 when not in it
}

// isTombstone reports whether e has ended and only its record is left.
func (e *entry) isTombstone() bool {
	return !e.hasInitial && !e.busy && e.place == parked && proto.TaskState(e.state).Terminal()
}

// An Item is an entry as it is handed out.
type Item struct {
	Key      Key
	Version  uint32 // changes so far; a record read at this version is still good while it stands
	Class    proto.Class
	State    proto.TaskState
	Attempts int // spent, at most 255
	Size     int // bytes of the stored birth
}

func (e *entry) item() Item {
	return Item{e.key, e.version, proto.Class(e.class), proto.TaskState(e.state), int(e.attempts), int(e.size)}
}
