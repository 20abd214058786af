package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// memoryNonces is a Nonces in memory.
type memoryNonces struct {
	kept map[proto.PeerID][]byte
	puts int
	err  error
}

func (m *memoryNonces) Get(_ context.Context, p proto.PeerID) ([]byte, error) {
	return m.kept[p], m.err
}

func (m *memoryNonces) Put(_ context.Context, all map[proto.PeerID][]byte) error {
	if m.err == nil {
		m.puts++
		maps.Copy(m.kept, all)
	}
	return m.err
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// TestReplayWindow checks that each number of an author is new once, in any order, within
// the window.
func TestReplayWindow(t *testing.T) {
	author := newTestKeys(1).Peer()
	const start = 1_700_000_000_000_000_000
	s := newReplayGuard(nil)
	order := rand.New(rand.NewPCG(1, 2)).Perm(replayBits)
	for round, want := range []bool{true, false} {
		for _, i := range order {
			if fresh, err := s.accept(t.Context(), author, 0, number(start+uint64(i))); err != nil || fresh != want {
				t.Fatalf("round %d, number %d: new %v, %v", round, i, fresh, err)
			}
		}
	}
	tests := []struct {
		name   string
		number []byte
		want   bool
	}{
		{"the next", number(start + replayBits), true},
		{"the next, again", number(start + replayBits), false},
		{"one that was dropped at the end", number(start), false},
		{"far ahead", number(start + 10*replayBits), true},
		{"behind it, not heard", number(start + 10*replayBits - 5), true},
		{"behind it, again", number(start + 10*replayBits - 5), false},
		{"a number received one round before", number(start + 10*replayBits - replayBits + 1), true},
		{"none", nil, false},
		{"short", []byte{1}, false},
		{"zero", number(0), false},
		{"beyond any clock", number(1<<63 + 1), false},
		{"after that", number(start + 10*replayBits + 1), true},
	}
	for _, tt := range tests {
		if fresh, err := s.accept(t.Context(), author, 0, tt.number); err != nil || fresh != tt.want {
			t.Errorf("%s: new %v, %v, want %v", tt.name, fresh, err, tt.want)
		}
	}
}

// TestReplayGuardSurvivesRestart checks that received numbers are not new after a
// restart, that writes are few, and that a failed one is retried.
func TestReplayGuardSurvivesRestart(t *testing.T) {
	disk := &memoryNonces{kept: map[proto.PeerID][]byte{}}
	a, b := newTestKeys(1).Peer(), newTestKeys(2).Peer()
	s := newReplayGuard(disk)
	hear := func(s *replayGuard, p proto.PeerID, n uint64) bool {
		fresh, err := s.accept(t.Context(), p, 0, number(n))
		if err != nil {
			t.Fatal(err)
		}
		return fresh
	}
	for n := uint64(1000); n < 2000; n++ {
		hear(s, a, n)
		hear(s, b, n)
	}
	disk.err = errors.New("disk full")
	if err := s.persist(t.Context()); !errors.Is(err, disk.err) {
		t.Errorf("%v, want %v", err, disk.err)
	}
	disk.err = nil
	for range 3 {
		if err := s.persist(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if disk.puts != 1 || len(disk.kept) != 2 {
		t.Errorf("%d writes for %d authors, want one for both", disk.puts, len(disk.kept))
	}
	s = newReplayGuard(disk)
	for _, tt := range []struct {
		n    uint64
		want bool
	}{{1999, false}, {1000, false}, {1500, false}, {2000, true}, {2000, false}} {
		if got := hear(s, a, tt.n); got != tt.want {
			t.Errorf("after a restart %d is new: %v, want %v", tt.n, got, tt.want)
		}
	}
	disk.err = errors.New("broken")
	if fresh, err := newReplayGuard(disk).accept(t.Context(), a, 0, number(9000)); fresh || err == nil {
		t.Errorf("without its store: new %v, %v", fresh, err)
	}
}

// TestReplayGuardIgnoresClockChanges checks that an author whose clock was ahead and is
// corrected is accepted after its restart by nodes that received its messages before,
// also across a restart of theirs, while no old message is.
func TestReplayGuardIgnoresClockChanges(t *testing.T) {
	disk := &memoryNonces{kept: map[proto.PeerID][]byte{}}
	p := newTestKeys(1).Peer()
	const ahead, right = 1_900_000_000_000_000_000, 1_700_000_000_000_000_000
	s := newReplayGuard(disk)
	for _, tt := range []struct {
		name   string
		of     proto.PeerID
		own    uint64
		libp2p uint64
		want   bool
	}{
		{"of the first start", p, 7<<30 + 1, ahead, true},
		{"of the next, with the clock set back", p, 8<<30 + 1, right, true},
		{"the next one", p, 8<<30 + 2, right + 1, true},
		{"the same under another of libp2p's", p, 8<<30 + 2, ahead + 9, false},
		{"", p, 0, 0, false},
		{"after a restart of the receiver, an old one", p, 8<<30 + 1, right, false},
		{"an older one", p, 7<<30 + 1, ahead, false},
		{"a new one", p, 8<<30 + 3, right + 2, true},
	} {
		if tt.name == "" {
			if err := s.persist(t.Context()); err != nil {
				t.Fatal(err)
			}
			s = newReplayGuard(disk)
			continue
		}
		if fresh, err := s.accept(t.Context(), tt.of, tt.own, number(tt.libp2p)); err != nil || fresh != tt.want {
			t.Errorf("%s: new %v, %v, want %v", tt.name, fresh, err, tt.want)
		}
	}
}

// TestReplayGuardIsBounded checks that many authors do not consume memory forever.
func TestReplayGuardIsBounded(t *testing.T) {
	s := newReplayGuard(nil)
	for i := range 2 * maxReplayAuthors {
		var p proto.PeerID
		binary.BigEndian.PutUint32(p[:], uint32(i))
		if fresh, err := s.accept(t.Context(), p, 0, number(7)); !fresh || err != nil {
			t.Fatalf("author %d: %v, %v", i, fresh, err)
		}
		if i%1000 == 0 {
			s.persist(t.Context())
		}
	}
	if len(s.authors) > maxReplayAuthors {
		t.Errorf("%d authors are stored, the limit is %d", len(s.authors), maxReplayAuthors)
	}
}

// TestGossipRepair checks when and how a member lost by gossip is restored.
func TestGossipRepair(t *testing.T) {
	var a gossipRepair
	did := map[repairAction][]time.Duration{}
	start := time.Hour
	for now := start; now <= start+400*time.Second; now += repairEvery {
		if do := a.next(now); do != repairNone {
			did[do] = append(did[do], now-start)
		}
	}
	if got := did[repairStreams]; len(got) < 2 || got[0] != 10*time.Second || got[1] != 20*time.Second {
		t.Errorf("streams are reopened after %v, want 10s, 20s and so on", got)
	}
	if got := did[repairConnection]; len(got) != 2 || got[0] != 30*time.Second || got[1] != 30*time.Second+reconnectPause {
		t.Errorf("the connection is closed after %v, want 30s and five minutes later", got)
	}
	a = gossipRepair{}
	for i := range 100 { // flapping: not checked while disconnected
		if do := a.next(start + time.Duration(i)*8*time.Second); do != repairNone {
			t.Errorf("check %d: %v after short losses", i, do)
		}
	}
}
