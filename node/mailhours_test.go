package node

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// TestMailHours verifies I21, I22 and I23 for every mail between ten complete nodes over
// real libp2p in virtual time, with partitions, one-way links, packet loss, crashes and
// stops of nodes, and readers that are slow or die (S08): of mailboxes at their homes, and of a
// subscription of a topic on other nodes. It runs a minute of that with five
// nodes, or BALEFIRE_MAIL_HOURS hours, each with a mesh of its own. At the end each mail was read and
// acknowledged once, or its sender was told once that it was not.
func TestMailHours(t *testing.T) {
	hours, err := strconv.Atoi(os.Getenv("BALEFIRE_MAIL_HOURS"))
	if err != nil {
		synctest.Test(t, func(t *testing.T) { mailHour(t, 0, 5, time.Minute, newCoverage()) })
		return
	}
	all := newCoverage()
	t.Run("all", func(t *testing.T) {
		for h := range hours {
			t.Run(fmt.Sprint("hour ", h+1), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { mailHour(t, uint64(h), hoursNodes, time.Hour, all) })
			})
		}
	})
	all.check(t, hours, "partition 1|4", "partition 2|3", "partition 2|2", "a link goes one way", "a node receives but cannot send", "a node crashes", "a node stops",
		"packets are lost", "delivered", "delivered on another node", "delivered again", "ack is stale", "refused", "expired", "unheard", "nacked", "lapsed", "final")
}

// The topic of the mesh, which has its home on the first node, and its subscription.
const (
	hoursTopic = "topic:news"
	hoursSub   = "all"
)

// A mailHours is nodes that send each other mail.
type mailHours struct {
	*simMesh
	rng      *rand.Rand
	coverage *coverage

	mu      sync.Mutex
	mails   map[string]*bookedMail // by body
	lines   map[string]int         // newest mail that was delivered
	bounces map[string]*bookedMail // by the id of what was not delivered
	told    map[string]string      // why, by the same
	calm    bool                   // readers acknowledge everything at once
}

// A bookedMail is what happened to one mail.
type bookedMail struct {
	box    string
	from   int
	line   string // what is delivered in order; "": nothing
	number int    // in its line
	id     string // known when it was sent

	seq     uint64 // in its box
	acked   bool   // an acknowledgement counted
	unknown bool   // one has no answer
	final   bool   // a refusal by a reader counted
}

func mailHour(t *testing.T, seed uint64, nodes int, long time.Duration, all *coverage) {
	s := &mailHours{
		simMesh: newSimMeshWith(t, nodes, seed, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50, Seed: seed}, quietMesh),
		rng:     rand.New(rand.NewPCG(seed, 7)), coverage: all,
		mails: map[string]*bookedMail{}, lines: map[string]int{}, bounces: map[string]*bookedMail{}, told: map[string]string{},
	}
	defer s.close()
	for _, n := range s.nodes {
		n.addMailbox("in", "*")
		n.addMailbox("closed")
	}
	s.addTopic()
	time.Sleep(30 * time.Second)
	sending, endSending := context.WithCancel(t.Context())
	reading, endReading := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	for _, n := range s.nodes {
		senders.Go(func() { s.send(sending, n, rand.New(rand.NewPCG(seed, uint64(100+n.place)))) })
		for r := range 2 {
			s.users.Go(func() { s.read(reading, n, "in", "", rand.New(rand.NewPCG(seed, uint64(200+10*r+n.place)))) })
		}
	}
	for _, n := range s.nodes[1:3] {
		s.users.Go(func() { s.read(reading, n, hoursTopic, hoursSub, rand.New(rand.NewPCG(seed, uint64(300+n.place)))) })
	}
	for began := time.Now(); time.Since(began) < long; {
		time.Sleep(time.Duration(5+s.rng.IntN(20)) * time.Second)
		if kind, p := s.nextFault(s.rng, 13); kind == 12 {
			s.coverage.add("a node stops")
			s.nodes[p[0]].halt()
		} else {
			s.injectFaultOf(kind, p, s.rng, s.coverage)
		}
	}
	endSending()
	s.Heal()
	s.SetLoss(0)
	for _, n := range s.nodes {
		n.start()
	}
	senders.Wait()
	s.mu.Lock()
	s.calm = true
	s.mu.Unlock()
	s.drain()
	endReading()
	s.users.Wait()
	s.checkBooks()
}

// addTopic makes the topic, which every member may write to and read.
func (h *mailHours) addTopic() {
	h.t.Helper()
	everyone, boxes := []string{"*"}, h.nodes[0].node.Mail
	name := strings.TrimPrefix(hoursTopic, "topic:")
	_, err := boxes.SetTopic(h.t.Context(), name, wire.BoxSettings{Allow: &everyone, AllowRead: &everyone, Interest: new(true)})
	if err == nil {
		_, err = boxes.SetSubscription(h.t.Context(), name, hoursSub, wire.SubscriptionSettings{})
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// send sends mail of a node, each until it is on disk.
func (h *mailHours) send(ctx context.Context, at *simNode, rng *rand.Rand) {
	numbers := map[string]int{}
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(rng.IntN(8000)) * time.Millisecond):
		}
		to := rng.IntN(len(h.nodes))
		m, b := wire.Mail{Class: []string{"critical", "high", "normal", "low"}[rng.IntN(4)], Sender: "in", Dedupe: fmt.Sprintf("n%d-%d", at.place, i)}, &bookedMail{box: "in", from: at.place}
		m.Body = []byte(m.Dedupe)
		switch kind := rng.IntN(20); {
		case kind == 0 && to != at.place:
			b.box = "closed"
		case kind == 1 && to != at.place:
			b.box, m.TTL = "missing", wire.Duration(time.Minute)
		case kind < 5:
			m.TTL = wire.Duration(time.Duration(5+rng.IntN(60)) * time.Second)
		case kind >= 17:
			b.box = hoursTopic
		}
		m.To = fmt.Sprintf("agent:%s@n%d", b.box, to)
		if b.box == hoursTopic {
			m.To, m.Subject = hoursTopic, "eu.created"
		}
		if rng.IntN(2) == 0 {
			m.Key = fmt.Sprintf("key %d", rng.IntN(3))
			b.line = fmt.Sprintf("n%d %s %s", at.place, m.To, m.Key)
			numbers[b.line]++
			b.number = numbers[b.line]
		}
		h.mu.Lock()
		h.mails[m.Dedupe] = b
		h.mu.Unlock()
		h.sendOne(at, m, b)
	}
}

func (h *mailHours) sendOne(at *simNode, m wire.Mail, b *bookedMail) {
	for ; ; time.Sleep(time.Second) {
		n := at.get()
		if n == nil {
			continue
		}
		sent, errs := n.Mail.Send(h.t.Context(), []wire.Mail{m})
		if errs[0] != nil {
			continue // it crashed
		}
		h.mu.Lock()
		b.id = sent[0].ID
		h.mu.Unlock()
		return
	}
}

// read reads mail on a node as a program that is often slow, and fails.
func (h *mailHours) read(ctx context.Context, at *simNode, box, sub string, rng *rand.Rand) {
	for ctx.Err() == nil {
		time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond)
		n := at.get()
		if n == nil {
			continue
		}
		given, err := n.Mail.Lease(ctx, box, sub, wire.LeaseMail{Max: 1 + rng.IntN(20), Wait: wire.Wait(5 * time.Second)})
		if err != nil {
			continue // it dies
		}
		h.mu.Lock()
		calm := h.calm
		h.mu.Unlock()
		for _, d := range given {
			h.delivered(box, d)
		}
		if !calm && rng.IntN(8) == 0 {
			time.Sleep(time.Duration(rng.IntN(40)) * time.Second)
		}
		h.settle(at, box, sub, given, calm, rng)
	}
}

// delivered checks that a delivery is allowed.
func (h *mailHours) delivered(box string, d wire.DeliveredMail) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.coverage.add("delivered")
	if d.Redelivered {
		h.coverage.add("delivered again")
	}
	b := h.booked(d)
	switch {
	case b == nil:
		h.t.Errorf("I21: nobody sent %+v", d.Mail)
		return
	case b.box != box:
		h.t.Errorf("I21: %s was for the box %s", d.Mail.ID, b.box)
	case b.seq != 0 && b.seq != d.Mail.Seq:
		h.t.Errorf("I22: %s was accepted as %d and as %d", d.Mail.ID, b.seq, d.Mail.Seq)
	case box == hoursTopic: // it may have lapsed on its way here
		h.coverage.add("delivered on another node")
		b.seq = d.Mail.Seq
		return
	case b.acked || b.final:
		h.t.Errorf("I23: %s is delivered after its end: %+v", d.Mail.ID, b)
	case b.seq != 0 && !d.Redelivered:
		h.t.Errorf("I23: %s is delivered again, and does not say so", d.Mail.ID)
	case b.line != "" && b.number < h.lines[b.line]:
		h.t.Errorf("I22: mail %d of %q is delivered after mail %d", b.number, b.line, h.lines[b.line])
	}
	b.seq = d.Mail.Seq
	if b.line != "" {
		h.lines[b.line] = b.number
	}
}

// booked returns what is known about a mail. A bounce is added.
func (h *mailHours) booked(d wire.DeliveredMail) *bookedMail {
	if d.Mail.Type != mail.TypeBounce {
		return h.mails[string(d.Mail.Body)]
	}
	b := h.bounces[d.Mail.BounceOf]
	if b == nil {
		var why struct{ Cause string }
		if err := json.Unmarshal(d.Mail.Body, &why); err != nil {
			h.t.Error(err)
		}
		b = &bookedMail{box: "in", id: d.Mail.ID}
		h.bounces[d.Mail.BounceOf], h.told[d.Mail.BounceOf] = b, why.Cause
		h.coverage.add(why.Cause)
	} else if b.id != d.Mail.ID {
		h.t.Errorf("I21: the sender of %s is told twice", d.Mail.BounceOf)
	}
	return b
}

// settle acknowledges most deliveries, gives some back and forgets some.
func (h *mailHours) settle(at *simNode, box, sub string, given []wire.DeliveredMail, calm bool, rng *rand.Rand) {
	var what wire.SettleMail
	var acks, finals []*bookedMail
	h.mu.Lock()
	for _, d := range given {
		kind, bounce := rng.IntN(20), d.Mail.Type == mail.TypeBounce
		switch {
		case calm || bounce || kind < 15:
			what.Ack, acks = append(what.Ack, d.Lease), append(acks, h.booked(d))
		case kind < 17:
			what.Nack = append(what.Nack, wire.NackMail{Lease: d.Lease, Reason: "busy"})
		case kind < 18:
			what.Defer = append(what.Defer, wire.DeferMail{Lease: d.Lease, Delay: wire.Duration(3 * time.Second)})
		}
	}
	for _, d := range given {
		if !calm && d.Mail.Type != mail.TypeBounce && rng.IntN(50) == 0 { // changes its mind
			what.Nack, finals = append(what.Nack, wire.NackMail{Lease: d.Lease, Reason: "bad", Final: true}), append(finals, h.booked(d))
		}
	}
	h.mu.Unlock()
	n := at.get()
	if n == nil || len(what.Ack)+len(what.Nack)+len(what.Defer) == 0 {
		return // the reader dies: what it has is delivered again
	}
	items, err := n.Mail.Settle(h.t.Context(), box, sub, what)
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, b := range acks {
		switch {
		case err != nil:
			b.unknown = true
		case items[i].Code == wire.SettledOK:
			b.acked = true
		default:
			h.coverage.add("ack is stale")
		}
	}
	for i, b := range finals {
		if at := len(items) - len(what.Defer) - len(finals) + i; err == nil && items[at].Code == wire.SettledOK {
			b.final = true
		}
	}
}

// drain waits until no mail waits anywhere.
func (h *mailHours) drain() {
	h.t.Helper()
	deadline := time.Now().Add(3 * time.Hour)
	for quiet := 0; quiet < 3; quiet++ {
		time.Sleep(20 * time.Second)
		for _, n := range h.nodes {
			waiting := 0
			for _, box := range h.boxes(n) {
				waiting += box.Waiting
			}
			if out := n.outgoing(); waiting+out > 0 {
				if quiet = -1; time.Now().After(deadline) {
					spools, _ := n.get().Mail.Outgoing(h.t.Context())
					h.t.Fatalf("I21: after hours without faults %d mails wait in %s and %d for others: %+v", waiting, n.name, out, spools)
				}
			}
		}
	}
}

// boxes returns the boxes of a node that are read.
func (h *mailHours) boxes(n *simNode) (all []wire.Box) {
	h.t.Helper()
	names := []string{"in"}
	if n.place == 0 {
		names = append(names, hoursTopic)
	}
	for _, name := range names {
		box, err := n.get().Mail.Get(h.t.Context(), name)
		if err != nil {
			h.t.Fatal(err)
		}
		all = append(all, box)
	}
	return all
}

// checkBooks checks that each mail has ended once, and that its sender knows.
func (h *mailHours) checkBooks() {
	h.t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	sure, unsure := 0, 0          // mails that were read to the end
	for _, b := range h.bounces { // one that no reader acknowledges in time is dead
		if b.acked || b.unknown {
			sure++
		}
	}
	for body, b := range h.mails {
		cause, told := h.told[b.id]
		delete(h.told, b.id)
		switch {
		case b.id == "":
			h.t.Errorf("%s was never sent", body)
		case !told && !b.acked && !b.unknown:
			h.t.Errorf("I21: %s is lost: %+v", body, b)
		case told && b.acked && cause != "unheard":
			h.t.Errorf("I21: %s was read, and its sender is told that it was %s", body, cause)
		case b.final && (b.acked || cause != "final"):
			h.t.Errorf("I23: %s was refused and has another end too: %q, %+v", body, cause, b)
		}
		switch {
		case b.acked, b.unknown && !told:
			sure++
		case b.unknown && cause == "unheard":
			unsure++
		}
	}
	for id, why := range h.told {
		h.t.Errorf("I21: somebody was told that %s was %s, but nobody sent that", id, why)
	}
	done := 0
	for _, n := range h.nodes {
		for _, box := range h.boxes(n) {
			done += int(box.Ended.Done)
			if box.Kind == "topic" { // there it has ended, too, when its only subscription refused it
				done -= box.Subscriptions[0].Dead
			}
		}
	}
	if done < sure || done > sure+unsure {
		h.t.Errorf("I23: %d mails were acknowledged, but %d (and perhaps %d) have ended as read", sure, done, unsure)
	}
	h.t.Logf("%d mails, %d read, %d bounced; %v; packets %+v", len(h.mails), done, len(h.bounces), h.coverage.counts, h.Stats())
}
