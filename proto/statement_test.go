package proto

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func drawStatement(t *rapid.T) Statement {
	s := Statement{
		Fact:      Fact(rapid.IntRange(int(FactStored), int(FactOrphan)).Draw(t, "fact")),
		State:     TaskState(rapid.IntRange(0, 13).Draw(t, "state")),
		Algorithm: byte(rapid.IntRange(0, 1).Draw(t, "algorithm")),
		Time:      rapid.Int64().Draw(t, "time"),
		Epoch:     Seq{rapid.Uint64().Draw(t, "boot"), rapid.Uint64().Draw(t, "counter")},
		Attempt:   rapid.Uint32().Draw(t, "attempt"),
	}
	drawBytes(t, s.Mesh[:], "mesh")
	drawBytes(t, s.Task[:], "task")
	drawBytes(t, s.Node[:], "node")
	drawBytes(t, s.Digest[:], "digest")
	return s
}

// A statement survives a round trip; any other length is refused, and any flipped bit is
// refused or decodes to another statement.
func TestStatementRoundTripAndDamage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawStatement(t)
		b := s.Append([]byte("before"))[len("before"):]
		if len(b) != StatementSize {
			t.Fatalf("%d bytes, want %d", len(b), StatementSize)
		}
		if back, err := ParseStatement(b); err != nil || back != s {
			t.Fatalf("%+v became %+v: %v", s, back, err)
		}
		for cut := range len(b) {
			if _, err := ParseStatement(b[:cut]); !errors.Is(err, ErrBadStatement) {
				t.Fatalf("cut at %d: %v", cut, err)
			}
		}
		if _, err := ParseStatement(append(bytes.Clone(b), 0)); !errors.Is(err, ErrBadStatement) {
			t.Fatalf("with a trailer: %v", err)
		}
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			back, err := ParseStatement(b)
			if err == nil && (back == s || !bytes.Equal(back.Append(nil), b)) {
				t.Fatalf("bit %d flipped and nothing changed", bit)
			}
			if err != nil && !errors.Is(err, ErrBadStatement) {
				t.Fatalf("bit %d flipped: %v is not an error of the package", bit, err)
			}
			b[bit/8] ^= 1 << (bit % 8)
		}
	})
}

func TestBadStatements(t *testing.T) {
	for _, tt := range []struct {
		name string
		at   int
		v    byte
	}{
		{"version 0", 0, 0},
		{"the next version", 0, 2},
		{"no fact", 1, 0},
		{"a later fact", 1, 6},
		{"a later algorithm", 3, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Statement{Fact: FactDone}
			b := s.Append(nil)
			b[tt.at] = tt.v
			if _, err := ParseStatement(b); !errors.Is(err, ErrBadStatement) {
				t.Errorf("%v, want %v", err, ErrBadStatement)
			}
		})
	}
}

func TestFactNames(t *testing.T) {
	for f, want := range map[Fact]string{
		FactStored: "stored", FactAccepted: "accepted", FactStarted: "started", FactDone: "done", FactOrphan: "orphan", 9: "fact 9",
	} {
		if got := f.String(); got != want {
			t.Errorf("fact %d is %q, want %q", byte(f), got, want)
		}
	}
}
