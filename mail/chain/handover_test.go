package chain

import (
	"bytes"
	"testing"

	"github.com/balefire/balefire/proto"
)

func TestMerge(t *testing.T) {
	old := new(Home)
	old.Skip(testChain, numbered(2, 3, num(0, 0)), proto.CodeDenied)
	old.Skip(testChain, numbered(2, 7, num(2, 3)), proto.CodeTooLarge)
	old.Take(testChain, numbered(2, 9, num(2, 7)))
	old.Take(testChain, numbered(4, 1, num(2, 9)))
	old.Take(Chain{testChain.Origin, "agent:other", proto.Normal}, numbered(1, 1, num(0, 0)))
	now := new(Home)
	now.Take(testChain, numbered(2, 7, num(0, 0)))
	for range 2 { // a handoff may come twice
		if v := now.Merge(simBox, old); v != Next {
			t.Fatal(v)
		}
	}
	for n, want := range map[uint64]proto.Code{3: proto.CodeDenied, 7: proto.CodeOK} {
		if code, _ := now.Refused(testChain, num(2, n)); code != want {
			t.Errorf("2.%d was refused with %v, want %v", n, code, want)
		}
	}
	for _, it := range []Item{numbered(2, 9, num(0, 0)), numbered(4, 1, num(0, 0))} {
		if v := now.Check(testChain, it); v != Again {
			t.Errorf("%s, which the old home took: %v", it.N, v)
		}
	}
	if boxes := now.Boxes(); len(boxes) != 1 || boxes[0] != simBox {
		t.Errorf("notes of %v", boxes)
	}
	for part := range old.Parts("agent:other") {
		if boxes := part.Boxes(); len(boxes) != 1 || boxes[0] != "agent:other" {
			t.Errorf("notes of %v in a part", boxes)
		}
	}
	old.Drop(simBox)
	old.Drop("agent:other")
	if !bytes.Equal(old.Encode(), new(Home).Encode()) {
		t.Error("notes are left")
	}
}

func TestMergeChangesNothingAboveALimit(t *testing.T) {
	old, now := new(Home), new(Home)
	for i := range uint64(MaxBoots) {
		old.Take(testChain, numbered(2*i+1, 1, num(0, 0)))
		now.Take(testChain, numbered(2*i+2, 1, num(0, 0)))
	}
	before := now.Encode()
	if v := now.Merge(simBox, old); v != Full || !bytes.Equal(now.Encode(), before) {
		t.Errorf("verdict %v", v)
	}
	if v := now.Check(testChain, numbered(1, 1, num(0, 0))); v != Full {
		t.Errorf("a mail of one boot more: %v", v)
	}
	now.Rename(simBox, "agent:other")
	old.Merge("agent:other", now)
	old.Rename("agent:other", simBox) // too many together: those that came count
	if !bytes.Equal(old.Encode(), before) {
		t.Error("the notes that came are not those that are kept")
	}
}

// The notes of a box come to its new home in parts, under another name until it is served there,
// and decide there what they decided at the old one.
func TestPartsOfABox(t *testing.T) {
	old, now := new(Home), new(Home)
	other := Chain{proto.PeerID{31: 9}, simBox, proto.Low}
	for n := range uint64(5) {
		old.Take(testChain, numbered(2, 2*n+1, num(0, 0)))
		old.Take(other, numbered(n+1, 7, num(0, 0)))
	}
	old.Skip(other, numbered(5, 9, num(5, 7)), proto.CodeDenied)
	old.Take(Chain{testChain.Origin, "agent:other", proto.Normal}, numbered(1, 1, num(0, 0)))
	now.Take(testChain, numbered(1, 3, num(0, 0))) // of an earlier time as its home
	parts := 0
	for part := range old.Parts(simBox) {
		back, err := Decode(part.Encode())
		if err != nil || len(back.Boxes()) != 1 {
			t.Fatalf("%v of %v", err, back.Boxes())
		}
		back.Rename(simBox, "in:"+simBox)
		if v := now.Merge("in:"+simBox, back); v != Next {
			t.Fatal(v)
		}
		parts++
	}
	if _, err := Decode(now.Encode()); err != nil || parts != 2 {
		t.Errorf("%d parts, %v", parts, err)
	}
	if v := now.Check(testChain, numbered(2, 9, num(2, 7))); v != Busy {
		t.Errorf("before it is served: %v", v)
	}
	now.Rename("in:"+simBox, simBox)
	if v := now.Check(testChain, numbered(1, 3, num(0, 0))); v != Again {
		t.Errorf("what it had before: %v", v)
	}
	for _, c := range []Chain{testChain, other} {
		for n := range uint64(12) {
			for boot := range uint64(7) {
				it := numbered(boot, n, num(0, 0))
				if x, y := old.Check(c, it), now.Check(c, it); x != y && !(c == testChain && boot == 1) {
					t.Errorf("%v %s: %v, want %v", c.Class, it.N, y, x)
				}
			}
		}
	}
	if code, is := now.Refused(other, num(5, 9)); !is || code != proto.CodeDenied {
		t.Errorf("refused with %v", code)
	}
	now.Rename(simBox, "agent:x")
	now.Drop("agent:x")
	if !bytes.Equal(now.Encode(), new(Home).Encode()) {
		t.Error("notes are left")
	}
}
