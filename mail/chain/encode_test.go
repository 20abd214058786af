package chain

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/balefire/balefire/proto"
)

// sampleHome returns a home with notes of every kind.
func sampleHome() *Home {
	h := new(Home)
	h.Skip(testChain, numbered(1, 3, num(0, 0)), proto.CodeDenied)
	h.Skip(testChain, numbered(1, 4, num(0, 0)), proto.CodeDenied)
	h.Skip(testChain, numbered(1, 5, num(0, 0)), proto.CodeTooLarge)
	h.Take(testChain, numbered(7, 2, num(1, 5)))
	earlier := new(Home)
	earlier.Take(testChain, numbered(7, 5, num(0, 0)))
	earlier.Take(testChain, numbered(9, 1, num(0, 0)))
	h.Merge(simBox, earlier)
	h.Take(Chain{proto.PeerID{3}, "topic:x", proto.Critical}, numbered(math.MaxUint64, math.MaxUint64, num(0, 0)))
	h.Take(Chain{proto.PeerID{3}, "agent:a", proto.Low}, Item{N: num(1, 1), NotAfter: 1})
	h.Forget(1_000_000)
	return h
}

func TestNotesReadBack(t *testing.T) {
	for _, h := range []*Home{new(Home), sampleHome()} {
		b := h.Encode()
		back, err := Decode(b)
		if err != nil || !bytes.Equal(back.Encode(), b) {
			t.Errorf("%x read back as %v: %v", b, back, err)
		}
	}
	if !bytes.Equal(sampleHome().Encode(), sampleHome().Encode()) {
		t.Error("the same notes have two encodings")
	}
}

// What is left when all mail of an origin with the most boxes has expired can be read again: a
// node starts.
func TestNotesOfBoxesThatAreAllGone(t *testing.T) {
	var h Home
	for i := range MaxBoxes {
		c := Chain{proto.PeerID{1}, fmt.Sprint("agent:", i), proto.Normal}
		if v := h.Take(c, Item{N: num(1, 1), NotAfter: 1000}); v != Next {
			t.Fatal(v)
		}
	}
	h.Forget(1000 + proto.Skew.Milliseconds() + 1)
	notes := h.Encode()
	if back, err := Decode(notes); err != nil || !bytes.Equal(notes, new(Home).Encode()) {
		t.Errorf("%x read back as %v: %v", notes, back, err)
	}
}

// Notes with an origin that has no boxes are read: it is left out.
func TestNotesOfAnOriginWithoutBoxes(t *testing.T) {
	h := sampleHome()
	want := h.Encode()
	h.origins[proto.PeerID{9}] = map[string]*boxNotes{}
	back, err := Decode(h.Encode())
	if err != nil {
		t.Fatal(err)
	}
	if got := back.Encode(); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

func TestBadNotes(t *testing.T) {
	good := sampleHome().Encode()
	for n := range good {
		if _, err := Decode(good[:n]); !errors.Is(err, ErrNotes) {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
	}
	one := func(edit func(n *boxNotes)) []byte {
		h := new(Home)
		h.Take(testChain, numbered(5, 5, num(0, 0)))
		edit(h.box(testChain.Origin, testChain.Box))
		return h.Encode()
	}
	first := func(n *boxNotes) *bootNote { return &n.chains[proto.Normal.Index()][0] }
	tests := []struct {
		name string
		b    []byte
	}{
		{"another version", append([]byte{2}, good[1:]...)},
		{"bytes after the end", append(bytes.Clone(good), 0)},
		{"a long number", []byte{version, 0x80, 0}},
		{"a number beyond 64 bits", append([]byte{version}, bytes.Repeat([]byte{0xff}, 11)...)},
		{"2^31 origins", append([]byte{version}, 0xff, 0xff, 0xff, 0xff, 7)},
		{"no notes", one(func(n *boxNotes) { *n = boxNotes{} })},
		{"boot 0", one(func(n *boxNotes) { first(n).boot = 0 })},
		{"boots out of order", one(func(n *boxNotes) { c := &n.chains[proto.Normal.Index()]; *c = append(*c, (*c)[0]) })},
		{"number 0", one(func(n *boxNotes) { first(n).first = 0 })},
		{"last before first", one(func(n *boxNotes) { first(n).last = 4 })},
		{"own above last", one(func(n *boxNotes) { first(n).own = 6 })},
		{"a number that is reserved", bytes.Replace(one(func(n *boxNotes) { first(n).notAfter = 1 }), []byte{5, 0, 1, 0}, []byte{5, 1, 1, 0}, 1)}, // behind the own one
		{"no time", one(func(n *boxNotes) { first(n).notAfter = 0 })},
		{"a time beyond the calendar", one(func(n *boxNotes) { first(n).notAfter = maxTime + 1 })},
		{"a floor beyond the calendar", one(func(n *boxNotes) { n.floor = maxTime + 1 })},
		{"a refusal for now", one(func(n *boxNotes) { first(n).skips = []skipRun{{1, 1, proto.CodeBusy}} })},
		{"a refusal above the last", one(func(n *boxNotes) { first(n).skips = []skipRun{{6, 6, proto.CodeDenied}} })},
		{"refusals out of order", one(func(n *boxNotes) { first(n).skips = []skipRun{{3, 3, proto.CodeDenied}, {3, 3, proto.CodeDenied}} })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if h, err := Decode(tt.b); !errors.Is(err, ErrNotes) || h != nil {
				t.Errorf("got %v, %v", h, err)
			}
		})
	}
}

// FuzzNotes reads arbitrary bytes: what is read has that one encoding, but for origins without
// boxes, and can be used.
func FuzzNotes(f *testing.F) {
	f.Add(new(Home).Encode())
	f.Add(sampleHome().Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := Decode(b)
		if err != nil {
			if !errors.Is(err, ErrNotes) {
				t.Errorf("%v is not an error of the package", err)
			}
			return
		}
		if again := h.Encode(); !bytes.Equal(again, b) && len(b)-len(again) < len(proto.PeerID{}) {
			t.Errorf("%x is encoded as %x", b, again)
		}
		h.Check(testChain, numbered(1, 1, num(0, 0)))
		for _, box := range h.Boxes() {
			other := sampleHome()
			for range 2 {
				other.Merge(box, h)
			}
			if c, err := Decode(other.Encode()); err != nil || !bytes.Equal(c.Encode(), other.Encode()) {
				t.Errorf("merged: %v", err)
			}
			other.Drop(box)
		}
		h.Forget(maxTime)
		if _, err := Decode(h.Encode()); err != nil {
			t.Errorf("after Forget: %v", err)
		}
	})
}

// FuzzUnpack reads arbitrary runs.
func FuzzUnpack(f *testing.F) {
	f.Add(uint64(0), uint64(0), uint64(1), uint64(1), uint32(3), uint64(1), uint64(9), uint32(1))
	f.Add(uint64(1), uint64(1), uint64(1), uint64(math.MaxUint64), uint32(1), uint64(2), uint64(1), uint32(math.MaxUint32))
	f.Fuzz(func(t *testing.T, pb, pc, b1, f1 uint64, c1 uint32, b2, f2 uint64, c2 uint32) {
		its, err := Unpack(num(pb, pc), []Run{{b1, f1, c1}, {b2, f2, c2}})
		if err != nil {
			if !errors.Is(err, ErrRuns) {
				t.Errorf("%v is not an error of the package", err)
			}
			return
		}
		if len(its) != int(c1)+int(c2) {
			t.Errorf("%d mails of %d and %d", len(its), c1, c2)
		}
		var runs []Run
		for i, it := range its {
			if it.Prev.Compare(it.N) >= 0 || i > 0 && it.Prev != its[i-1].N {
				t.Errorf("%s after %s", it.N, it.Prev)
			}
			runs = appendRun(runs, it.N)
		}
		if again, err := Unpack(num(pb, pc), runs); err != nil || len(again) != len(its) {
			t.Errorf("%v read back as %v: %v", runs, again, err)
		}
	})
}
