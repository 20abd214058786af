package chain

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/balefire/balefire/proto"
)

const later = 1 << 41 // Unix milliseconds, the year 2039

func num(boot, counter uint64) proto.Seq { return proto.Seq{Boot: boot, Counter: counter} }

func TestUnpack(t *testing.T) {
	tests := []struct {
		name string
		prev proto.Seq
		runs []Run
		want []Item
	}{
		{"one", num(0, 0), []Run{{1, 1, 1}}, []Item{{N: num(1, 1)}}},
		{"two runs of two boots", num(1, 4), []Run{{1, 7, 2}, {3, 1, 1}}, []Item{
			{N: num(1, 7), Prev: num(1, 4)}, {N: num(1, 8), Prev: num(1, 7)}, {N: num(3, 1), Prev: num(1, 8)},
		}},
		{"the last number", num(0, 0), []Run{{1, math.MaxUint64 - 1, 1}}, []Item{{N: num(1, math.MaxUint64-1)}}},
		{"none", num(0, 0), nil, nil},
		{"an empty run", num(0, 0), []Run{{1, 1, 0}}, nil},
		{"number 0", num(0, 0), []Run{{1, 0, 1}}, nil},
		{"boot 0", num(0, 0), []Run{{0, 1, 1}}, nil},
		{"too many in one", num(0, 0), []Run{{1, 1, MaxBundle + 1}}, nil},
		{"2^32 in one", num(0, 0), []Run{{1, 1, math.MaxUint32}}, nil},
		{"too many in two", num(0, 0), []Run{{1, 1, MaxBundle}, {2, 1, 1}}, nil},
		{"beyond 64 bits", num(0, 0), []Run{{1, math.MaxUint64, 2}}, nil},
		{"prev above the first", num(1, 9), []Run{{1, 8, 1}}, nil},
		{"prev is the first", num(1, 8), []Run{{1, 8, 1}}, nil},
		{"falling", num(0, 0), []Run{{2, 1, 1}, {1, 9, 1}}, nil},
		{"overlapping", num(0, 0), []Run{{1, 1, 3}, {1, 3, 1}}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Unpack(tt.prev, tt.runs)
			if !slices.Equal(got, tt.want) || (tt.want == nil) != errors.Is(err, ErrRuns) {
				t.Errorf("got %v, %v; want %v", got, err, tt.want)
			}
		})
	}
	if its, err := Unpack(num(0, 0), []Run{{1, 1, MaxBundle}}); len(its) != MaxBundle || err != nil {
		t.Errorf("a full bundle has %d mails: %v", len(its), err)
	}
}

// testChain is the chain of most tests.
var testChain = Chain{Origin: simOrigin, Box: simBox, Class: proto.Normal}

func numbered(boot, counter uint64, prev proto.Seq) Item {
	return Item{N: num(boot, counter), Prev: prev, NotAfter: later}
}

func TestHomeDecides(t *testing.T) {
	h := new(Home)
	h.Take(testChain, numbered(1, 3, num(0, 0)))
	h.Take(testChain, numbered(2, 2, num(1, 3)))
	if v := h.Skip(testChain, numbered(2, 4, num(2, 2)), proto.CodeDenied); v != Next {
		t.Fatalf("skip: %v", v)
	}
	other := func(f func(c *Chain)) Chain { c := testChain; f(&c); return c }
	tests := []struct {
		name string
		c    Chain
		it   Item
		want Verdict
	}{
		{"the last one again", testChain, numbered(2, 4, num(0, 0)), Again},
		{"an earlier one", testChain, numbered(1, 1, num(0, 0)), Again},
		{"one of an earlier boot that never came", testChain, numbered(1, 4, num(0, 0)), Next},
		{"the next one", testChain, numbered(2, 5, num(2, 4)), Next},
		{"the next one, after a hole", testChain, numbered(2, 9, num(2, 4)), Next},
		{"nothing before it in the spool", testChain, numbered(9, 9, num(0, 0)), Next},
		{"one before it is missing", testChain, numbered(2, 6, num(2, 5)), Busy},
		{"one of an unknown boot is before it", testChain, numbered(4, 1, num(3, 1)), Busy},
		{"another origin", other(func(c *Chain) { c.Origin = proto.PeerID{9} }), numbered(2, 4, num(0, 0)), Next},
		{"another box", other(func(c *Chain) { c.Box = "topic:x" }), numbered(2, 4, num(0, 0)), Next},
		{"another class", other(func(c *Chain) { c.Class = proto.Low }), numbered(2, 4, num(0, 0)), Next},
		{"no class", other(func(c *Chain) { c.Class = 0 }), numbered(2, 5, num(0, 0)), Malformed},
		{"a class of the future", other(func(c *Chain) { c.Class = proto.Low + 1 }), numbered(2, 5, num(0, 0)), Malformed},
		{"no box", other(func(c *Chain) { c.Box = "" }), numbered(2, 5, num(0, 0)), Malformed},
		{"a long box", other(func(c *Chain) { c.Box = strings.Repeat("b", MaxBox+1) }), numbered(2, 5, num(0, 0)), Malformed},
		{"no number", testChain, numbered(0, 0, num(0, 0)), Malformed},
		{"no counter", testChain, numbered(2, 0, num(0, 0)), Malformed},
		{"itself before it", testChain, numbered(2, 5, num(2, 5)), Malformed},
		{"a later one before it", testChain, numbered(2, 5, num(3, 1)), Malformed},
		{"half a number before it", testChain, numbered(2, 5, num(2, 0)), Malformed},
		{"no time", testChain, Item{N: num(2, 5)}, Malformed},
		{"a time before 1970", testChain, Item{N: num(2, 5), NotAfter: -1}, Malformed},
		{"a time beyond the calendar", testChain, Item{N: num(2, 5), NotAfter: maxTime + 1}, Malformed},
	}
	before := h.Encode()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if v := h.Check(tt.c, tt.it); v != tt.want {
				t.Errorf("verdict %v, want %v", v, tt.want)
			}
		})
	}
	if !slices.Equal(h.Encode(), before) {
		t.Error("Check changed something")
	}
	if code, ok := h.Refused(testChain, num(2, 4)); !ok || code != proto.CodeDenied {
		t.Errorf("2.4: %v, %v", code, ok)
	}
	for _, n := range []proto.Seq{num(2, 2), num(1, 4), num(7, 1)} {
		if code, ok := h.Refused(testChain, n); ok {
			t.Errorf("%s: %v", n, code)
		}
	}
}

func TestVerdictsHaveCodes(t *testing.T) {
	want := map[Verdict]proto.Code{
		Malformed: proto.CodeBadForm, Next: proto.CodeOK, Again: proto.CodeOK, Busy: proto.CodeBusy, Expired: proto.CodeExpired, Full: proto.CodeFull,
	}
	for v, code := range want {
		if v.Code() != code {
			t.Errorf("verdict %d has code %v, want %v", v, v.Code(), code)
		}
	}
}

func TestSkipNeedsACodeThatEnds(t *testing.T) {
	h := new(Home)
	for _, code := range []proto.Code{proto.CodeOK, proto.CodeBusy, proto.CodeFull, proto.CodeMoved, 99} {
		if v := h.Skip(testChain, numbered(1, 1, num(0, 0)), code); v != Malformed {
			t.Errorf("%v: %v", code, v)
		}
	}
	if len(h.Boxes()) > 0 {
		t.Error("something was noted")
	}
}

// A home keeps a bounded number of refusals, and forgets first what the origin has heard.
func TestRefusalsAreBounded(t *testing.T) {
	h := new(Home)
	prev := num(0, 0)
	for i := range uint64(MaxSkips) {
		h.Skip(testChain, numbered(1, 2*i+1, prev), proto.CodeDenied)
		h.Take(testChain, numbered(1, 2*i+2, num(1, 2*i+1)))
		prev = num(1, 2*i+2)
	}
	last := prev.Counter
	if v := h.Skip(testChain, numbered(1, last+1, prev), proto.CodeDenied); v != Busy {
		t.Fatalf("the origin may ask for all of them: %v", v)
	}
	if v := h.Skip(testChain, numbered(1, last+1, num(1, 3)), proto.CodeTooLarge); v != Next {
		t.Fatalf("the origin has heard of all after 1.3: %v", v)
	}
	for n, want := range map[uint64]bool{1: true, 3: true, 5: false, last + 1: true} {
		if _, ok := h.Refused(testChain, num(1, n)); ok != want {
			t.Errorf("refusal of 1.%d is kept: %v", n, ok)
		}
	}
}

func TestBoxesAndBootsAreBounded(t *testing.T) {
	h := new(Home)
	for i := range uint64(MaxBoots) {
		if v := h.Take(testChain, numbered(i+1, 1, num(0, 0))); v != Next {
			t.Fatal(v)
		}
	}
	if v := h.Take(testChain, numbered(MaxBoots+1, 1, num(0, 0))); v != Full {
		t.Errorf("one more boot: %v", v)
	}
	if v := h.Take(testChain, numbered(MaxBoots, 2, num(0, 0))); v != Next {
		t.Errorf("a known boot: %v", v)
	}
	c := testChain
	for i := range MaxBoxes - 1 {
		c.Box = string(rune('a'+i%26)) + strings.Repeat("b", i/26)
		c.Box = c.Box[:min(len(c.Box), MaxBox)]
		h.box(c.Origin, c.Box).floor = 1
	}
	if v := h.Take(Chain{simOrigin, "one more", proto.Low}, numbered(1, 1, num(0, 0))); v != Full {
		t.Errorf("one more box: %v", v)
	}
	if v := h.Take(Chain{proto.PeerID{7}, "one more", proto.Low}, numbered(1, 1, num(0, 0))); v != Next {
		t.Errorf("a box of another origin: %v", v)
	}
}

// Boxes that come and go do not use up the boxes of an origin.
func TestBoxesThatAreGoneLeaveSpace(t *testing.T) {
	h := new(Home)
	const end = 1_000_000
	take := func(box string, notAfter int64) Verdict {
		return h.Take(Chain{simOrigin, box, proto.Low}, Item{N: num(1, 1), NotAfter: notAfter})
	}
	for i := range MaxBoxes {
		if v := take(fmt.Sprint("agent:", i), end+int64(i%2)*end); v != Next {
			t.Fatal(v)
		}
	}
	over := end + proto.Skew.Milliseconds()
	if h.Forget(over); take("agent:new", 3*end) != Full {
		t.Error("a box of which a mail may come again was forgotten")
	}
	if h.Forget(over + 1); take("agent:new", 3*end) != Next {
		t.Error("there is no space after half of the boxes have ended")
	}
	if v := take("agent:1", 2*end); v != Again {
		t.Errorf("a mail that has not ended: %v", v)
	}
}

// What was dropped last is remembered for those who ask again, and decides nothing.
func TestDroppedNotesAreRemembered(t *testing.T) {
	var h Home
	c := func(i int) Chain {
		return Chain{Origin: proto.PeerID{1}, Box: fmt.Sprint("agent:reply-", i), Class: proto.Normal}
	}
	for i := range MaxDropped + 1 {
		h.Take(c(i), numbered(1, 1, proto.Seq{}))
		h.Skip(c(i), numbered(1, 2, num(1, 1)), proto.CodeDenied)
		if _, had := h.Had(c(i), num(1, 3)); had {
			t.Fatal("a mail that never came was had")
		}
		h.Drop(c(i).Box)
	}
	for _, tt := range []struct {
		name string
		c    Chain
		n    proto.Seq
		code proto.Code
		had  bool
	}{
		{"taken", c(1), num(1, 1), none, true},
		{"refused", c(MaxDropped), num(1, 2), proto.CodeDenied, true},
		{"never came", c(1), num(1, 3), none, false},
		{"of another start", c(1), num(2, 1), none, false},
		{"of another class", Chain{c(1).Origin, c(1).Box, proto.High}, num(1, 1), none, false},
		{"of another origin", Chain{proto.PeerID{2}, c(1).Box, proto.Normal}, num(1, 1), none, false},
		{"no chain", Chain{Origin: c(1).Origin, Box: c(1).Box}, num(1, 1), none, false},
		{"dropped long ago", c(0), num(1, 1), none, false},
	} {
		if code, had := h.Had(tt.c, tt.n); code != tt.code || had != tt.had {
			t.Errorf("%s: %s, %v", tt.name, code.Name(), had)
		}
	}
	if v := h.Check(c(1), numbered(1, 1, proto.Seq{})); v != Next || len(h.Boxes()) != 0 {
		t.Errorf("a mail of a dropped box is %v, notes of %v", v, h.Boxes())
	}
}

// What is forgotten is not taken again, whatever the clock says later.
func TestForgottenMailIsExpired(t *testing.T) {
	h := new(Home)
	old := Item{N: num(1, 5), NotAfter: 1_000_000}
	h.Take(testChain, old)
	h.Forget(old.NotAfter + proto.Skew.Milliseconds())
	if v := h.Check(testChain, old); v != Again {
		t.Errorf("forgotten within the skew: %v", v)
	}
	h.Forget(old.NotAfter + proto.Skew.Milliseconds() + 1)
	if v := h.Check(testChain, old); v != Expired {
		t.Errorf("after it was forgotten: %v", v)
	}
	if v := h.Skip(testChain, old, Expired.Code()); v != Next {
		t.Errorf("its refusal: %v", v)
	}
	if v := h.Take(testChain, Item{N: num(1, 6), Prev: old.N, NotAfter: later}); v != Next {
		t.Errorf("what comes after it: %v", v)
	}
}

func TestArrivalsCountWhatIsQueued(t *testing.T) {
	h, a := new(Home), Arrivals{}
	first, second := numbered(1, 1, num(0, 0)), numbered(1, 2, num(1, 1))
	if v := a.Check(h, testChain, second); v != Busy {
		t.Errorf("before the first: %v", v)
	}
	a.Queue(testChain, first)
	if v := a.Check(h, testChain, second); v != Next {
		t.Errorf("behind the first in the queue: %v", v)
	}
	if v := a.Check(h, testChain, first); v != Next {
		t.Errorf("the first again, which is not durable: %v", v)
	}
	a.Queue(testChain, second)
	a.Done(testChain, false)
	if v := a.Check(h, testChain, numbered(1, 3, num(1, 2))); v != Busy {
		t.Errorf("after a failed write: %v", v)
	}
	if v := h.Take(testChain, second); v != Busy {
		t.Errorf("the second in the log without the first: %v", v)
	}
	a.Done(testChain, true)
	a.Done(testChain, true)
	if len(a.chains) > 0 {
		t.Error("something is left")
	}
}
