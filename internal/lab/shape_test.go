package lab

import (
	"testing"
	"time"
)

func TestPacketsAreDelayedAndDropped(t *testing.T) {
	now := time.Unix(1000, 0)
	const ms = time.Millisecond
	tests := []struct {
		name  string
		shape Shape
		busy  time.Duration // how far the rate is used up
		r     float64
		after time.Duration
		lost  bool
	}{
		{name: "a wire without a fault", after: 0},
		{name: "delay", shape: Shape{Delay: 50 * ms}, after: 50 * ms},
		{name: "jitter down", shape: Shape{Delay: 50 * ms, Jitter: 10 * ms}, r: 0, after: 40 * ms},
		{name: "jitter up", shape: Shape{Delay: 50 * ms, Jitter: 10 * ms}, r: 0.75, after: 55 * ms},
		{name: "loss below", shape: Shape{Loss: 0.2}, r: 0.19, lost: true},
		{name: "loss above", shape: Shape{Loss: 0.2}, r: 0.2},
		{name: "down", shape: Shape{Down: true}, r: 0.9, lost: true},
		{name: "rate takes its time", shape: Shape{Rate: 8_000_000}, after: 1 * ms},
		{name: "rate behind others", shape: Shape{Rate: 8_000_000}, busy: 20 * ms, after: 21 * ms},
		{name: "rate and delay add up", shape: Shape{Rate: 8_000_000, Delay: 5 * ms}, busy: 20 * ms, after: 26 * ms},
		{name: "queue is full", shape: Shape{Rate: 8_000_000, Queue: 10}, busy: 16 * ms, lost: true},
		{name: "queue has room", shape: Shape{Rate: 8_000_000, Queue: 10}, busy: 15 * ms, after: 16 * ms},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			busy := now.Add(tt.busy)
			at, ok := tt.shape.schedule(now, &busy, 1000, func() float64 { return tt.r })
			if ok == tt.lost {
				t.Fatalf("arrives: %v", ok)
			}
			if got := at.Sub(now); ok && got != tt.after {
				t.Errorf("arrives after %s, want %s", got, tt.after)
			}
		})
	}
}

func TestFramesArriveInTheOrderOfTheirTimes(t *testing.T) {
	now := time.Unix(1000, 0)
	var q queue
	for _, f := range []struct {
		after time.Duration
		name  byte
	}{{30, 'd'}, {10, 'a'}, {20, 'b'}, {20, 'c'}} {
		q.add(frame{now.Add(f.after), []byte{f.name}})
	}
	if f, ok := q.next(now); ok {
		t.Errorf("%q arrives before its time", f.bytes)
	}
	if got := q.wait(now); got != 10 {
		t.Errorf("nothing is due for %d, want 10", got)
	}
	var got []byte
	for f, ok := q.next(now.Add(30)); ok; f, ok = q.next(now.Add(30)) {
		got = append(got, f.bytes...)
	}
	if string(got) != "abcd" {
		t.Errorf("frames arrive as %q", got)
	}
}
