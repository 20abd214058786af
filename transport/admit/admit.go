// Package admit bounds what a peer may cost: each peer has token buckets that refill over
// time, and each offense counts toward a ban that doubles each time. It never penalizes a
// peer for being slow.
//
//	Allow  ──▶ token left? ── yes ▶ serve
//	                       └─ no ─▶ refuse, and Offend
//	Offend ──▶ too many in a while? ──▶ Banned until …
//
// Everything is a function of (ledger, event, time): no clock, no goroutine.
package admit

import (
	"cmp"
	"time"
)

// A Kind is a kind of token.
type Kind int

// The kinds of tokens.
const (
	Conn    Kind = iota // connections opened
	Stream              // streams opened
	Control             // frames on a ctl stream
	Body                // streams opened that carry one body each
	Join                // join requests
	Author              // rumors authored: one each, plus one per KiB
	Forward             // rumors forwarded: the same
	Lookup              // DHT queries
	Unknown             // attempts to reach peers that no one vouched for
	numKinds
)

// A Rate is the rate of a token bucket: PerSecond tokens, up to Burst.
type Rate struct {
	PerSecond float64
	Burst     float64
}

// rates holds the default rate of each kind.
var rates = [numKinds]Rate{
	Conn:    {2, 32},
	Stream:  {10, 64},
	Control: {20, 200},
	Body:    {200, 400},
	Join:    {1, 5},
	Author:  {1024, 16384},
	Forward: {4096, 16384},
	Lookup:  {50, 500},
	Unknown: {2, 64},
}

// offenses is how fast offenses are forgiven: 8 at once lead to a ban.
var offenses = Rate{1.0 / 30, 8}

// Each further ban of a peer is twice as long.
const (
	firstBan = 10 * time.Second
	maxBan   = 10 * time.Minute
)

// Limits holds the limits that can be set. The zero value of each field means its default.
type Limits struct {
	Conns Rate // per peer; default 2/s, burst 32
	Joins Rate // per peer; default 1/s, burst 5
	Peers int  // remembered; default 4096
}

// A Ledger holds the accounts of peers of type P. It is not safe for concurrent use.
// Times are any monotonic reading.
type Ledger[P comparable] struct {
	rates    [numKinds]Rate
	peers    int // remembered
	accounts map[P]*account
}

type account struct {
	buckets  [numKinds]bucket
	offenses bucket // full: none
	bans     int    // so far; forgotten with the account
	until    time.Duration
	seen     time.Duration
}

type bucket struct {
	tokens float64
	at     time.Duration
}

// NewLedger returns a ledger without accounts.
func NewLedger[P comparable](l Limits) *Ledger[P] {
	all := rates
	all[Conn], all[Join] = cmp.Or(l.Conns, all[Conn]), cmp.Or(l.Joins, all[Join])
	return &Ledger[P]{rates: all, peers: cmp.Or(l.Peers, 4096), accounts: make(map[P]*account)}
}

// Allow spends one of p's tokens. False: p has none left and is refused, which is not an
// offense by itself.
func (l *Ledger[P]) Allow(p P, w Kind, now time.Duration) bool { return l.AllowMany(p, w, 1, now) }

// AllowMany spends n tokens, or none if fewer are left.
func (l *Ledger[P]) AllowMany(p P, w Kind, n int, now time.Duration) bool {
	return l.account(p, now).buckets[w].take(l.rates[w], n, now)
}

// Offend records that p sent what no honest node sends, and reports whether that leads to
// a ban.
func (l *Ledger[P]) Offend(p P, now time.Duration) (banned bool) {
	a := l.account(p, now)
	if a.offenses.take(offenses, 1, now) {
		return false
	}
	ban := min(firstBan<<min(a.bans, 16), maxBan)
	a.bans++
	a.until = now + ban
	a.offenses = bucket{offenses.Burst, now}
	return true
}

// Banned reports whether p is banned at now.
func (l *Ledger[P]) Banned(p P, now time.Duration) bool {
	a := l.accounts[p]
	return a != nil && now < a.until
}

// Len returns the number of accounts.
func (l *Ledger[P]) Len() int { return len(l.accounts) }

func (l *Ledger[P]) account(p P, now time.Duration) *account {
	a := l.accounts[p]
	if a == nil {
		l.evict(now)
		a = &account{offenses: bucket{offenses.Burst, now}}
		for w, r := range l.rates {
			a.buckets[w] = bucket{r.Burst, now}
		}
		l.accounts[p] = a
	}
	a.seen = now
	return a
}

// evict removes the account idle for the longest time, those without a ban first, so that
// a stranger with many keys cannot clear a ban.
func (l *Ledger[P]) evict(now time.Duration) {
	if len(l.accounts) < l.peers {
		return
	}
	var victim P
	var oldest *account
	for p, a := range l.accounts {
		if oldest == nil || older(a, oldest, now) {
			victim, oldest = p, a
		}
	}
	delete(l.accounts, victim)
}

func older(a, b *account, now time.Duration) bool {
	if ab, bb := now < a.until, now < b.until; ab != bb {
		return bb
	}
	return a.seen < b.seen
}

func (b *bucket) take(r Rate, n int, now time.Duration) bool {
	if now > b.at {
		b.tokens = min(r.Burst, b.tokens+r.PerSecond*(now-b.at).Seconds())
		b.at = now
	}
	if b.tokens < float64(n) {
		return false
	}
	b.tokens -= float64(n)
	return true
}
