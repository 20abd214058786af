package box

import "testing"

// A reader that leaves with a mail and comes again, as one that leases by HTTP does, has its turn
// with the others: its place in the turns stays.
func TestTurnOfAReaderThatComesAgain(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeSub(1, 0, &SubSettings{Strategy: RoundRobin}, Start{}))
	attach := func(reader string, credit int) *Session {
		t.Helper()
		x, err := b.s.Attach(1, 0, reader, 0, credit)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	polls, stays := attach("polls", 1), attach("stays", 9)
	b.mustSend(note{})
	if got := b.deliver(polls, 1); len(got) != 1 {
		t.Fatalf("the oldest was given %v", got)
	}
	b.s.Leave(polls, &b.out)
	if again := attach("polls", 1); again != polls {
		t.Fatal("the reader has another session")
	}
	b.mustSend(note{})
	if got := b.deliver(stays, 1); len(got) != 1 {
		t.Errorf("the other session, whose turn it is, was given %v", got)
	}
}
