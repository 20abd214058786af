package ownership

import (
	"cmp"
	"time"

	"github.com/balefire/balefire/proto"
)

// Config tunes a home and an owner. The zero value of each field means its default.
type Config struct {
	Lease           time.Duration // length of a lease without a renewal; default 15s
	Heartbeat       time.Duration // between two renewals, and between two copies of an unanswered message; default 2s
	Scan            time.Duration // between two scans for expired leases; default 5s
	Margin          time.Duration // an owner treats its lease as lost this long before its end; default 2s
	MaxBackoff      time.Duration // longest wait after a failed attempt; default 60s
	RunLimit        time.Duration // how long a run may continue past not_after; default 10m
	Skew            time.Duration // largest difference between two clocks; default proto.Skew
	HandoffWindow   int           // tasks in transit to one other home at a time; default 1024
	MessageLifetime time.Duration // longest time that a copy of a message may survive; default 1h
	Ahead           time.Duration // worth of tasks that a node is granted beyond its slots; default 100ms
	StallAfter      time.Duration // a handler that reports progress and then none for this long is not renewed; default 5m

	MaxNames int // of queues and others, that this node as an admin signs for another member; default 64

	MaxLeases int // of one other home that this node keeps, those included that are over; default 131072

	Machine uint32 // identifies the machine start that the boot clock counts from; default 0, the same at every start

	// Random fills tokens and spreads backoffs. The default is a fixed sequence, which is
	// good enough only for tests.
	Random func([]byte)

	// Deeds prove which node is the home of a queue. The default accepts every claim, which
	// is good enough only for tests.
	Deeds Deeds

	// MayBeHome reports whether a node may become the home of a queue; the default, for
	// tests, is any node. One that is a home already stays it.
	MayBeHome func(proto.PeerID) bool
}

func (c Config) withDefaults() Config {
	c.Lease = cmp.Or(c.Lease, 15*time.Second)
	c.Heartbeat = cmp.Or(c.Heartbeat, 2*time.Second)
	c.Scan = cmp.Or(c.Scan, 5*time.Second)
	c.Margin = cmp.Or(c.Margin, 2*time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, time.Minute)
	c.RunLimit = cmp.Or(c.RunLimit, 10*time.Minute)
	c.Skew = cmp.Or(c.Skew, proto.Skew)
	c.HandoffWindow = cmp.Or(c.HandoffWindow, 1024)
	c.MessageLifetime = cmp.Or(c.MessageLifetime, time.Hour)
	c.Ahead = cmp.Or(c.Ahead, 100*time.Millisecond)
	c.StallAfter = cmp.Or(c.StallAfter, 5*time.Minute)
	c.MaxNames = cmp.Or(c.MaxNames, 64)
	c.MaxLeases = cmp.Or(c.MaxLeases, 1<<17)
	if c.Deeds == nil {
		c.Deeds = plainDeeds{}
	}
	if c.MayBeHome == nil {
		c.MayBeHome = func(proto.PeerID) bool { return true }
	}
	if c.Random == nil {
		n := byte(0)
		c.Random = func(b []byte) {
			for i := range b {
				n++
				b[i] = n
			}
		}
	}
	return c
}

const baseBackoff = time.Second // after the first failed attempt

// backoff returns the delay after the n-th failed attempt, counted from 1.
func (c Config) backoff(n uint32) time.Duration {
	d := c.MaxBackoff
	if n <= 16 {
		d = min(d, baseBackoff<<(max(n, 1)-1))
	}
	var r [1]byte
	c.Random(r[:])
	return d + d*time.Duration(r[0])/512
}

// resultDeadline returns when a task that may be running ends without a report from its
// owner, in Unix milliseconds (I3).
func (c Config) resultDeadline(notAfter int64) int64 {
	return notAfter + (c.RunLimit + c.Skew).Milliseconds()
}

// token returns a new token, which is not zero.
func (c Config) token() (t Token) {
	c.Random(t[:])
	if t == (Token{}) {
		t[0] = 1
	}
	return t
}
