package inbox

import (
	"sync"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
)

// A fresh is a task as it was accepted, with its content, in memory of its own.
type fresh struct {
	stored  proto.Stored
	record  proto.Record
	content *proto.Content
	origin  proto.PeerID
	key     [32]byte
	digest  [32]byte
	bytes   int // counted in the cache
}

// Bounds of a freshCache.
const (
	maxFresh      = 1024    // tasks
	maxFreshBytes = 4 << 20 // of their contents, sealed and open, and freshOverhead for each
	freshOverhead = 2 << 10 // memory of a task besides its content
)

// A freshCache holds tasks that were just accepted, so that a run that begins soon need
// neither read nor open them. It is bounded and may drop tasks.
type freshCache struct {
	mu    sync.Mutex
	bytes int
	all   map[backlog.Key]*fresh
}

// size includes the content as it is encoded: it was compressed before it was sealed.
func (f *fresh) size() int {
	return len(f.stored.GetEnvelope().GetBody()) + proto.Size(f.content) + freshOverhead
}

// put caches a task that is about to be written, unless there is no room.
func (c *freshCache) put(k backlog.Key, f *fresh) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(k)
	if f.bytes = f.size(); len(c.all) < maxFresh && c.bytes+f.bytes <= maxFreshBytes {
		c.all[k] = f
		c.bytes += f.bytes
	}
}

// stored returns the record and the envelope of a task, nil if it is not cached. They belong to
// the job of the task.
func (c *freshCache) stored(k backlog.Key) *proto.Stored {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.all[k]; f != nil {
		return &f.stored
	}
	return nil
}

// take removes and returns a task, nil if it is not cached.
func (c *freshCache) take(k backlog.Key) *fresh {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drop(k)
}

// drop is take with mu held.
func (c *freshCache) drop(k backlog.Key) *fresh {
	f := c.all[k]
	if f != nil {
		delete(c.all, k)
		c.bytes -= f.bytes
	}
	return f
}
