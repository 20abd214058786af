package backlog

// An order defines how a heap sorts entries and where an entry stores its index.
type order interface {
	less(a, b *entry) bool
	set(e *entry, i int)
}

// byArrival is the order of ready entries: oldest first.
type byArrival struct{}

func (byArrival) less(a, b *entry) bool { return a.arrival < b.arrival }
func (byArrival) set(e *entry, i int)   { e.pos = int32(i) }

// byDue is the order of waiting entries.
type byDue struct{}

func (byDue) less(a, b *entry) bool {
	return a.due < b.due || a.due == b.due && a.arrival < b.arrival
}
func (byDue) set(e *entry, i int) { e.pos = int32(i) }

// byExpiry is the order in which entries expire.
type byExpiry struct{}

func (byExpiry) less(a, b *entry) bool { return a.expires < b.expires }
func (byExpiry) set(e *entry, i int)   { e.xpos = int32(i) }

// A heap is a binary heap of entries that store their index in it.
type heap[O order] struct {
	o     O
	items []*entry
}

func (h *heap[O]) len() int { return len(h.items) }

// first returns the first entry, nil when there is none.
func (h *heap[O]) first() *entry {
	if len(h.items) == 0 {
		return nil
	}
	return h.items[0]
}

func (h *heap[O]) push(e *entry) {
	h.items = append(h.items, e)
	h.up(len(h.items) - 1)
}

// remove removes the entry at index i.
func (h *heap[O]) remove(i int) {
	last := len(h.items) - 1
	h.o.set(h.items[i], -1)
	if i != last {
		h.items[i] = h.items[last]
	}
	h.items[last] = nil
	h.items = h.items[:last]
	if i != last {
		h.fix(i)
	}
	if c := cap(h.items); c > 1024 && last < c/4 {
		h.items = append(make([]*entry, 0, c/2), h.items...) // release the memory
	}
}

// fix restores the order after the entry at index i has changed.
func (h *heap[O]) fix(i int) {
	if !h.down(i) {
		h.up(i)
	}
}

// init restores the order after any entries have changed.
func (h *heap[O]) init() {
	for i := len(h.items)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
	for i, e := range h.items {
		h.o.set(e, i)
	}
}

func (h *heap[O]) up(i int) {
	e := h.items[i]
	for i > 0 {
		parent := (i - 1) / 2
		if !h.o.less(e, h.items[parent]) {
			break
		}
		h.items[i] = h.items[parent]
		h.o.set(h.items[i], i)
		i = parent
	}
	h.items[i] = e
	h.o.set(e, i)
}

func (h *heap[O]) down(i int) bool {
	e, from := h.items[i], i
	for {
		child := 2*i + 1
		if child >= len(h.items) {
			break
		}
		if child+1 < len(h.items) && h.o.less(h.items[child+1], h.items[child]) {
			child++
		}
		if !h.o.less(h.items[child], e) {
			break
		}
		h.items[i] = h.items[child]
		h.o.set(h.items[i], i)
		i = child
	}
	h.items[i] = e
	h.o.set(e, i)
	return i > from
}
