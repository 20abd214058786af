package transport

import (
	"slices"
	"time"

	"github.com/balefire/balefire/proto"
)

// Bounds of what strangers may cost.
const (
	maxStrangers = 256
	minRetry     = 10 * time.Second // after a hello that was refused; doubles
	maxRetry     = 10 * time.Minute
	reportEvery  = 30 * time.Second // a sight is told again
)

// A Stranger is a node that was found, on the LAN or in the DHT, and is no member
// as far as is known here.
type Stranger struct {
	Peer   proto.PeerID
	Addrs  []string  // multiaddrs where it was found
	Seen   time.Time // wall time of the last sight
	Joins  bool      // it is in no mesh: it may ask to be let in
	Reason string    // why the last hello failed; empty: none was tried
}

// strangers remembers who was found, on the LAN or in the DHT, and is not known
// to be a member: with each a hello is tried, since a member who was introduced
// elsewhere shows its certificate. Who is refused is asked again later and later.
// It is not safe for concurrent use.
type strangers map[proto.PeerID]*stranger

type stranger struct {
	Stranger
	retry      time.Duration // monotonic: no hello is tried before
	pause      time.Duration
	reportedAt time.Duration // when Seen was told
	seen       time.Duration
	trying     bool
	reported   bool
	onLAN      bool // seen on the LAN
}

// note notes a sight of p at now and returns what is remembered of it.
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

// evict forgets who was not seen for the longest.
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

// begin reports whether a hello with x may be tried at now, and notes it.
func (x *stranger) begin(now time.Duration) bool {
	if x.trying || now < x.retry {
		return false
	}
	x.trying = true
	return true
}

// failed notes that the try ended at now in err. The next one comes after longest
// at the latest.
func (x *stranger) failed(now time.Duration, err error, longest time.Duration) {
	x.trying = false
	x.pause = min(max(minRetry, 2*x.pause), longest)
	x.retry = now + x.pause
	x.Reason = proto.Clip(err.Error(), maxReason)
}

// shouldReport reports whether it is time to say, again, that x was seen.
func (x *stranger) shouldReport(now time.Duration) bool {
	if x.reported && now-x.reportedAt < reportEvery {
		return false
	}
	x.reported, x.reportedAt = true, now
	return true
}

// due returns whom to say hello to at now, of those who were seen on the LAN
// lately.
func (s strangers) due(now time.Duration) []Stranger {
	var all []Stranger
	for _, x := range s {
		if x.onLAN && !x.trying && now >= x.retry && now-x.seen < lanMemory {
			all = append(all, x.Stranger)
		}
	}
	return all
}

// list returns all, those who want to join first.
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
