package transport

import "time"

// Bounds of a window. 1024 tasks keep a disk busy whose commit takes
// milliseconds; 2 MiB are 40 ms of a gigabit.
const (
	minTasks = 1024
	minBytes = 2 << 20
	maxTasks = 16 << 10
	maxBytes = 16 << 20
	// ackMemory is how long the shortest time to an Ack is believed.
	ackMemory = 10 * time.Second
)

// A window bounds what is sent and not yet acknowledged: twice what the path
// and the receiver carry in the time of an Ack, so that control messages and
// the next urgent task never wait behind a heap of bulk. The time is the
// shortest of the last seconds: measured under load it would grow with the heap
// it is meant to bound.
type window struct {
	frames []inflight // not yet acknowledged, oldest first
	head   int        // of frames
	bytes  int        // of all of them
	next   uint64     // number of the next frame, from 1

	tasksMax, bytesMax int
	best, older        time.Duration // shortest times to an Ack of this and the last period; 0: none
	turn               time.Duration // when this period began
}

type inflight struct {
	bytes int
	at    time.Duration
}

func newWindow() *window { return &window{next: 1, tasksMax: minTasks, bytesMax: minBytes} }

// len returns how many frames are unacknowledged.
func (w *window) len() int { return len(w.frames) - w.head }

// open reports whether one more frame may be sent. The last one may stick out.
func (w *window) open() bool { return w.len() < w.tasksMax && w.bytes < w.bytesMax }

// add notes a frame of n bytes sent at now.
func (w *window) add(n int, now time.Duration) {
	if w.head > len(w.frames)/2 && w.head > minTasks {
		w.frames = w.frames[:copy(w.frames, w.frames[w.head:])]
		w.head = 0
	}
	w.frames = append(w.frames, inflight{n, now})
	w.bytes += n
	w.next++
}

// first returns the number of the oldest frame that is not acknowledged.
func (w *window) first() uint64 { return w.next - uint64(w.len()) }

// ack releases all frames up to number upTo, which the caller has checked.
func (w *window) ack(upTo uint64, now time.Duration) {
	n := int(upTo - w.first() + 1)
	inFlight, inBytes := w.len(), w.bytes
	took := now - w.frames[w.head+n-1].at
	for _, f := range w.frames[w.head : w.head+n] {
		w.bytes -= f.bytes
	}
	w.head += n
	w.measure(took, now)
	// rate × time = what was in flight; scaled down to the shortest time
	scale := 1.0
	if took > 0 {
		scale = float64(w.shortest()) / float64(took)
	}
	w.tasksMax = min(max(minTasks, w.glide(w.tasksMax, int(2*scale*float64(inFlight)))), maxTasks)
	w.bytesMax = min(max(minBytes, w.glide(w.bytesMax, int(2*scale*float64(inBytes)))), maxBytes)
}

// glide moves a limit to its measured size, up at once and down slowly: a quiet
// moment says nothing about the path.
func (w *window) glide(limit, measured int) int {
	if measured >= limit {
		return measured
	}
	return limit - (limit-measured)/16
}

func (w *window) measure(took, now time.Duration) {
	took = max(took, time.Microsecond)
	if now-w.turn > ackMemory {
		w.older, w.best, w.turn = w.best, 0, now
	}
	if w.best == 0 || took < w.best {
		w.best = took
	}
}

func (w *window) shortest() time.Duration {
	if w.older == 0 {
		return w.best
	}
	return min(w.best, w.older)
}
