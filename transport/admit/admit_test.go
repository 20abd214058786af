package admit

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestTokens checks for any traffic that no more is allowed than the burst plus what was
// refilled since, and that a patient peer is never refused for long.
func TestTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := NewLedger[string](Limits{})
		var now time.Duration
		allowed := 0
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 3e8).Draw(t, "wait"))
			if l.Allow("p", Stream, now) {
				allowed++
			}
			if most := 64 + 10*now.Seconds(); float64(allowed) > most+1e-6 {
				t.Fatalf("%d streams in %v, want at most %v", allowed, now, most)
			}
		}
		if !l.Allow("p", Stream, now+100*time.Millisecond) {
			t.Fatal("a peer that waited was refused")
		}
	})
}

func TestPeersAndKindsDoNotShare(t *testing.T) {
	l := NewLedger[string](Limits{Joins: Rate{1, 1}})
	if !l.Allow("a", Join, 0) || l.Allow("a", Join, 0) {
		t.Error("a burst of one does not allow one")
	}
	if !l.Allow("b", Join, 0) || !l.Allow("a", Conn, 0) {
		t.Error("two accounts share tokens")
	}
	if l.Allow("a", Join, -time.Hour) {
		t.Error("a decreasing time refills the bucket")
	}
	if !l.Allow("a", Join, time.Second) {
		t.Error("nothing refills")
	}
}

// TestBans checks the steps of a ban: it takes several offenses, expires by itself, and
// doubles up to a bound (S54).
func TestBans(t *testing.T) {
	l := NewLedger[string](Limits{})
	var now time.Duration
	for want := 10 * time.Second; want <= 20*time.Minute; want *= 2 {
		violations := 1
		for !l.Offend("p", now) {
			violations++
		}
		if violations != 9 {
			t.Errorf("banned after %d offenses, want 9", violations)
		}
		until := now + min(want, 10*time.Minute)
		if !l.Banned("p", until-1) || l.Banned("p", until) {
			t.Errorf("the ban does not last %v", until-now)
		}
		if l.Banned("q", now) {
			t.Error("another peer is banned")
		}
		now = until
	}
}

func TestOffensesExpire(t *testing.T) {
	l := NewLedger[string](Limits{})
	for i := range 1000 {
		if l.Offend("p", time.Duration(i)*30*time.Second) {
			t.Fatalf("banned by offense %d, although they are half a minute apart", i)
		}
	}
}

// TestMemory checks that strangers with many keys cost no memory, and cannot clear a ban
// (I15).
func TestMemory(t *testing.T) {
	l := NewLedger[int](Limits{Peers: 50})
	for !l.Offend(-1, 0) {
	}
	for i := range 5000 {
		l.Allow(i, Join, time.Duration(i))
		if l.Len() > 50 {
			t.Fatalf("%d accounts", l.Len())
		}
	}
	if !l.Banned(-1, 5*time.Second) {
		t.Error("the ban was cleared")
	}
}
