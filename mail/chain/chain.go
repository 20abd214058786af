package chain

import (
	"errors"
	"fmt"
	"math"

	"github.com/balefire/balefire/proto"
)

// Limits.
const (
	MaxBundle      = proto.MaxBundle // mails in a bundle
	MaxBundleBytes = 256 << 10       // of letters in a bundle; a larger letter goes alone
	MaxBoxes       = 4096            // boxes for which a home keeps the numbers of one origin
	MaxBoots       = 4096            // boots of one chain that a home keeps
	MaxSkips       = 1024            // runs of refused numbers that a home keeps of one chain, of all its boots
	MaxBox         = proto.MaxTarget // bytes of the name of a box
	maxTime        = 1<<53 - 1       // Unix milliseconds, the year 287396
	classes        = proto.Low       // there are chains of the classes 1 to this
	none           = proto.CodeOK
)

// ErrRuns is returned for runs that do not describe a bundle.
var ErrRuns = errors.New("chain: bad runs")

// A Chain names what one origin sends to one box in one class. A keyed mail may be in the
// chain of another class than its own: see [Origin.Add].
type Chain struct {
	Origin proto.PeerID
	Box    string
	Class  proto.Class
}

// valid reports whether c has a box and a class.
func (c Chain) valid() bool {
	return c.Box != "" && len(c.Box) <= MaxBox && proto.Critical <= c.Class && c.Class <= classes
}

// An Item is a mail as the home sees it.
type Item struct {
	N        proto.Seq // its number in the chain
	Prev     proto.Seq // the mail before it that the origin still has; zero: none
	NotAfter int64     // Unix milliseconds
}

// Valid reports whether the numbers are in order, and there is a time.
func (it Item) Valid() bool {
	if it.N.Boot == 0 || it.N.Counter == 0 || it.NotAfter <= 0 || it.NotAfter > maxTime {
		return false
	}
	return it.Prev == proto.Seq{} || it.Prev.Boot > 0 && it.Prev.Counter > 0 && it.Prev.Compare(it.N) < 0
}

// A Run is Count mails with consecutive numbers of one boot.
type Run struct {
	Boot, First uint64
	Count       uint32 // at least 1
}

// last returns the last counter of the run.
func (r Run) last() uint64 { return r.First + uint64(r.Count) - 1 }

// Unpack returns the numbers of the mails of a bundle, each with that of the mail before it.
// The error is ErrRuns if they do not rise, are none or more than MaxBundle.
func Unpack(prev proto.Seq, runs []Run) ([]Item, error) {
	total, before := 0, prev
	for i, r := range runs {
		first := proto.Seq{Boot: r.Boot, Counter: r.First}
		switch {
		case r.Boot == 0 || r.First == 0 || r.Count == 0:
			return nil, fmt.Errorf("%w: run %d is empty", ErrRuns, i)
		case r.Count > MaxBundle || total+int(r.Count) > MaxBundle:
			return nil, fmt.Errorf("%w: more than %d mails", ErrRuns, MaxBundle)
		case r.First > math.MaxUint64-uint64(r.Count):
			return nil, fmt.Errorf("%w: run %d goes beyond 64 bits", ErrRuns, i)
		case first.Compare(before) <= 0:
			return nil, fmt.Errorf("%w: %s comes after %s", ErrRuns, first, before)
		}
		total, before = total+int(r.Count), proto.Seq{Boot: r.Boot, Counter: r.last()}
	}
	if total == 0 {
		return nil, fmt.Errorf("%w: there are none", ErrRuns)
	}
	items := make([]Item, 0, total)
	for _, r := range runs {
		for n := r.First; n <= r.last(); n++ {
			items = append(items, Item{N: proto.Seq{Boot: r.Boot, Counter: n}, Prev: prev})
			prev = items[len(items)-1].N
		}
	}
	return items, nil
}

// appendRun adds n to runs.
func appendRun(runs []Run, n proto.Seq) []Run {
	if at := len(runs) - 1; at >= 0 && runs[at].Boot == n.Boot && runs[at].last()+1 == n.Counter {
		runs[at].Count++
		return runs
	}
	return append(runs, Run{Boot: n.Boot, First: n.Counter, Count: 1})
}

// A Verdict is what the rule of the chain makes of a mail.
type Verdict uint8

// The verdicts.
const (
	Malformed Verdict = iota // numbers that no origin gives
	Next                     // it is next: take it or refuse it
	Again                    // it was taken or refused before: see [Home.Refused]
	Busy                     // a mail before it is missing: go back
	Expired                  // it may have been here, long ago: refuse it, its time is over
	Full                     // there is no space for the notes of another box or boot
)

// Code returns the code that answers a mail with this verdict; CodeOK for one that is next or
// was taken before.
func (v Verdict) Code() proto.Code {
	switch v {
	case Next, Again:
		return proto.CodeOK
	case Busy:
		return proto.CodeBusy
	case Expired:
		return proto.CodeExpired
	case Full:
		return proto.CodeFull
	}
	return proto.CodeBadForm
}
