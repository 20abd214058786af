package node

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/wire"
)

// madeTwice lets two admins, the nodes 0 and 2 of four, make a name of the mesh in a partition,
// with each its own node 1 or 3, and returns the node that keeps it and the one that loses it,
// each followed by the node with which it is.
func (sm *simMesh) madeTwice(name string, set func(*simNode) error) (home, near, old, far *simNode) {
	sm.t.Helper()
	sm.Partition([]int{0, 1}, []int{2, 3})
	time.Sleep(5 * time.Minute)
	one, two := sm.nodes[0], sm.nodes[2]
	for _, s := range []*simNode{one, two} {
		if err := set(s); err != nil {
			sm.t.Fatal(err)
		}
	}
	time.Sleep(10 * time.Second)
	id := two.peer()
	first, second := identity.DeedRoot(name, one.get().mesh.Root), identity.DeedRoot(name, id[:])
	if string(first[:]) < string(second[:]) {
		return one, sm.nodes[1], two, sm.nodes[3]
	}
	return two, sm.nodes[3], one, sm.nodes[1]
}

// named makes a mailbox of the mesh.
func named(name string, allow ...string) func(*simNode) error {
	return func(s *simNode) error {
		_, err := s.get().Mail.SetMailbox(s.mesh.t.Context(), name, wire.MailboxSettings{Named: true, BoxSettings: wire.BoxSettings{Allow: &allow}})
		return err
	}
}

// events returns the events of a kind.
func (s *simNode) events(kind string) (all []wire.NodeEvent) {
	for _, e := range s.get().Events.Read(s.mesh.t.Context(), 0, 1000, 0).Items {
		if e.Kind == kind {
			all = append(all, e)
		}
	}
	return all
}

func bodiesOf(all []wire.ReceivedMail) map[string]int {
	n := map[string]int{}
	for _, m := range all {
		n[string(m.Body)]++
	}
	return n
}

// I21: when two admins made one mail name in a partition, the home that loses it sends on what is in
// its box, and what waits in spools goes to the home that keeps it.
func TestMailOfANameMadeTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 4)
		defer w.close()
		home, _, old, far := w.madeTwice("agent:ceo", named("ceo", "*"))
		want := map[string]int{}
		send := func(s *simNode, n int, what string) {
			for i := range n {
				body := fmt.Sprintf("%s %s %d", s.name, what, i)
				want[body]++
				s.sendMail(wire.Mail{To: "agent:ceo", Body: []byte(body), Key: s.name + " " + what, Dedupe: fmt.Sprint(what, i), Sender: "me"})
			}
		}
		for _, s := range w.nodes {
			send(s, 10, "apart")
		}
		time.Sleep(10 * time.Second)
		if _, err := old.get().Mail.Lease(t.Context(), "agent:ceo", "", wire.LeaseMail{Max: 3}); err != nil {
			t.Fatal(err)
		}
		old.halt()
		send(far, 10, "while its home is off")
		w.Heal()
		time.Sleep(10 * time.Minute)
		if n := far.outgoing(); n > 0 {
			t.Errorf("%d mails wait for a home that is none any more", n)
		}
		old.start()
		time.Sleep(10 * time.Minute)
		for _, s := range w.nodes {
			send(s, 10, "together")
		}
		time.Sleep(time.Minute)
		got := home.readMail("agent:ceo", len(want), time.Minute)
		if n := bodiesOf(got); !maps.Equal(n, want) {
			t.Errorf("%d mails, want %d:\n%v", len(n), len(want), n)
		}
		last := map[string]string{}
		for _, m := range got { // those of one key are sent with numbers of one digit
			if body := string(m.Body); body < last[m.Key] {
				t.Errorf("%q comes after %q", body, last[m.Key])
			}
			last[m.Key] = string(m.Body)
		}
		for _, s := range w.nodes {
			if n := s.outgoing(); n > 0 {
				t.Errorf("%d mails still wait at %s", n, s.name)
			}
			if all, err := s.get().Mail.Page(t.Context(), "", "", 0); err != nil || len(all.Items) > 0 != (s == home) {
				t.Errorf("%s has %+v, %v", s.name, all, err)
			}
		}
		told := old.events(wire.EventMailMoved)
		if len(told) != 1 || told[0].Peer != home.name || told[0].Fields["box"] != "agent:ceo" || told[0].Fields["count"] != "20" {
			t.Errorf("%+v", told)
		}
		if !slices.ContainsFunc(w.nodes, func(s *simNode) bool {
			return slices.ContainsFunc(s.get().Queues.Conflicts(), func(c wire.LeaseConflict) bool { return c.Queue == "agent:ceo" })
		}) {
			t.Error("no row of lease conflicts tells of it")
		}
	})
}

// What the home that keeps the name does not take from the one that loses it comes back to its
// sender.
func TestMailOfANameMadeTwiceThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 4)
		defer w.close()
		home, _, old, far := w.madeTwice("agent:ceo", named("ceo", "peer:n1", "peer:n3"))
		far.addMailbox("me")
		far.sendMail(wire.Mail{To: "agent:ceo", Sender: "me", Body: []byte("hello")})
		time.Sleep(10 * time.Second)
		w.Heal()
		bounce := far.readMail("me", 1, 10*time.Minute)
		if len(bounce) == 1 && (bounce[0].Type != "balefire.bounce" || !strings.Contains(string(bounce[0].Body), "DENIED")) {
			t.Errorf("%s", bounce[0].Body)
		}
		far.sendMail(wire.Mail{To: "agent:ceo", Sender: "me", Body: []byte("again")})
		home.readMail("agent:ceo", 1, time.Minute)
		// The mail is read at its home before the answer to the one that sent it on is there.
		w.await(10*time.Second, "the answers to what the old home sent", func() bool { return old.outgoing() == 0 })
	})
}

// A topic that was made twice: what the home that loses it keeps is in the other one, once.
func TestTopicMadeTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 4)
		defer w.close()
		home, near, old, far := w.madeTwice("topic:news", func(s *simNode) error {
			_, err := s.get().Mail.SetTopic(t.Context(), "news", wire.BoxSettings{Allow: &[]string{"*"}})
			for _, sub := range []string{"all", "some"} {
				if err == nil {
					_, err = s.get().Mail.SetSubscription(t.Context(), "news", sub, wire.SubscriptionSettings{})
				}
			}
			return err
		})
		want := map[string]int{}
		for _, s := range []*simNode{home, near, old, far} {
			for i := range 5 {
				want[s.name+fmt.Sprint(i)]++
				s.sendMail(wire.Mail{To: "topic:news", Subject: "eu.created", Body: []byte(s.name + fmt.Sprint(i))})
			}
		}
		time.Sleep(10 * time.Second)
		given, err := old.get().Mail.Lease(t.Context(), "topic:news", "all", wire.LeaseMail{Max: 1})
		if err != nil || len(given) != 1 {
			t.Fatalf("%+v, %v", given, err)
		}
		if _, err := old.get().Mail.Settle(t.Context(), "topic:news", "all", wire.SettleMail{Nack: []wire.NackMail{{Lease: given[0].Lease, Final: true, Reason: "no such order"}}}); err != nil {
			t.Fatal(err)
		}
		w.Heal()
		time.Sleep(10 * time.Minute)
		for _, sub := range []string{"all", "some"} {
			given, err := home.get().Mail.Lease(t.Context(), "topic:news", sub, wire.LeaseMail{Max: 100})
			got := map[string]int{}
			for _, d := range given {
				got[string(d.Mail.Body)]++
			}
			if err != nil || !maps.Equal(got, want) {
				t.Errorf("%s: %v, %v", sub, got, err)
			}
		}
		if n := len(old.events(wire.EventMailArchived)); n != 1 {
			t.Errorf("the archive got dead letters %d times, want once", n)
		}
	})
}

// A large body goes with its mail, and into the box of a node that seized the name from its own
// spool.
func TestLargeBodyFollowsItsBox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 4)
		defer w.close()
		home, _, old, far := w.madeTwice("agent:ceo", named("ceo", "*"))
		body := randomBody(1 << 20)
		far.sendLarge(wire.Mail{To: "agent:ceo"}, body)
		time.Sleep(time.Minute)
		w.Heal()
		if got := home.readLarge("agent:ceo", 10*time.Minute); !bytes.Equal(got, body) {
			t.Errorf("%d bytes came", len(got))
		}
		old.stored(0, 0)
		home.halt()
		old.sendLarge(wire.Mail{To: "agent:ceo"}, body) // both are admins
		if err := old.seizeMailbox("ceo", home.name); err != nil {
			t.Fatal(err)
		}
		if got := old.readLarge("agent:ceo", time.Minute); !bytes.Equal(got, body) {
			t.Errorf("%d bytes came from the own spool", len(got))
		}
		old.stored(0, 0)
	})
}
