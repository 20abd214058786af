package route

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// A Candidate is a relay that may be picked.
type Candidate struct {
	Peer  proto.PeerID
	Score float64
}

// A Picker picks the best relays and stays with them: the worst is replaced by a better
// one only if for the hold time, without interruption, some relay was better by the
// margin. Which one is the worst or the better one may change meanwhile, since among
// equals that is chance. Each replacement doubles the hold time, up to half an hour, until
// there was none for an hour: over a link that is full, all relays lose packets in turn. The
// zero value of each field means its default. It is not safe for concurrent use.
type Picker struct {
	Want   int           // number of relays; default 2
	Margin float64       // of the score; default 0.2
	Hold   time.Duration // the first one; default 1m

	hasBetter bool // there is a better one, since
	since     time.Duration
	next      proto.PeerID  // a replacement that is not held yet
	hold      time.Duration // until calmAfter has passed since replaced; 0: none was replaced
	replaced  time.Duration
}

const (
	maxHold   = 30 * time.Minute
	calmAfter = time.Hour // without a replacement the first hold time counts again
)

// Pick returns the relays to hold at now, among candidates. held are those picked before.
// A free slot is filled at once; at most one relay is replaced at a time.
func (p *Picker) Pick(held []proto.PeerID, candidates []Candidate, now time.Duration) []proto.PeerID {
	want := cmp.Or(p.Want, 2)
	if slices.Contains(held, p.next) {
		p.next, p.hold, p.replaced = proto.PeerID{}, min(2*p.holdAt(now), maxHold), now
	}
	var in, out []Candidate
	for _, c := range candidates {
		if slices.Contains(held, c.Peer) {
			in = append(in, c)
		} else {
			out = append(out, c)
		}
	}
	best := func(a, b Candidate) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), bytes.Compare(a.Peer[:], b.Peer[:]))
	}
	slices.SortFunc(in, best)
	slices.SortFunc(out, best)
	in = in[:min(len(in), want)]
	if free := min(want-len(in), len(out)); free > 0 {
		in = append(in, out[:free]...)
		p.hasBetter = false
	} else if p.better(in, out, now) {
		in[len(in)-1] = out[0]
		p.hasBetter, p.next = false, out[0].Peer
	}
	picked := make([]proto.PeerID, len(in))
	for i, c := range in {
		picked[i] = c.Peer
	}
	return picked
}

// better reports whether the best candidate of out replaces the worst of in now.
func (p *Picker) better(in, out []Candidate, now time.Duration) bool {
	if len(in) == 0 || len(out) == 0 || out[0].Score <= in[len(in)-1].Score+cmp.Or(p.Margin, 0.2) {
		p.hasBetter = false
		return false
	}
	if !p.hasBetter {
		p.hasBetter, p.since = true, now
	}
	return now-p.since >= p.holdAt(now)
}

// holdAt returns the hold time at now.
func (p *Picker) holdAt(now time.Duration) time.Duration {
	if p.hold > 0 && now-p.replaced < calmAfter {
		return p.hold
	}
	return cmp.Or(p.Hold, time.Minute)
}
