package backlog

import (
	"encoding/hex"
	"fmt"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// A Part distinguishes the entries that one task may have at a node.
type Part byte

// The parts.
const (
	PartTask   Part = 't' // the task itself
	PartResult Part = 'r' // its result on the way to its home
	PartCancel Part = 'c' // its cancellation, on the way to its owner
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
	kindState   = 1 // proto.Record, overrides the one in the initial record
	keySize     = 16 + 1 + 1
)

// append appends k with the kind of a record to dst.
func (k Key) append(dst []byte, kind byte) []byte {
	dst = append(dst, k.ID[:]...)
	return append(dst, byte(k.Part), kind)
}

func parseKey(b []byte) (k Key, kind byte, err error) {
	if len(b) != keySize || b[keySize-1] > kindState {
		return k, 0, fmt.Errorf("%w: %s is not a key of a backlog", store.ErrCorrupt, hex.EncodeToString(b))
	}
	copy(k.ID[:], b)
	k.Part = Part(b[16])
	return k, b[17], nil
}

// A place is the scheduling state of an entry in memory.
type place uint8

const (
	adding       place = iota // reserved, not yet on disk
	queuedBehind              // not the first of its lane
	waiting                   // for its due time
	ready                     // can be taken
	taken                     // by a worker of the caller
	parked                    // waits for an event, not for a time
	changing                  // in no heap while a change of it is being written
	removed                   // no longer in the backlog
	blocking                  // dead, and blocks its lane until a person decides
)

// An entry is the in-memory part of a task: 88 bytes, plus its slots in the map
// and the heaps.
type entry struct {
	key        Key
	class      uint8 // proto.Class, never unspecified
	state      uint8 // proto.TaskState
	place      place
	busy       bool   // a change of it is being written
	absolute   bool   // due is a wall-clock time that the task asked for
	hasInitial bool   // there is an initial record on disk
	version    uint32 // number of changes written; 0: there is no state on disk
	size       uint32 // bytes of the initial record
	group      *group
	lane       *lane
	tenant     *tenant
	arrival    uint64 // rises from entry to entry
	due        int64  // milliseconds of the steadyClock
	expires    int64  // Unix milliseconds, 0 never
	pos        int32  // index in the heap of its place
	xpos       int32  // index in the expiry heap, -1 if not in it
}

// isTombstone reports whether e has ended and only its record is left.
func (e *entry) isTombstone() bool {
	return !e.hasInitial && !e.busy && e.place == parked && proto.TaskState(e.state).Terminal()
}

// An Item is an entry as returned to callers.
type Item struct {
	Key     Key
	Version uint32 // number of changes so far; a record read at this version is valid while it is unchanged
	Class   proto.Class
	State   proto.TaskState
}

func (e *entry) item() Item {
	return Item{e.key, e.version, proto.Class(e.class), proto.TaskState(e.state)}
}
