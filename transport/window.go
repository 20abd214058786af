package transport

import "time"

// Bounds of a window. 1024 tasks keep a disk busy whose commit takes milliseconds; 2 MiB
// are 17 ms of a gigabit.
const (
	minTasks = 1024
	minBytes = 2 << 20
	maxTasks = 16 << 10
	maxBytes = 16 << 20
)

// A window bounds what is sent but not acknowledged to twice what the path and the
// receiver carry in the time of an Ack, so that control messages and the next urgent task
// never wait behind a large backlog.
//
// rate × time is what was in flight when a frame was sent, over the time that its Ack
// took, scaled to the shortest such time on this stream. (The time under load would grow
// with the backlog that it is meant to bound; a path change means a new connection with a
// new window.)
type window struct {
	frames []inflight // unacknowledged, oldest first
	head   int        // of frames
	bytes  int        // of all of them
	next   uint64     // number of the next frame, from 1

	tasksMax, bytesMax int
	minRTT             time.Duration // shortest time to an Ack; 0: none yet
	round              uint64        // the limits are updated by this frame's Ack
}

// An inflight is a frame in flight, with the totals when it was sent.
type inflight struct {
	bytes             int
	at                time.Duration
	allTasks, allSize int
}

func newWindow() *window { return &window{next: 1, tasksMax: minTasks, bytesMax: minBytes} }

// len returns the number of unacknowledged frames.
func (w *window) len() int { return len(w.frames) - w.head }

// open reports whether one more frame may be sent. The last one may exceed the limit.
func (w *window) open() bool { return w.len() < w.tasksMax && w.bytes < w.bytesMax }

// first returns the number of the oldest unacknowledged frame.
func (w *window) first() uint64 { return w.next - uint64(w.len()) }

// add records a frame of n bytes sent at now.
func (w *window) add(n int, now time.Duration) {
	if w.head > len(w.frames)/2 && w.head > minTasks {
		w.frames = w.frames[:copy(w.frames, w.frames[w.head:])]
		w.head = 0
	}
	w.bytes += n
	w.frames = append(w.frames, inflight{n, now, w.len() + 1, w.bytes})
	w.next++
}

// ack releases all frames up to number upTo, which the caller has validated.
func (w *window) ack(upTo uint64, now time.Duration) {
	n := int(upTo - w.first() + 1)
	last := w.frames[w.head+n-1]
	for _, f := range w.frames[w.head : w.head+n] {
		w.bytes -= f.bytes
	}
	w.head += n
	took := max(now-last.at, time.Microsecond)
	if w.minRTT == 0 || took < w.minRTT {
		w.minRTT = took
	}
	if upTo < w.round {
		return // sent under the previous limits
	}
	w.round = w.next
	scale := 2 * float64(w.minRTT) / float64(took)
	w.tasksMax = min(max(minTasks, nextLimit(w.tasksMax, last.allTasks, scale)), maxTasks)
	w.bytesMax = min(max(minBytes, nextLimit(w.bytesMax, last.allSize, scale)), maxBytes)
}

// nextLimit returns used × scale, within a factor of two of limit. If less than half of
// limit was used, the sample says nothing about the path.
func nextLimit(limit, used int, scale float64) int {
	measured := int(scale * float64(used))
	if measured < limit && used < limit/2 {
		return limit
	}
	return min(max(measured, limit/2), limit*2)
}
