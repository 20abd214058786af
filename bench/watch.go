package main

import (
	"sync"

	"github.com/balefire/balefire/proto"
)

// A watch lets submitters wait until a task has reached a state.
type watch struct {
	mu    sync.Mutex
	until proto.TaskState // 0: no waiter
	early map[proto.TaskID]proto.TaskState
	waits map[proto.TaskID]chan<- proto.TaskState
}

func newWatch() *watch { return new(watch) }

// expect starts a load whose tasks count as done in this state.
func (w *watch) expect(s proto.TaskState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.until, w.early, w.waits = s, map[proto.TaskID]proto.TaskState{}, map[proto.TaskID]chan<- proto.TaskState{}
}

// changed is called for every change of a task.
func (w *watch) changed(id proto.TaskID, s proto.TaskState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.until == 0 || s != w.until && !s.Terminal() {
		return
	}
	if c := w.waits[id]; c != nil {
		delete(w.waits, id)
		c <- s // has a free slot
		return
	}
	w.early[id] = s
}

// wait sends to c once the task has reached the state. c must have a free slot in its
// buffer.
func (w *watch) wait(id proto.TaskID, c chan<- proto.TaskState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := w.early[id]; ok {
		delete(w.early, id)
		c <- s
		return
	}
	w.waits[id] = c
}
