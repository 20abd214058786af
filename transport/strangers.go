package transport

import (
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// Bounds of what strangers may cost.
const (
	maxStrangers = 256
	minRetry     = 10 * time.Second // after a refused hello; doubles
	maxRetry     = 10 * time.Minute
	reportEvery  = 30 * time.Second // between two reports of the same stranger
)

// A Stranger is a node that was found, on the LAN or in the DHT, but is not a known
// member.
type Stranger struct {
	Peer   proto.PeerID
	Addrs  []string // multiaddrs at which it was found
	Joins  bool     // it is in no mesh and may ask to join
	Reason string   // why the last hello failed; empty: none was tried
}

// strangers remembers nodes that were found but are not known members. A hello is tried
// with each, since a member introduced elsewhere presents its certificate. A refused one
// is retried at increasing intervals. It is not safe for concurrent use.
type strangers map[proto.PeerID]*stranger

type stranger struct {
	Stranger
	retry      time.Duration // monotonic: no hello before
	pause      time.Duration
	reportedAt time.Duration // last report to Seen
	seen       time.Duration
	trying     bool
	reported   bool
	onLAN      bool // seen on the LAN
}

// note records a sighting of p at now and returns its entry.
func (s strangers) note(p proto.PeerID, now time.Duration) *stranger {
	x := s[p]
	if x == nil {
		s.evict()
		x = &stranger{Stranger: Stranger{Peer: p}}
		s[p] = x
	}
	x.seen = now
	return x
}

// evict removes the entries not seen for the longest time.
func (s strangers) evict() {
	for len(s) >= maxStrangers {
		var oldest *stranger
		for _, x := range s {
			if oldest == nil || x.seen < oldest.seen {
				oldest = x
			}
		}
		delete(s, oldest.Peer)
	}
}

// begin reports whether a hello with x may be tried at now, and records the attempt.
func (x *stranger) begin(now time.Duration) bool {
	if x.trying || now < x.retry {
		return false
	}
	x.trying = true
	return true
}

// failed records that the attempt ended at now with err. The next one follows after at
// most longest.
func (x *stranger) failed(now time.Duration, err error, longest time.Duration) {
	x.trying = false
	x.pause = min(max(minRetry, 2*x.pause), longest)
	x.retry = now + x.pause
	x.Reason = proto.Clip(err.Error(), maxReason)
}

// shouldReport reports whether a report of x is due.
func (x *stranger) shouldReport(now time.Duration) bool {
	if x.reported && now-x.reportedAt < reportEvery {
		return false
	}
	x.reported, x.reportedAt = true, now
	return true
}

// due returns the nodes recently seen on the LAN for which a hello is due at now.
func (s strangers) due(now time.Duration) []Stranger {
	var all []Stranger
	for _, x := range s {
		if x.onLAN && !x.trying && now >= x.retry && now-x.seen < lanMemory {
			all = append(all, x.Stranger)
		}
	}
	return all
}

// list returns all entries, those that may ask to join first.
func (s strangers) list() []Stranger {
	all := make([]Stranger, 0, len(s))
	for _, x := range s {
		c := x.Stranger
		c.Addrs = slices.Clone(c.Addrs)
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b Stranger) int {
		if a.Joins != b.Joins {
			if a.Joins {
				return -1
			}
			return 1
		}
		return slices.Compare(a.Peer[:], b.Peer[:])
	})
	return all
}
