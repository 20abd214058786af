package mail

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// causes returns, in order, which nodes caused the first mails that wait for boxes on other nodes, as
// their spools say, and their records.
func (f *fixture) causes() (spools, records []proto.PeerID) {
	f.t.Helper()
	if err := f.call(f.t.Context(), func(box.Now) {
		for t := range f.spools.all() {
			spools = append(spools, f.peer(t.cause))
			for i := range f.state.Mails(t.id, 0, 0) {
				m, _, err := f.mailAt(i.Place, i.Length)
				if err != nil {
					f.t.Error(err)
				}
				records = append(records, f.peer(m.Cause))
			}
		}
	}); err != nil {
		f.t.Fatal(err)
	}
	return spools, records
}

// What a node sends because of the mail of another one, a bounce, what it passes on or what moves to the next
// home of its box, counts as caused by that node, also after a restart.
func TestCauses(t *testing.T) {
	bounced := make(chan Bounce, 4) // it is told again after each start
	o, h := newFixture(t, Config{}), newFixture(t, Config{Self: homeID, Bounced: func(_ context.Context, b Bounce) { bounced <- b }})
	h.mailbox("agent:ceo")
	o.forward("a", "b", "c")
	h.take(o.bundle(o.lane(homeID)), nil)
	s := h.read("agent:ceo", 2)
	got, _ := h.next(s, 2)

	h.settle("agent:ceo", got[0], box.Final, proto.CodeOK)
	bounce := <-bounced
	third := proto.PeerID{5, 6}
	for _, b := range []*Bounce{&bounce, nil} {
		to := Outgoing{Box: fmt.Sprint("agent:", b.causedBy()), Home: third, Letter: h.letter("x", nil), Ends: b}
		if sent, err := h.Forward(t.Context(), []Outgoing{to}, false); err != nil || sent[0].Code != proto.CodeOK {
			t.Fatalf("%+v, %v", sent, err)
		}
	}
	to := Outgoing{Box: "agent:next", Home: third, Letter: h.letter("came of b", nil)}
	if r, err := h.AckAndSend(t.Context(), "agent:ceo", "", got[1].Handle, to, time.Second); err != nil || r.Code != proto.CodeOK {
		t.Fatalf("%+v, %v", r, err)
	}
	m := &Moving{Box: "agent:ceo", Home: third, Generation: 1, Change: func(proto.PeerID, *proto.Letter) {}}
	for more := true; more; {
		var err error
		if more, err = h.MoveOut(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	want := fmt.Sprint([]proto.PeerID{{}, originID, originID, originID})
	for range 2 {
		if spools, records := h.causes(); fmt.Sprint(spools) != want || fmt.Sprint(records) != want {
			t.Errorf("the spools were caused by %v, their mails by %v, want %s", spools, records, want)
		}
		h.restart()
	}
}
