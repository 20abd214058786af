//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/internal/lab"
	"github.com/balefire/balefire/wire"
)

// TestLinkComesBack checks S07 and S46: after an outage of 3 to 90 seconds (3 in
// the short form) of a node's only link, the first task for each of four peers is
// accepted within 2 s in at least three of four cases, and within 4 s in all cases.
// node.TestFirstTaskAfterLinkRecovers has enough outages to check the 95th percentile.
func TestLinkComesBack(t *testing.T) {
	outages := either([]time.Duration{3 * time.Second}, []time.Duration{
		5 * time.Second, 10 * time.Second, 20 * time.Second, 3 * time.Second, 7 * time.Second, 40 * time.Second, 90 * time.Second,
	})
	comesBack(t, 4, outages, config{engine: "nutsdb"})
}

// TestLinkComesBackOverTCP checks the same with TCP alone, after outages that are short
// enough for a connection to survive, and at whose end it waits to retransmit. It needs
// Linux 6.15.
func TestLinkComesBackOverTCP(t *testing.T) {
	outages := either([]time.Duration{3500 * time.Millisecond}, []time.Duration{3500 * time.Millisecond, 7 * time.Second})
	comesBack(t, 2, outages, config{engine: "nutsdb", listen: []string{"/ip4/0.0.0.0/tcp/4001"}})
}

func comesBack(t *testing.T, count int, outages []time.Duration, c config) {
	t.Helper()
	n := lab.New(t).Net("net", "11.0.0.0/24")
	ha := n.Host("a", lab.Attachment{Addr: "11.0.0.1"})
	a := newMachine(t, "a", true, place(ha, c))
	a.start()
	var peers []*machine
	for i := range count {
		name := fmt.Sprintf("b%d", i+1)
		b := newMachine(t, name, false, place(n.Host(name, lab.Attachment{Addr: fmt.Sprintf("11.0.0.%d", 11+i)}), c))
		b.join(a)
		b.start()
		linked(a, b)
		peers = append(peers, b)
	}
	var all []time.Duration
	for _, outage := range outages {
		ha.Port.Cut()
		waits, err := a.Submit(t.Context(), wire.Request{Target: "b1", Kind: "sum"})
		pause(outage)
		if task, lost := a.Task(t.Context(), waits.ID); err != nil || lost != nil || slices.Contains(task.Receipts, "accepted") {
			t.Fatalf("a task sent without a link: %v, %v, %v", task.Receipts, err, lost)
		}
		took := make(chan time.Duration, len(peers))
		ha.Port.Heal()
		began := time.Now()
		both(func(b *machine) { took <- a.accepted(b.name, began) }, peers...)
		close(took)
		for d := range took {
			all = append(all, d)
		}
	}
	within(t, "the first task is accepted, three times of four", percentile(t, "the link is back", 75, all), 2*time.Second)
	within(t, "the first task is accepted", all[len(all)-1], 4*time.Second)
}

// TestAddressChanges checks S07 and S42: a node whose address changes is
// reached at the new one within 10 s.
func TestAddressChanges(t *testing.T) {
	n := lab.New(t).Net("net", "11.0.0.0/24")
	a := newMachine(t, "a", true, place(n.Host("a", lab.Attachment{Addr: "11.0.0.1"}), config{engine: "nutsdb"}))
	hb := n.Host("b", lab.Attachment{Addr: "11.0.0.2"})
	b := newMachine(t, "b", false, place(hb, config{engine: "nutsdb"}))
	a.start()
	b.join(a)
	b.start()
	linked(a, b)
	var all []time.Duration
	for i := range either(1, 5) {
		hb.Readdress(fmt.Sprintf("11.0.0.%d", 21+i))
		all = append(all, a.accepted("b", time.Now()))
	}
	within(t, "the first task after a change of address is accepted", percentile(t, "another address", 100, all), 10*time.Second)
}
