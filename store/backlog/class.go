package backlog

import "github.com/balefire/balefire/proto"

// classes is the number of classes; index 0 is critical.
const classes = 4

const (
	critical = iota
	high
	normal
	low
)

// classIndex maps a class to its index; unknown ones are normal.
func classIndex(c proto.Class) int {
	if c < proto.Critical || c > proto.Low {
		return normal
	}
	return int(c) - 1
}

// weights of the classes below critical.
var weights = [classes]int32{high: 8, normal: 3, low: 1}

// maxCriticalRun is how many critical ones may follow each other while others
// wait: nine of ten.
const maxCriticalRun = 9

// A picker shares what is taken among the classes. It is pure: what it picks
// depends on what it was asked before.
type picker struct {
	credit      [classes]int32 // of a smooth weighted round robin below critical
	criticalRun int32          // critical ones since another was picked
	sinceLow    int32          // others picked since a low one, while a low one waited
}

// pick chooses the class to take from next; waits says which have something.
// starved reports that the low class was chosen because it had waited too long.
// It returns -1 when nothing waits.
func (p *picker) pick(waits [classes]bool, maxRun int) (class int, starved bool) {
	others := waits[high] || waits[normal] || waits[low]
	switch {
	case waits[low] && int(p.sinceLow) >= maxRun-1:
		class, starved = low, true
	case waits[critical] && (!others || p.criticalRun < maxCriticalRun):
		class = critical
	case others:
		class = p.share(waits)
	default:
		return -1, false
	}
	if class == critical {
		p.criticalRun = min(p.criticalRun+1, maxCriticalRun)
	} else {
		p.criticalRun = 0
	}
	if class == low || !waits[low] {
		p.sinceLow = 0
	} else {
		p.sinceLow++
	}
	return class, starved
}

// share is a step of the smooth weighted round robin.
func (p *picker) share(waits [classes]bool) int {
	best, total := -1, int32(0)
	for c := high; c <= low; c++ {
		if !waits[c] {
			p.credit[c] = 0 // who has nothing to send saves nothing up
			continue
		}
		p.credit[c] += weights[c]
		total += weights[c]
		if best < 0 || p.credit[c] > p.credit[best] {
			best = c
		}
	}
	p.credit[best] -= total
	return best
}
