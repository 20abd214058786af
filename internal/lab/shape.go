package lab

import (
	"cmp"
	"container/heap"
	"time"
)

// A Shape is what a long wire does to packets in one direction. The zero value is a perfect
// wire.
type Shape struct {
	Delay  time.Duration // one-way delay
	Jitter time.Duration // the delay varies by up to this much up or down; packets are reordered
	Loss   float64       // fraction of lost packets, from 0 to 1
	Rate   int64         // bits per second; 0: no limit
	Queue  int           // packets of 1500 bytes that can be queued; more are dropped; default 100
	Down   bool          // all packets are dropped silently
}

// schedule returns when a packet arrives, if it does. busy is until when the rate is used
// up, r a source of random numbers in [0, 1).
func (s Shape) schedule(now time.Time, busy *time.Time, size int, r func() float64) (at time.Time, ok bool) {
	if s.Down || s.Loss > 0 && r() < s.Loss {
		return now, false
	}
	at = now
	if s.Rate > 0 {
		if busy.Before(now) {
			*busy = now
		}
		if busy.Sub(now) > s.sending(cmp.Or(s.Queue, 100)*1500) {
			return now, false
		}
		*busy = busy.Add(s.sending(size))
		at = *busy
	}
	at = at.Add(s.Delay)
	if s.Jitter > 0 {
		at = at.Add(time.Duration((2*r() - 1) * float64(s.Jitter)))
	}
	return at, true
}

// sending returns how long a number of bytes takes at the rate.
func (s Shape) sending(bytes int) time.Duration {
	return time.Duration(float64(bytes) * 8 / float64(s.Rate) * float64(time.Second))
}

// A frame is in transit and arrives at a time.
type frame struct {
	at    time.Time
	bytes []byte
}

// A queue holds frames ordered by arrival time, and those with the same time in the order
// of insertion.
type queue struct {
	frames ordered
	came   uint64
}

func (q *queue) add(f frame) {
	q.came++
	heap.Push(&q.frames, sequenced{f, q.came})
}

// next removes and returns a frame that is due.
func (q *queue) next(now time.Time) (frame, bool) {
	if len(q.frames) == 0 || q.frames[0].at.After(now) {
		return frame{}, false
	}
	return heap.Pop(&q.frames).(sequenced).frame, true
}

// wait returns how long until the next frame is due.
func (q *queue) wait(now time.Time) time.Duration {
	if len(q.frames) == 0 {
		return time.Hour
	}
	return q.frames[0].at.Sub(now)
}

type sequenced struct {
	frame
	came uint64
}

// ordered is a heap.
type ordered []sequenced

func (o ordered) Len() int { return len(o) }
func (o ordered) Less(i, j int) bool {
	if !o[i].at.Equal(o[j].at) {
		return o[i].at.Before(o[j].at)
	}
	return o[i].came < o[j].came
}
func (o ordered) Swap(i, j int) { o[i], o[j] = o[j], o[i] }

// Push is for package heap.
func (o *ordered) Push(x any) { *o = append(*o, x.(sequenced)) }

// Pop is for package heap.
func (o *ordered) Pop() any {
	old := *o
	last := old[len(old)-1]
	*o = old[:len(old)-1]
	return last
}
