package main

import (
	"sync"

	"github.com/balefire/balefire/proto"
)

// A watch lets those who submitted a task wait until it has come to a state.
type watch struct {
	mu    sync.Mutex
	until proto.TaskState // 0: nobody waits
	early map[proto.TaskID]proto.TaskState
	waits map[proto.TaskID]chan<- proto.TaskState
}

func newWatch() *watch { return new(watch) }

// expect begins a load whose tasks count as there in this state.
func (w *watch) expect(s proto.TaskState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.until, w.early, w.waits = s, map[proto.TaskID]proto.TaskState{}, map[proto.TaskID]chan<- proto.TaskState{}
}

// changed is told of every change of a task.
func (w *watch) changed(id proto.TaskID, s proto.TaskState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.until == 0 || s != w.until && !s.Terminal() {
		return
	}
	if c := w.waits[id]; c != nil {
		delete(w.waits, id)
		c <- s // has room
		return
	}
	w.early[id] = s
}

// wait has c told the state once the task is there. c must have room for it.
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
