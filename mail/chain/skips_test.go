package chain

import (
	"testing"

	"github.com/balefire/balefire/proto"
)

// runs returns how many runs of refused numbers h keeps of one origin and box.
func (h *Home) runs(origin proto.PeerID, box string) (n int) {
	for _, boots := range h.origins[origin][box].chains {
		for _, b := range boots {
			n += len(b.skips)
		}
	}
	return n
}

// skipMany has mails of a chain refused for two reasons in turn, in 100 boots from one on. The
// mail before each that the origin says to have is the last one that was noted, or none.
func skipMany(h *Home, c Chain, from uint64, heard bool) (busy int) {
	codes, prev := []proto.Code{proto.CodeDenied, proto.CodeExpired}, num(0, 0)
	for boot := from; boot < from+100; boot++ {
		for n := range uint64(100) {
			it := numbered(boot, n+1, prev)
			if heard {
				it.Prev = num(0, 0)
			}
			if h.Skip(c, it, codes[n%2]) == Next {
				prev = it.N
			} else {
				busy++
			}
		}
	}
	return busy
}

// What a home keeps of the refusals of one origin and box is bounded, however many boots it
// names. An origin that hears of its refusals is not held up, whatever other classes have.
func TestRefusalsOfAllBootsAreBounded(t *testing.T) {
	h, c := new(Home), testChain
	for class := proto.Critical; class <= proto.Low; class++ {
		c.Class = class
		if busy := skipMany(h, c, 1, false); busy == 0 {
			t.Errorf("class %s: none was busy", class.Name())
		}
	}
	if n := h.runs(c.Origin, c.Box); n != int(classes)*MaxSkips {
		t.Errorf("%d runs are kept", n)
	}
	for class := proto.Critical; class <= proto.Low; class++ {
		c.Class = class
		if busy := skipMany(h, c, 200, true); busy > 0 {
			t.Errorf("class %s: %d were busy of an origin that hears", class.Name(), busy)
		}
		if v := h.Take(c, numbered(300, 1, num(299, 100))); v != Next {
			t.Errorf("class %s: the next mail is %v", class.Name(), v)
		}
	}
	if n := h.runs(c.Origin, c.Box); n > int(classes)*MaxSkips {
		t.Errorf("%d runs are kept", n)
	}
	if _, ok := h.Refused(c, num(299, 100)); !ok {
		t.Error("the last refusal is forgotten")
	}
}

// A home that gets the notes of an earlier one keeps no more: the oldest refusals go.
func TestRefusalsOfTwoHomesAreBounded(t *testing.T) {
	old, h := new(Home), new(Home)
	skipMany(old, testChain, 1, false)
	skipMany(h, testChain, 200, false)
	if v := h.Merge(simBox, old); v != Next || h.runs(simOrigin, simBox) != MaxSkips {
		t.Errorf("%v, %d runs", v, h.runs(simOrigin, simBox))
	}
	if _, ok := h.Refused(testChain, num(200, 1)); !ok {
		t.Error("a refusal of the newer home is forgotten")
	}
}
