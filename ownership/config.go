package ownership

import (
	"cmp"
	"time"

	"github.com/balefire/balefire/proto"
)

// Config tunes a home and an owner. The zero value of each field means its default.
type Config struct {
	Lease           time.Duration // of a grant without a renewal; default 15s
	Heartbeat       time.Duration // pause between two renewals, and two copies of what is unanswered; default 2s
	Scan            time.Duration // pause between two looks for leases that are over; default 5s
	Margin          time.Duration // an owner counts its lease as lost so long before its end; default 2s
	Jump            time.Duration // clocks that differ by more between two scans have jumped; default 2s
	BaseBackoff     time.Duration // after the first failed attempt; default 1s
	MaxBackoff      time.Duration // default 60s
	MaxAttempts     uint32        // of a task that does not say; default 3
	MaxAbandons     uint32        // leases that a task may lose; default 10
	RunLimit        time.Duration // a run may go on so long beyond not_after; default 10m
	Skew            time.Duration // how far two clocks may be apart; default proto.Skew
	KeepEnded       int           // ends that are remembered to answer a late result; default 50000
	HandoffWindow   int           // tasks on their way to another home at a time; default 1024
	MessageLifetime time.Duration // no copy of a message lives so long; default 1h
	StallAfter      time.Duration // a handler that declares progress and shows none for so long is not renewed; default 5m

	// Random fills tokens and spreads backoffs; the default is a fixed sequence,
	// which only tests can live with.
	Random func([]byte)

	// Deeds prove who is the home of a queue; the default believes everybody, which
	// only tests can live with.
	Deeds Deeds

	mutation mutation
}

func (c Config) withDefaults() Config {
	c.Lease = cmp.Or(c.Lease, 15*time.Second)
	c.Heartbeat = cmp.Or(c.Heartbeat, 2*time.Second)
	c.Scan = cmp.Or(c.Scan, 5*time.Second)
	c.Margin = cmp.Or(c.Margin, 2*time.Second)
	c.Jump = cmp.Or(c.Jump, 2*time.Second)
	c.BaseBackoff = cmp.Or(c.BaseBackoff, time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, time.Minute)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 3)
	c.MaxAbandons = cmp.Or(c.MaxAbandons, 10)
	c.RunLimit = cmp.Or(c.RunLimit, 10*time.Minute)
	c.Skew = cmp.Or(c.Skew, proto.Skew)
	c.KeepEnded = cmp.Or(c.KeepEnded, 50_000)
	c.HandoffWindow = cmp.Or(c.HandoffWindow, 1024)
	c.MessageLifetime = cmp.Or(c.MessageLifetime, time.Hour)
	c.StallAfter = cmp.Or(c.StallAfter, 5*time.Minute)
	if c.Deeds == nil {
		c.Deeds = plainDeeds{}
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

// backoff is the wait after the n-th failed attempt, from 1.
func (c Config) backoff(n uint32) time.Duration {
	d := c.MaxBackoff
	if n <= 16 {
		d = min(d, c.BaseBackoff<<(max(n, 1)-1))
	}
	var r [1]byte
	c.Random(r[:])
	return d + d*time.Duration(r[0])/512
}

// resultDeadline is when a task that may be running ends without its owner's word, Unix
// milliseconds (I3).
func (c Config) resultDeadline(notAfter int64) int64 {
	return notAfter + (c.RunLimit + c.Skew).Milliseconds()
}

// token draws a token that is not zero.
func (c Config) token() (t Token) {
	c.Random(t[:])
	if t == (Token{}) {
		t[0] = 1
	}
	return t
}
