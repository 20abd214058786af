package gossip

import (
	"fmt"
	"slices"
	"time"
)

// durations formats durations as median, p95 and worst.
type durations []time.Duration

func (s durations) String() string {
	if len(s) == 0 {
		return "none"
	}
	c := slices.Sorted(slices.Values(s))
	return fmt.Sprintf("median %v, p95 %v, worst %v of %d", c[len(c)/2].Round(time.Millisecond),
		c[len(c)*95/100].Round(time.Millisecond), c[len(c)-1].Round(time.Millisecond), len(c))
}

func mean(all []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(max(len(all), 1))
}

func worst(all []time.Duration) time.Duration { return slices.Max(append(all, 0)) }
