package chain

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/balefire/balefire/proto"
)

// newSpool returns an origin in its second boot with a home and n stored mails, whose refs
// are 1 to n, in the normal class.
func newSpool(t *testing.T, n int) *Origin {
	t.Helper()
	o := NewOrigin(2)
	o.SetHome(simBox, simPeer(0), 1)
	for i := range n {
		add(t, o, Mail{Ref: uint64(i + 1), NotAfter: later, Size: 100})
	}
	return o
}

func add(t *testing.T, o *Origin, m Mail) (proto.Class, proto.Seq) {
	t.Helper()
	class, n := o.Add(simBox, m)
	if o.Ready(simBox, class) && o.Len(simBox, class) == 1 {
		t.Error("a mail may be sent before it is stored")
	}
	if !o.Stored(simBox, class, n, m.Ref) {
		t.Fatalf("%s is not there", n)
	}
	return class, n
}

func next(t *testing.T, o *Origin) Bundle {
	t.Helper()
	b, ok := o.Next(simBox, proto.Normal, MaxBundleBytes)
	if !ok {
		t.Fatal("nothing to send")
	}
	return b
}

func TestBundlesAreBounded(t *testing.T) {
	o := newSpool(t, MaxBundle+2)
	if b := next(t, o); len(b.Refs) != MaxBundle || b.Size != 100*MaxBundle || !slices.Equal(b.Runs, []Run{{2, 1, MaxBundle}}) || b.Prev != num(0, 0) || b.Generation != 1 {
		t.Errorf("the first bundle has %d mails of %d bytes, runs %v, prev %s", len(b.Refs), b.Size, b.Runs, b.Prev)
	}
	if b := next(t, o); len(b.Refs) != 2 || b.Prev != num(2, MaxBundle) || b.Number != 2 {
		t.Errorf("the second bundle: %+v", b)
	}
	if _, ok := o.Next(simBox, proto.Normal, MaxBundleBytes); ok {
		t.Error("there is a third")
	}
	o = newSpool(t, 1)
	add(t, o, Mail{Ref: 2, NotAfter: later, Size: MaxBundleBytes - 100})
	add(t, o, Mail{Ref: 3, NotAfter: later, Size: MaxBundleBytes + 1})
	add(t, o, Mail{Ref: 4, NotAfter: later, Size: 1})
	for _, want := range [][]uint64{{1, 2}, {3}, {4}} {
		if b := next(t, o); !slices.Equal(b.Refs, want) {
			t.Errorf("mails %v in a bundle, want %v", b.Refs, want)
		}
	}
}

func TestABoxWithoutAHomeWaits(t *testing.T) {
	o := NewOrigin(2)
	class, n := o.Add(simBox, Mail{NotAfter: later})
	o.Stored(simBox, class, n, 1)
	if o.Ready(simBox, class) {
		t.Error("it may be sent to nobody")
	}
	if o.SetHome(simBox, simPeer(0), 3); !o.Ready(simBox, class) {
		t.Error("it has a home and waits")
	}
	if o.SetHome(simBox, simPeer(0), 3) || !o.SetHome(simBox, simPeer(1), 3) {
		t.Error("the same home is news, or another one is none")
	}
}

// A mail follows the mails with its key that are still in the spool.
func TestAKeyStaysInItsChain(t *testing.T) {
	o := newSpool(t, 0)
	high, first := add(t, o, Mail{Ref: 1, Class: proto.High, Key: "k", NotAfter: later})
	if class, _ := add(t, o, Mail{Ref: 2, Class: proto.Low, Key: "k", NotAfter: later}); class != high {
		t.Errorf("the second is in the chain of class %v", class)
	}
	if class, _ := add(t, o, Mail{Ref: 3, Class: proto.Low, Key: "other", NotAfter: later}); class != proto.Low {
		t.Errorf("another key is in the chain of class %v", class)
	}
	b, _ := o.Next(simBox, high, MaxBundleBytes)
	if _, err := o.Answer(b.To, Answer{Number: b.Number, Code: proto.CodeFull, UpTo: first}); err != nil {
		t.Fatal(err)
	}
	if class, _ := add(t, o, Mail{Ref: 4, Class: proto.Critical, Key: "k", NotAfter: later}); class != high {
		t.Errorf("the third is in the chain of class %v, and the second still waits", class)
	}
	o.Resume(simBox, high)
	b, _ = o.Next(simBox, high, MaxBundleBytes)
	if out, err := o.Answer(b.To, Answer{Number: b.Number, UpTo: num(2, 3)}); err != nil || !slices.Equal(out.Accepted, []uint64{2, 4}) {
		t.Fatalf("%+v, %v", out, err)
	}
	if class, _ := add(t, o, Mail{Ref: 5, Class: proto.Critical, Key: "k", NotAfter: later}); class != proto.Critical {
		t.Errorf("with nothing of its key in the spool, a mail is in the chain of class %v", class)
	}
}

func TestAnswers(t *testing.T) {
	tests := []struct {
		name string
		a    Answer
		want Settled
		left int
	}{
		{"all", Answer{UpTo: num(2, 4)}, Settled{Accepted: []uint64{1, 2, 3, 4}}, 0},
		{"some refused for good", Answer{UpTo: num(2, 4), Skipped: []Skip{{num(2, 1), proto.CodeDenied, "no"}, {num(2, 3), proto.CodeTooLarge, ""}}},
			Settled{Accepted: []uint64{2, 4}, Refused: []Refusal{{1, proto.CodeDenied, "no"}, {3, proto.CodeTooLarge, ""}}}, 0},
		{"a part", Answer{Code: proto.CodeFull, UpTo: num(2, 2)}, Settled{Accepted: []uint64{1, 2}, Stopped: proto.CodeFull}, 2},
		{"nothing", Answer{Code: proto.CodeBusy}, Settled{Stopped: proto.CodeBusy}, 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := newSpool(t, 4)
			b := next(t, o)
			tt.a.Number, tt.want.Box, tt.want.Class = b.Number, simBox, proto.Normal
			got, err := o.Answer(b.To, tt.a)
			if err != nil || fmt.Sprint(got) != fmt.Sprint(tt.want) || o.Len(simBox, proto.Normal) != tt.left {
				t.Errorf("got %+v, %v, %d left; want %+v, %d", got, err, o.Len(simBox, proto.Normal), tt.want, tt.left)
			}
			if stopped := tt.a.Code != proto.CodeOK; o.Ready(simBox, proto.Normal) {
				t.Error("there is something to send at once")
			} else if o.Resume(simBox, proto.Normal); o.Ready(simBox, proto.Normal) != stopped {
				t.Errorf("after Resume there is something to send: %v", !stopped)
			}
			if again, err := o.Answer(b.To, tt.a); err != nil || again.Box != "" {
				t.Errorf("the same answer again: %+v, %v", again, err)
			}
		})
	}
}

func TestBadAnswers(t *testing.T) {
	denied := proto.CodeDenied
	tests := []struct {
		name string
		from proto.PeerID
		a    Answer
	}{
		{"of another node", simPeer(1), Answer{UpTo: num(2, 4)}},
		{"up to a mail that was not sent", simPeer(0), Answer{UpTo: num(2, 5)}},
		{"up to a mail of another boot", simPeer(0), Answer{UpTo: num(1, 4)}},
		{"all, and not the last", simPeer(0), Answer{UpTo: num(2, 3)}},
		{"all, and nothing", simPeer(0), Answer{}},
		{"not all, and the last", simPeer(0), Answer{Code: proto.CodeFull, UpTo: num(2, 4)}},
		{"stopped with a code that ends a mail", simPeer(0), Answer{Code: denied, UpTo: num(2, 2)}},
		{"refused with a code for now", simPeer(0), Answer{UpTo: num(2, 4), Skipped: []Skip{{num(2, 1), proto.CodeBusy, ""}}}},
		{"refused and not sent", simPeer(0), Answer{UpTo: num(2, 4), Skipped: []Skip{{num(2, 9), denied, ""}}}},
		{"refused behind the last", simPeer(0), Answer{Code: proto.CodeFull, UpTo: num(2, 2), Skipped: []Skip{{num(2, 3), denied, ""}}}},
		{"refused twice", simPeer(0), Answer{UpTo: num(2, 4), Skipped: []Skip{{num(2, 1), denied, ""}, {num(2, 1), denied, ""}}}},
		{"refused out of order", simPeer(0), Answer{UpTo: num(2, 4), Skipped: []Skip{{num(2, 2), denied, ""}, {num(2, 1), denied, ""}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := newSpool(t, 4)
			tt.a.Number = next(t, o).Number
			if out, err := o.Answer(tt.from, tt.a); !errors.Is(err, ErrAnswer) || out.Box != "" {
				t.Errorf("got %+v, %v", out, err)
			}
			if o.Len(simBox, proto.Normal) != 4 {
				t.Error("something has ended")
			}
			if _, err := o.Answer(simPeer(0), Answer{Number: tt.a.Number, UpTo: num(2, 4)}); err != nil {
				t.Errorf("the right answer afterwards: %v", err)
			}
		})
	}
}

// A mail ends only when all before it in its chain have ended, and a home that has lost the
// box ends nothing.
func TestAnswersOfAnEarlierHome(t *testing.T) {
	if wrong := earlierHome(); wrong != "" {
		t.Error(wrong)
	}
}

// earlierHome returns what goes wrong.
func earlierHome() string {
	o := NewOrigin(2)
	o.SetHome(simBox, simPeer(0), 1)
	var sent [2]Bundle
	for i := range sent {
		_, n := o.Add(simBox, Mail{Ref: uint64(i + 1), NotAfter: later})
		o.Stored(simBox, proto.Normal, n, uint64(i+1))
		sent[i], _ = o.Next(simBox, proto.Normal, MaxBundleBytes)
	}
	if out, err := o.Answer(simPeer(0), Answer{Number: sent[1].Number, UpTo: num(2, 2)}); err != nil || len(out.Accepted) > 0 {
		return fmt.Sprintf("the second ended before the first: %+v, %v", out, err)
	}
	o.SetHome(simBox, simPeer(1), 2)
	if out, err := o.Answer(simPeer(0), Answer{Number: sent[0].Number, UpTo: num(2, 1)}); err != nil || out.Box != "" {
		return fmt.Sprintf("the earlier home is listened to: %+v, %v", out, err)
	}
	if b, _ := o.Next(simBox, proto.Normal, MaxBundleBytes); b.To != simPeer(1) || b.Generation != 2 || !slices.Equal(b.Refs, []uint64{1, 2}) {
		return fmt.Sprintf("sent to the new home: %+v", b)
	}
	return ""
}

// heldMail returns what goes wrong with a mail that is held back and the one behind it.
func heldMail() string {
	o := NewOrigin(2)
	o.SetHome(simBox, simPeer(0), 1)
	for range 2 {
		_, n := o.Add(simBox, Mail{NotAfter: later})
		o.Stored(simBox, proto.Normal, n, 1)
	}
	if !o.Hold(simBox, proto.Normal, num(2, 1)) || o.Ready(simBox, proto.Normal) {
		return "a mail that was never sent is not held, or what follows it may be sent"
	}
	if !o.End(simBox, proto.Normal, num(2, 1)) || !o.Ready(simBox, proto.Normal) {
		return "a held mail does not end, or what follows it may not be sent then"
	}
	return ""
}

func TestNothingThatMayHaveBeenSentEnds(t *testing.T) {
	if wrong := heldMail(); wrong != "" {
		t.Error(wrong)
	}
	o := newSpool(t, 2)
	if o.End(simBox, proto.Normal, num(2, 2)) {
		t.Error("a stored mail ends without being held")
	}
	if !o.Hold(simBox, proto.Normal, num(2, 2)) {
		t.Error("a mail that was never sent is not held")
	}
	if b := next(t, o); !slices.Equal(b.Refs, []uint64{1}) {
		t.Errorf("sent: %v", b.Refs)
	}
	if o.Hold(simBox, proto.Normal, num(2, 1)) || o.End(simBox, proto.Normal, num(2, 1)) {
		t.Error("a mail that was sent is held, or ends")
	}
	if o.Ready(simBox, proto.Normal) || !o.End(simBox, proto.Normal, num(2, 2)) || o.End(simBox, proto.Normal, num(2, 2)) {
		t.Error("the held mail may be sent, does not end, or ends twice")
	}
	if o.Hold("agent:other", proto.Normal, num(2, 1)) || o.Stored(simBox, proto.Low, num(2, 1), 1) {
		t.Error("a mail that is not there is held, or stored")
	}
}

func TestExpire(t *testing.T) {
	skew := proto.Skew.Milliseconds()
	o := newSpool(t, 0)
	for ref := uint64(1); ref <= 4; ref++ {
		add(t, o, Mail{Ref: ref, NotAfter: 1_000_000, Size: MaxBundleBytes})
	}
	next(t, o)
	b := next(t, o)
	o.Answer(b.To, Answer{Number: b.Number, UpTo: num(2, 2)})
	steps := []struct {
		now  int64
		want []Expiry
	}{
		{1_000_000, nil},
		{1_000_001, []Expiry{{Box: simBox, Class: proto.Normal, N: num(2, 3), Ref: 3}, {Box: simBox, Class: proto.Normal, N: num(2, 4), Ref: 4}}},
		{1_000_000 + skew, nil},
		{1_000_001 + skew, []Expiry{{Box: simBox, Class: proto.Normal, N: num(2, 1), Ref: 1, Unheard: true}, {Box: simBox, Class: proto.Normal, N: num(2, 2), Ref: 2, Accepted: true}}},
		{later, nil},
	}
	for _, s := range steps {
		if got := o.Expire(s.now); !slices.Equal(got, s.want) {
			t.Errorf("at %d: %+v, want %+v", s.now, got, s.want)
		}
	}
	if o.Ready(simBox, proto.Normal) || o.Hold(simBox, proto.Normal, num(2, 3)) {
		t.Error("an expired mail may be sent, or be held once more")
	}
	if o.Len(simBox, proto.Normal) != 4 || !o.End(simBox, proto.Normal, num(2, 1), num(2, 2), num(2, 4)) || o.End(simBox, proto.Normal, num(2, 3), num(2, 4)) {
		t.Error("they are there until their ends are on disk")
	}
	if o.Len(simBox, proto.Normal) > 0 {
		t.Error("something is left")
	}
}

// Mails that were never sent are held by age, whatever their class.
func TestHoldUnsent(t *testing.T) {
	o := newSpool(t, 0)
	for ref := uint64(1); ref <= 6; ref++ {
		add(t, o, Mail{Ref: ref, Class: proto.Critical + proto.Class(ref%2), NotAfter: later, Size: MaxBundleBytes})
	}
	o.Next(simBox, proto.Critical, MaxBundleBytes) // 2
	refs := func(held []Expiry) (refs []uint64) {
		for _, h := range held {
			refs = append(refs, h.Ref)
		}
		return refs
	}
	held := o.HoldUnsent(simBox, 3)
	if got := refs(held); !slices.Equal(got, []uint64{1, 3, 4}) {
		t.Errorf("held %v", got)
	}
	if got := refs(o.HoldUnsent(simBox, 9)); !slices.Equal(got, []uint64{5, 6}) || o.Ready(simBox, proto.High) || o.Ready(simBox, proto.Critical) {
		t.Errorf("then %v", got)
	}
	for _, h := range held {
		if !o.End(simBox, h.Class, h.N) {
			t.Errorf("mail %d does not end", h.Ref)
		}
	}
	if n := o.Len(simBox, proto.Critical) + o.Len(simBox, proto.High); n != 3 {
		t.Errorf("%d are left", n)
	}
	if got := o.HoldUnsent("agent:other", 9); got != nil {
		t.Errorf("held for another box: %v", got)
	}
}

// expiredMail returns what goes wrong with a mail that has expired and the one behind it,
// while the end is not on disk.
func expiredMail() string {
	for _, sent := range []bool{false, true} {
		o := NewOrigin(2)
		o.SetHome(simBox, simPeer(0), 1)
		_, first := o.Add(simBox, Mail{NotAfter: 1_000_000})
		o.Stored(simBox, proto.Normal, first, 1)
		now := int64(1_000_001)
		if sent {
			o.Next(simBox, proto.Normal, MaxBundleBytes)
			now += proto.Skew.Milliseconds()
		}
		_, second := o.Add(simBox, Mail{NotAfter: later})
		o.Stored(simBox, proto.Normal, second, 2)
		if over := o.Expire(now); len(over) != 1 || over[0].N != first {
			return fmt.Sprintf("expired: %+v", over)
		}
		b, ok := o.Next(simBox, proto.Normal, MaxBundleBytes)
		if ok && b.Prev != first {
			return fmt.Sprintf("%s is sent after %s, before the end of the first is on disk", second, b.Prev)
		}
		if !o.End(simBox, proto.Normal, first) || o.Len(simBox, proto.Normal) != 1 {
			return "it does not end"
		}
		if o.Reset(simBox); !o.Ready(simBox, proto.Normal) {
			return "the second one waits"
		}
	}
	return ""
}

func TestAnExpiredMailStaysUntilItsEndIsOnDisk(t *testing.T) {
	if wrong := expiredMail(); wrong != "" {
		t.Error(wrong)
	}
}

func TestLoad(t *testing.T) {
	o := NewOrigin(5)
	for _, n := range []proto.Seq{num(1, 7), num(3, 1)} {
		if err := o.Load(simBox, proto.Low, n, Mail{Ref: n.Boot, NotAfter: later}); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.Load(simBox, proto.Low, num(5, 1), Mail{}); !errors.Is(err, ErrBoot) {
		t.Errorf("a number of this boot: %v", err)
	}
	if err := o.Load(simBox, proto.Low, num(2, 9), Mail{}); !errors.Is(err, ErrOrder) {
		t.Errorf("a number below the last: %v", err)
	}
	if o.Hold(simBox, proto.Low, num(3, 1)) {
		t.Error("a mail that an earlier start may have sent is held")
	}
	if _, n := o.Add(simBox, Mail{Class: proto.Low, NotAfter: later}); n != num(5, 1) {
		t.Errorf("the first number is %s", n)
	}
}

// The numbers of a box that was forgotten are not given again.
func TestForget(t *testing.T) {
	o := newSpool(t, 3)
	if o.Forget(simBox) {
		t.Error("a box with mail is forgotten")
	}
	b := next(t, o)
	o.Answer(b.To, Answer{Number: b.Number, UpTo: num(2, 3)})
	for range 2 {
		if !o.Forget(simBox) {
			t.Error("an empty box is not forgotten")
		}
	}
	if _, n := o.Add(simBox, Mail{NotAfter: later}); n != num(2, 4) {
		t.Errorf("the next number is %s", n)
	}
}

func TestReset(t *testing.T) {
	o := newSpool(t, 2)
	b := next(t, o)
	if o.Reset(simBox); !o.Ready(simBox, proto.Normal) {
		t.Fatal("nothing to send after the connection was lost")
	}
	if out, err := o.Answer(b.To, Answer{Number: b.Number, UpTo: num(2, 2)}); err != nil || out.Box != "" {
		t.Errorf("an answer of the old connection: %+v, %v", out, err)
	}
	if again := next(t, o); again.Number == b.Number || !slices.Equal(again.Refs, b.Refs) || again.Prev != num(0, 0) {
		t.Errorf("sent again: %+v", again)
	}
	o.Reset("agent:unknown")
}

// What waits for a home that will never answer ends at once, by what is known of it, and once.
// What is not on disk yet follows.
func TestAbandon(t *testing.T) {
	o := newSpool(t, 0)
	for ref := uint64(1); ref <= 4; ref++ {
		add(t, o, Mail{Ref: ref, NotAfter: later, Size: MaxBundleBytes})
	}
	next(t, o)
	b := next(t, o)
	o.Answer(b.To, Answer{Number: b.Number, UpTo: num(2, 2)})
	_, n := o.Add(simBox, Mail{NotAfter: later, Size: 1})
	want := []Expiry{
		{Box: simBox, Class: proto.Normal, N: num(2, 1), Ref: 1, Unheard: true}, {Box: simBox, Class: proto.Normal, N: num(2, 2), Ref: 2, Accepted: true},
		{Box: simBox, Class: proto.Normal, N: num(2, 3), Ref: 3}, {Box: simBox, Class: proto.Normal, N: num(2, 4), Ref: 4},
	}
	if got := o.Abandon(simBox); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	o.Stored(simBox, proto.Normal, n, 5)
	if got := o.Abandon(simBox); len(got) != 1 || got[0].Ref != 5 {
		t.Errorf("what was stored meanwhile: %+v", got)
	}
	if got := append(o.Abandon(simBox), o.Abandon("agent:other")...); len(got) > 0 || o.Ready(simBox, proto.Normal) {
		t.Errorf("once more: %+v", got)
	}
}

// TestALostMailEndsInItsChain has the first mail of a chain end before its home has it: what
// follows waits until that is on disk.
func TestALostMailEndsInItsChain(t *testing.T) {
	o := newSpool(t, 2)
	b := next(t, o)
	if _, err := o.Answer(simPeer(0), Answer{Number: b.Number, Code: proto.CodeNeedBody}); err != nil {
		t.Fatal(err)
	}
	n, ref, ok := o.Front(simBox, proto.Normal)
	if !ok || n != num(2, 1) || ref != 1 {
		t.Fatalf("%s, %d, %v", n, ref, ok)
	}
	if _, ok := o.Lose(simBox, proto.Normal, num(2, 2)); ok {
		t.Error("one behind it is lost")
	}
	e, ok := o.Lose(simBox, proto.Normal, n)
	if !ok || e != (Expiry{Box: simBox, Class: proto.Normal, N: n, Ref: 1}) {
		t.Errorf("%+v, %v", e, ok)
	}
	if _, ok := o.Lose(simBox, proto.Normal, n); ok {
		t.Error("it is lost twice")
	}
	if o.Resume(simBox, proto.Normal); o.Ready(simBox, proto.Normal) {
		t.Error("what follows is sent before the end is on disk")
	}
	if !o.End(simBox, proto.Normal, n) {
		t.Error("it does not end")
	}
	if b := next(t, o); !slices.Equal(b.Refs, []uint64{2}) || b.Prev != num(0, 0) {
		t.Errorf("%+v", b)
	}
}
