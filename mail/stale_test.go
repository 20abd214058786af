package mail

import (
	"fmt"
	"testing"
)

// Of the settlements that did not count the newest are kept, however much else happens.
func TestStaleIsKept(t *testing.T) {
	var l events
	for i := range MaxStale + 10 {
		l.add(Event{Kind: EventStale, Text: fmt.Sprint(i)})
	}
	for range MaxEvents {
		l.add(Event{Kind: EventDone})
	}
	if n := len(l.late); n != MaxStale/2+10 || l.late[n-1].Text != fmt.Sprint(MaxStale+9) {
		t.Errorf("%d are kept, the last is %+v", n, l.late[n-1])
	}
}
