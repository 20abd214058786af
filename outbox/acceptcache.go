package outbox

import (
	"sync"

	"github.com/balefire/balefire/store/backlog"
)

// acceptCacheEntries is how many records an acceptCache holds.
const acceptCacheEntries = 1024

// An acceptCache holds the records of the tasks that were accepted last, so that a result
// that comes soon can be committed without reading the record. The newest replaces the
// oldest.
type acceptCache struct {
	mu    *sync.Mutex
	edits map[backlog.Key]backlog.Edit
	ring  []backlog.Key
	next  int // index in ring of the oldest
}

func newAcceptCache() acceptCache {
	return acceptCache{mu: new(sync.Mutex), edits: map[backlog.Key]backlog.Edit{}, ring: make([]backlog.Key, acceptCacheEntries)}
}

// put caches the record of ed, which nobody may use any more. Its version must not be newer
// than the record; if it is older the record is read when it is needed.
func (c *acceptCache) put(ed backlog.Edit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.edits, c.ring[c.next])
	c.edits[ed.Key], c.ring[c.next] = ed, ed.Key
	c.next = (c.next + 1) % len(c.ring)
}

// take removes and returns an edit of an entry, without a record if that is not cached.
func (c *acceptCache) take(k backlog.Key) backlog.Edit {
	c.mu.Lock()
	defer c.mu.Unlock()
	ed, ok := c.edits[k]
	if !ok {
		return backlog.Edit{Key: k}
	}
	delete(c.edits, k)
	return ed
}
