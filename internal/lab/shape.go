package lab

import (
	"cmp"
	"slices"
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
type queue []frame

func (q *queue) add(f frame) {
	at, _ := slices.BinarySearchFunc(*q, f.at, func(have frame, at time.Time) int {
		return cmp.Or(have.at.Compare(at), -1) // behind those with the same time
	})
	*q = slices.Insert(*q, at, f)
}

// next removes and returns a frame that is due.
func (q *queue) next(now time.Time) (f frame, ok bool) {
	if len(*q) == 0 || (*q)[0].at.After(now) {
		return frame{}, false
	}
	f = (*q)[0]
	*q = slices.Delete(*q, 0, 1)
	return f, true
}

// wait returns how long until the next frame is due.
func (q queue) wait(now time.Time) time.Duration {
	if len(q) == 0 {
		return time.Hour
	}
	return q[0].at.Sub(now)
}
