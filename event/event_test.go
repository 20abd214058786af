package event

import (
	"testing"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/wire"
)

func TestEventsAreNumberedAndOldOnesDropped(t *testing.T) {
	l := New(clock.System())
	for range maxEvents + 10 {
		l.add(wire.NodeEvent{Kind: "x"})
	}
	p, _ := l.after(0, 5)
	if p.Missed != 10 || len(p.Items) != 5 || p.Items[0].Seq != 11 || p.Next != 15 {
		t.Fatalf("missed %d, items %d, first %d, next %d; want 10, 5, 11, 15", p.Missed, len(p.Items), p.Items[0].Seq, p.Next)
	}
	p, _ = l.after(p.Next, maxEvents)
	if p.Missed != 0 || p.Items[0].Seq != 16 || p.Next != maxEvents+10 {
		t.Fatalf("missed %d, first %d, next %d", p.Missed, p.Items[0].Seq, p.Next)
	}
	if p, _ = l.after(p.Next, 5); len(p.Items) != 0 || p.Next != maxEvents+10 {
		t.Fatalf("%d items behind the newest, next %d", len(p.Items), p.Next)
	}
}

func TestReaderOfAnEarlierBootStartsOver(t *testing.T) {
	l := New(clock.System())
	l.add(wire.NodeEvent{Kind: "x"})
	if p, _ := l.after(500, 5); len(p.Items) != 1 || p.Items[0].Seq != 1 || p.Missed != 0 {
		t.Fatalf("%+v", p)
	}
}

func TestEventsWakeReaders(t *testing.T) {
	l := New(clock.System())
	_, more := l.after(0, 5)
	select {
	case <-more:
		t.Fatal("woken by nothing")
	default:
	}
	l.add(wire.NodeEvent{Kind: "x"})
	select {
	case <-more:
	default:
		t.Fatal("not woken")
	}
}
