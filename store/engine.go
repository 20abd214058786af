package store

import "fmt"

// An Engine keeps ordered bytes on disk. It is the small part that differs
// between NutsDB, Pebble and memory; everything else is in [Store].
//
// Commit, Compact and Close are called by one goroutine at a time (the
// committer); Get, Scan, Snapshot and Stats may be called by any number of
// goroutines concurrently. No slice passed in or returned is shared: engines
// copy on both sides. A read never returns data that is not durable yet:
// otherwise a caller could act on a commit that a power cut undoes.
type Engine interface {
	// Get returns a private copy of the value at key; ok is false when there is none.
	Get(b Bucket, key []byte) (val []byte, ok bool, err error)
	// Scan returns up to limit (at most 1000) pairs with start <= key < end in
	// ascending byte order. A nil start means the first key, a nil end no end.
	Scan(b Bucket, start, end []byte, limit int) ([]Pair, error)
	// Commit makes ops durable and visible, all or none, as if one after the
	// other: the last on a key wins. It returns nil only after the fsync. After
	// an error, which may leave the ops on disk or not, the engine must be closed.
	Commit(ops []Op) error
	// Compact returns the space of deleted data to the disk.
	Compact() error
	// Snapshot writes a consistent copy, which can be opened as an engine, into
	// dir, which must not exist yet.
	Snapshot(dir string) error
	// Stats describes the engine now.
	Stats() Stats
	// Close releases the files.
	Close() error
}

// An Op is one change: a put of Val at Key, or a delete.
type Op struct {
	Bucket Bucket
	Key    []byte
	Val    []byte // never nil in a put
	Delete bool
}

// A Pair is a key and its value as a scan returns them; both are the caller's.
type Pair struct {
	Key, Val []byte
}

// Stats describes an engine. Sizes are bytes on disk.
type Stats struct {
	Engine    string // "nuts", "pebble", "mem"
	DiskBytes int64  // size of the files
	LiveBytes int64  // keys and values of live records, an estimate
	Keys      int64  // live keys; -1 if the engine does not count them
	// CompactDue reports that the files are so much larger than the live data that
	// the next quiet moment should be used for Compact.
	CompactDue bool
}

// A Bucket is one ordered key space. Its number is the first byte of a key in
// Pebble and its name the bucket in NutsDB: neither may ever change.
type Bucket byte

// The buckets of a node.
const (
	PendingTasks Bucket = 1  // tasks that this node is the home of, until they end, and results on their way home
	Inbox        Bucket = 2  // tasks that this node took custody of
	Dedup        Bucket = 3  // settled marks, idempotency keys
	Done         Bucket = 4  // finished records
	DeadLetters  Bucket = 5  // ended without success, kept for a person
	Chunks       Bucket = 6  // progress of streamed bodies
	Leases       Bucket = 7  // owner and epoch
	Peers        Bucket = 8  // address book, certificates, key records
	Audit        Bucket = 9  // heads of the audit chain
	Flows        Bucket = 10 // workflow runs
	Meta         Bucket = 11 // schema, boot numbers, counters
)

// Buckets lists every bucket, in the order of their numbers.
func Buckets() []Bucket {
	return []Bucket{PendingTasks, Inbox, Dedup, Done, DeadLetters, Chunks, Leases, Peers, Audit, Flows, Meta}
}

var bucketNames = [...]string{
	PendingTasks: "PendingTasks", Inbox: "Inbox", Dedup: "Dedup", Done: "Done",
	DeadLetters: "DeadLetters", Chunks: "Chunks", Leases: "Leases", Peers: "Peers",
	Audit: "Audit", Flows: "Flows", Meta: "Meta",
}

// Valid reports whether b is one of the buckets.
func (b Bucket) Valid() bool { return b != 0 && int(b) < len(bucketNames) }

// String returns the bucket's name on disk.
func (b Bucket) String() string {
	if !b.Valid() {
		return fmt.Sprintf("Bucket(%d)", byte(b))
	}
	return bucketNames[b]
}
