package mail

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
)

// A crashes is an origin and a home whose disks and network a test decides about: nothing is
// written or sent but by its steps.
type crashes struct {
	*sim
	t    *testing.T
	o, h *simNode
	sent int
}

// letter returns the next letter, whose body and dedupe key are text.
func (c *crashes) letter(text string) []byte {
	c.t.Helper()
	c.sent++
	now := c.clock.Clock().Now()
	letter, err := proto.AppendLetter(nil, &proto.Letter{
		Class: proto.Normal, ID: proto.MailID{9, 15: byte(c.sent)}, Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(),
		Dedupe: []byte(text), Sender: []byte("desk"), Body: []byte(text),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return letter
}

// put hands the origin a mail for agent:a, whose body and dedupe key are text. It is written
// when the origin works.
func (c *crashes) put(text string) *forwarding {
	c.t.Helper()
	f := c.forward(text, false)
	c.o.step()
	return f
}

// forward is put without a step of the origin.
func (c *crashes) forward(text string, relaxed bool) *forwarding {
	c.t.Helper()
	f, err := c.o.forwardable(c.ctx, []Outgoing{{Box: "agent:a", Home: c.h.id, Generation: 1, Letter: c.letter(text)}}, relaxed)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.o.do(func(box.Now) { c.o.forward(f) }); err != nil {
		c.t.Fatal(err)
	}
	return f
}

// send is put for mails that are on the disk of the origin when it returns.
func (c *crashes) send(texts ...string) {
	c.t.Helper()
	for _, text := range texts {
		f := c.put(text)
		c.o.work()
		if r := c.sentBy(f); r.Code != proto.CodeOK || r.Duplicate {
			c.t.Fatalf("%s: %+v", text, r)
		}
	}
}

// sentBy returns the answer to the sender, or fails the test if there is none.
func (c *crashes) sentBy(f *forwarding) Sent {
	c.t.Helper()
	select {
	case <-f.done:
		return f.sent[0]
	default:
		c.t.Fatal("the sender has no answer")
		return Sent{}
	}
}

// ship returns the next bundle, with room for so many bytes of letters.
func (c *crashes) ship(room int) *proto.Bundle {
	c.t.Helper()
	l := c.o.lane(c.h.id)
	x := l.take(room)
	if x == nil {
		c.t.Fatal("nothing may be sent")
	}
	m, err := l.fetch(c.ended, x)
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// arrive hands a bundle to the home, which has not written it.
func (c *crashes) arrive(m *proto.Bundle) *Arrival {
	c.t.Helper()
	a, err := c.h.Arrive(c.o.id, m, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	c.h.step()
	return a
}

// taken is arrive for a bundle that is on the disk of the home when it returns its answer.
func (c *crashes) taken(m *proto.Bundle, want proto.Code) *proto.Bundled {
	c.t.Helper()
	a := c.arrive(m)
	c.h.work()
	if !a.IsWritten() || a.err != nil || a.answer.GetCode() != want {
		c.t.Fatalf("%v, %v, want %s", a.answer, a.err, want.Name())
	}
	return a.answer
}

// hear tells the origin an answer, which it has not noted yet.
func (c *crashes) hear(m *proto.Bundled) {
	c.t.Helper()
	if err := c.o.lane(c.h.id).answer(c.o.now(), m); err != nil {
		c.t.Fatal(err)
	}
	c.o.step()
}

// lost kills a node. Of what is queued nothing was written; of what was written, keep records
// that were not synced are there.
func (c *crashes) lost(n *simNode, keep int) {
	n.log.queue = nil
	n.log.recs = n.log.recs[:n.log.synced+keep]
	n.log.synced = len(n.log.recs)
	n.start()
}

// putBack puts an old copy of its disk back into a node.
func (c *crashes) putBack(n *simNode, disk *simLog) {
	n.log.queue = nil
	n.log = disk
	n.start()
}

// calm brings all that waits to the home.
func (c *crashes) calm() {
	c.reconnect(c.o)
	c.o.work()
	for range 10 {
		l := c.o.lane(c.h.id)
		x := l.take(1 << 20)
		if x == nil {
			break
		}
		m, err := l.fetch(c.ended, x)
		if err != nil {
			c.t.Fatal(err)
		}
		a := c.arrive(m)
		c.h.work()
		c.hear(a.answer)
		c.o.work()
	}
}

// want checks, after a calm, that the home was given these mails once and in order, that
// the box has the last of them from a sequence on, and that nothing waits at the origin.
func (c *crashes) want(texts ...string) {
	c.t.Helper()
	c.calm()
	var got []string
	id, _ := c.h.state.Find("agent:a")
	for i := range c.h.state.Mails(id, 0, 0) {
		m, _, err := c.h.mailAt(i.Place, i.Length)
		if err != nil {
			c.t.Fatal(err)
		}
		l, err := proto.ParseLetter(m.Letter)
		if err != nil {
			c.t.Fatal(err)
		}
		got = append(got, string(l.Body))
	}
	if !slices.Equal(got, texts) {
		c.t.Errorf("the box has %q, want %q", got, texts)
	}
	for x := range c.o.spools.all() {
		if n := c.o.waitingIn(x); n > 0 {
			c.t.Errorf("%d mails wait for %s at the origin", n, x.box)
		}
	}
	if c.failed != "" {
		c.t.Error(c.failed)
	}
	if len(c.o.bounced) > 0 {
		c.t.Errorf("%d senders were told that their mail was not delivered", len(c.o.bounced))
	}
}

// done acknowledges what is first in the box at the home.
func (c *crashes) done() {
	id, _ := c.h.state.Find("agent:a")
	for i := range c.h.state.Mails(id, 0, 0) {
		c.h.Broker.queue(box.EncodeSpoolDone(id, []uint64{i.Seq}), false, false, nil) // an ACK, as of a reader
		break
	}
	c.h.step()
	c.h.work()
}

// TestEachCrashBetweenNodes checks I21 and I22 for each crash and fault on the way from one
// node to another: what was answered is found, once and in order, and what was not answered is
// whole or not there at all.
func TestEachCrashBetweenNodes(t *testing.T) {
	rows := []struct {
		name string
		run  func(c *crashes)
	}{
		{"origin before its append", func(c *crashes) {
			f := c.put("1")
			c.lost(c.o, 0)
			if f.sent[0].Code != proto.CodeOK || !f.sent[0].ID.IsZero() {
				c.t.Errorf("the sender was answered: %+v", f.sent[0])
			}
			c.want()
			c.send("1") // as new
			c.want("1")
		}},
		{"origin after its append, before the answer", func(c *crashes) {
			c.put("1")
			c.o.log.write(1<<30, false)
			c.lost(c.o, 0)
			f := c.put("1") // again, with its dedupe key
			c.o.work()
			if r := c.sentBy(f); r.Code != proto.CodeOK || !r.Duplicate || r.ID != (proto.MailID{9, 15: 1}) {
				c.t.Errorf("the retry was answered with %+v, want the first id", r)
			}
			c.want("1")
		}},
		{"bundle lost", func(c *crashes) {
			c.send("1", "2")
			c.ship(1 << 20)
			c.want("1", "2")
		}},
		{"bundle repeated", func(c *crashes) {
			c.send("1", "2")
			m := c.ship(1 << 20)
			first := c.taken(m, proto.CodeOK)
			records := len(c.h.log.recs)
			if again := c.taken(m, proto.CodeOK); again.UpTo() != first.UpTo() || len(c.h.log.recs) != records {
				c.t.Errorf("answered %v, then %v with %d more records", first.UpTo(), again.UpTo(), len(c.h.log.recs)-records)
			}
			c.hear(first)
			c.want("1", "2")
		}},
		{"bundles reordered", func(c *crashes) {
			c.send("1", "2")
			first, second := c.ship(1), c.ship(1)
			c.taken(second, proto.CodeBusy)
			c.taken(first, proto.CodeOK)
			c.want("1", "2")
		}},
		{"answer lost", func(c *crashes) {
			c.send("1", "2")
			c.taken(c.ship(1<<20), proto.CodeOK)
			c.want("1", "2")
		}},
		{"origin dies before it noted the answer", func(c *crashes) {
			c.send("1", "2")
			c.hear(c.taken(c.ship(1<<20), proto.CodeOK))
			c.lost(c.o, 0)
			if n := c.o.waitingIn(c.o.spools.targets["agent:a"]); n != 2 {
				c.t.Errorf("%d mails wait at the origin, want 2", n)
			}
			c.want("1", "2")
		}},
		{"origin's process dies when it has noted the answer", func(c *crashes) {
			c.send("1", "2")
			c.hear(c.taken(c.ship(1<<20), proto.CodeOK))
			c.o.work()
			c.lost(c.o, len(c.o.log.recs)-c.o.log.synced)
			if n := c.o.waitingIn(c.o.spools.targets["agent:a"]); n != 0 {
				c.t.Errorf("%d mails wait at the origin", n)
			}
			c.want("1", "2")
		}},
		{"origin's power is cut when it has noted the answer", func(c *crashes) {
			c.send("1", "2")
			c.hear(c.taken(c.ship(1<<20), proto.CodeOK))
			c.o.work()
			c.lost(c.o, 0) // the note joins the next sync: it may be lost
			c.want("1", "2")
		}},
		{"home before its append", func(c *crashes) {
			c.send("1", "2", "3")
			if a := c.arrive(c.ship(1 << 20)); a.IsWritten() {
				c.t.Error("it was answered before it was written")
			}
			c.lost(c.h, 0)
			c.want("1", "2", "3")
		}},
		{"home's disk put back", func(c *crashes) {
			c.send("1")
			c.calm()
			disk := c.h.log.clone()
			c.done()
			c.send("2")
			c.want("2")
			c.putBack(c.h, disk)
			c.send("3")
			c.want("1", "3") // 1 comes again; 2 was accepted since, and is gone
		}},
		{"origin's disk put back", func(c *crashes) {
			c.send("1", "2")
			disk := c.o.log.clone()
			c.hear(c.taken(c.ship(1<<20), proto.CodeOK))
			c.o.work()
			c.send("3")
			c.want("1", "2", "3")
			c.send("4") // made and unsent since the copy
			c.putBack(c.o, disk)
			c.send("5")
			c.want("1", "2", "3", "5") // 1 and 2 are accepted again, and 4 is gone
		}},
		{"both disks put back, the origin's twice", func(c *crashes) {
			c.send("1")
			c.calm()
			origin, home := c.o.log.clone(), c.h.log.clone()
			c.send("2")
			c.calm()
			c.putBack(c.o, origin.clone())
			c.send("3")
			c.calm()
			c.putBack(c.o, origin.clone())
			c.putBack(c.h, home)
			c.send("4")
			c.want("1", "4")
		}},
	}
	// Between pwrite and sync the power cut leaves any part of the batch, as long as it is whole
	// records: package ledger has batches whole or not at all.
	for keep := range 4 {
		rows = append(rows, struct {
			name string
			run  func(c *crashes)
		}{fmt.Sprintf("home between pwrite and sync, %d of 3 kept", keep), func(c *crashes) {
			c.send("1", "2", "3")
			a := c.arrive(c.ship(1 << 20))
			synced := c.h.log.synced
			c.h.log.write(1<<30, false)
			written := len(c.h.log.recs) - synced
			c.h.log.synced = synced
			if a.IsWritten() {
				c.t.Error("it was answered before it was synced")
			}
			c.lost(c.h, written-3+keep)
			c.want("1", "2", "3")
		}})
	}
	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			s := newSim(t)
			tt.run(&crashes{sim: s, t: t, o: s.nodes[0], h: s.home()})
		})
	}
	t.Logf("counted: %d crashes and faults between nodes", len(rows))
}

// TestEachCrashAtTheHome checks I21 and I23 for each crash and fault while mail is read: of a
// lease nothing survives, of an acknowledgment that was answered all (S08).
func TestEachCrashAtTheHome(t *testing.T) {
	rows := []struct {
		name string
		run  func(f *fixture, s *Session, d Delivery)
	}{
		{"power while LEASED, and nobody has it again", func(f *fixture, _ *Session, d Delivery) {
			f.restart()
			f.settle("agent:ceo", d, box.Ack, proto.CodeOK) // the old handle
			f.ended(1)
		}},
		{"power while LEASED, and another has it", func(f *fixture, _ *Session, d Delivery) {
			f.restart()
			again := f.again(d)
			f.settle("agent:ceo", d, box.Ack, proto.CodeStale)
			f.settle("agent:ceo", again, box.Ack, proto.CodeOK)
			f.ended(1)
		}},
		{"reader killed between fetch and ack", func(f *fixture, s *Session, d Delivery) {
			if err := s.Close(f.t.Context(), true); err != nil {
				f.t.Fatal(err)
			}
			f.settle("agent:ceo", f.again(d), box.Ack, proto.CodeOK)
			f.settle("agent:ceo", d, box.Ack, proto.CodeOK) // it is DONE
			f.ended(1)
		}},
		{"reader killed, and its ack comes late", func(f *fixture, s *Session, d Delivery) {
			if err := s.Close(f.t.Context(), true); err != nil {
				f.t.Fatal(err)
			}
			again := f.again(d)
			f.settle("agent:ceo", d, box.Ack, proto.CodeStale)
			f.settle("agent:ceo", again, box.Ack, proto.CodeOK)
			f.ended(1)
		}},
		{"reader slower than its lease, and nobody has it", func(f *fixture, s *Session, d Delivery) {
			if err := s.Leave(f.t.Context()); err != nil {
				f.t.Fatal(err)
			}
			time.Sleep(40 * time.Second) // in the bubble
			f.settle("agent:ceo", d, box.Ack, proto.CodeOK)
			f.ended(1)
		}},
		{"reader slower than its lease, and another has it", func(f *fixture, s *Session, d Delivery) {
			if err := s.Leave(f.t.Context()); err != nil {
				f.t.Fatal(err)
			}
			time.Sleep(40 * time.Second) // in the bubble
			again := f.again(d)
			if again.Attempt != 2 {
				f.t.Errorf("%+v", again)
			}
			f.settle("agent:ceo", d, box.Ack, proto.CodeStale)
			f.settle("agent:ceo", d, box.Nack, proto.CodeStale)
			f.settle("agent:ceo", again, box.Ack, proto.CodeOK)
			f.ended(1)
		}},
		{"ack answered, then power cut", func(f *fixture, _ *Session, d Delivery) {
			f.settle("agent:ceo", d, box.Ack, proto.CodeOK)
			f.restart()
			f.settle("agent:ceo", d, box.Ack, proto.CodeOK)
			f.settle("agent:ceo", d, box.Nack, proto.CodeStale)
			f.ended(1)
		}},
		{"ack written and not answered", func(f *fixture, _ *Session, d Delivery) {
			s, err := f.QueueSettle("agent:ceo", "", []Settlement{{Handle: d.Handle, Op: box.Ack}})
			if err != nil {
				f.t.Fatal(err)
			}
			synctest.Wait() // it is written; nobody waits for s
			f.restart()
			if _, err := s.Wait(f.t.Context()); err != nil && err != ErrUnknown {
				f.t.Error(err)
			}
			f.settle("agent:ceo", d, box.Ack, proto.CodeOK)
			f.ended(1)
		}},
		{"nack answered, then power cut", func(f *fixture, _ *Session, d Delivery) {
			f.settle("agent:ceo", d, box.Nack, proto.CodeOK)
			f.restart()
			again := f.again(d)
			if again.Attempt != 2 {
				f.t.Errorf("%+v", again)
			}
			f.settle("agent:ceo", again, box.Ack, proto.CodeOK)
			f.ended(1)
		}},
	}
	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, Config{})
				defer func() { f.stop() }()
				f.mailbox("agent:ceo")
				f.send("agent:ceo", "hello")
				s := f.read("agent:ceo", 5)
				got, _ := f.next(s, 1)
				tt.run(f, s, got[0])
			})
		})
	}
	t.Logf("counted: %d crashes and faults at the home", len(rows))
}

// again reads the mail of a delivery once more, as another session: it is marked as redelivered.
func (f *fixture) again(d Delivery) Delivery {
	f.t.Helper()
	got, bodies := f.next(f.read("agent:ceo", 5), 1)
	if len(got) != 1 || bodies[0] != "hello" || string(got[0].Letter) != string(d.Letter) || got[0].Handle.Seq != d.Handle.Seq || got[0].Handle == d.Handle || !got[0].Redelivered {
		f.t.Fatalf("%+v, want that of %+v again", got, d)
	}
	return got[0]
}

// ended checks that of agent:ceo n mails are DONE, and that nothing is left to read, now or
// after another start.
func (f *fixture) ended(n uint64) {
	f.t.Helper()
	for range 2 {
		if i := f.info("agent:ceo"); i.Waiting != 0 || i.EndedAs(box.Done) != n || i.EndedAs(box.Dead) != 0 {
			f.t.Errorf("%+v", i)
		}
		f.restart()
	}
}

// S09: each wake-up of a broker is lost, and its reader is idle. The mail is delivered, and
// settled, because the broker looks for itself.
func TestLostWakeUps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{})
		defer func() { f.stop() }()
		f.mailbox("agent:ceo")
		f.stop()
		f.deaf = true
		f.start()
		s := f.read("agent:ceo", 1)
		const mails = 20
		for i := range mails {
			got := make(chan Delivery, 1)
			go func() {
				d, err := s.Next(t.Context(), 1)
				if err != nil {
					t.Error(err)
					close(got)
					return
				}
				got <- d[0]
			}()
			synctest.Wait() // the reader is idle
			began := time.Now()
			f.send("agent:ceo", fmt.Sprint(i))
			d, ok := <-got
			if took := time.Since(began); !ok || took > 3*tickEvery {
				t.Fatalf("mail %d was delivered after %v, want within %v", i, took, 3*tickEvery)
			}
			f.settle("agent:ceo", d, box.Ack, proto.CodeOK)
		}
		if i := f.info("agent:ceo"); i.Waiting != 0 || i.EndedAs(box.Done) != mails {
			t.Errorf("%+v", i)
		}
		t.Logf("counted: %d mails without a wake-up", mails)
	})
}
