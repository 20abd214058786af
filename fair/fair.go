// Package fair decides which class of work is next, and how much of the free capacity one
// party may take: one rule for tasks, shared queues and mail.
//
//	critical            at most 9 of 10 while others wait
//	high, normal, low   8 : 3 : 1 of the rest
//	low                 at least 1 of any 100 while low waits
//
// Everything here is pure: a result depends only on earlier calls.
package fair

// Classes is the number of classes, from [Critical] to [Low].
const Classes = 4

// The classes, as indexes.
const (
	Critical = iota
	High
	Normal
	Low
)

const (
	// maxCritical is how many critical items are served in a row while others wait.
	maxCritical = 9
	// MaxPassed is how many other items are served in a row, at most, while low waits.
	MaxPassed = 99
)

// weights divide what critical leaves.
var weights = [Classes]int{High: 8, Normal: 3, Low: 1}

// A Picker chooses the class to serve next. Its zero value is ready to use.
type Picker struct {
	credit   [Classes]int // of a smooth weighted round robin below critical
	critical int          // critical items served in a row
	passed   int          // other items served in a row while low waited
}

// Next returns the class to serve, or -1 if none has work; waits reports which classes
// do. Nothing changes until [Picker.Took].
func (p *Picker) Next(waits [Classes]bool) int {
	others := waits[High] || waits[Normal] || waits[Low]
	switch {
	case p.rescues(waits):
		return Low
	case waits[Critical] && (!others || p.critical < maxCritical):
		return Critical
	case !others:
		return -1
	}
	best := -1
	for c := High; c <= Low; c++ {
		if waits[c] && (best < 0 || p.credit[c]+weights[c] > p.credit[best]+weights[best]) {
			best = c
		}
	}
	return best
}

// rescues reports whether low has waited so long that it goes first.
func (p *Picker) rescues(waits [Classes]bool) bool { return waits[Low] && p.passed >= MaxPassed }

// Took records that an item of class was served while the classes in waits had work. It
// reports whether low was served only because [MaxPassed] others had passed it.
func (p *Picker) Took(class int, waits [Classes]bool) (rescued bool) {
	rescued = class == Low && p.rescues(waits)
	switch {
	case class == Low:
		p.passed = 0
	case waits[Low]:
		p.passed++
	}
	if class == Critical {
		p.critical = min(p.critical+1, maxCritical)
		return rescued
	}
	p.critical = 0
	if rescued {
		return rescued
	}
	for c := High; c <= Low; c++ {
		if !waits[c] {
			p.credit[c] = 0 // a class without work saves no credit
			continue
		}
		p.credit[c] += weights[c]
		p.credit[class] -= weights[c]
	}
	return rescued
}

// shareOfFree is how many times the free capacity one party may hold.
const shareOfFree = 9

// Within reports whether a party that holds held of the used capacity may take one more
// unit; limit is the total. A single party gets nine tenths of the capacity; one that
// floods leaves a tenth to the others, of which the next may take nine tenths, and so on.
// Shared-memory switches divide their buffers like this (dynamic thresholds, Choudhury
// and Hahne 1998). If nothing is free, Within returns true: then the capacity limit
// refuses, not the share.
func Within[T int | int64](held, used, limit T) bool {
	free := limit - used
	return free <= 0 || held < shareOfFree*free
}
