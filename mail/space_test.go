package mail

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/ledger"
)

// fill writes to the home's log n records that nobody needs.
func (c *crashes) fill(n int) {
	c.t.Helper()
	for range n {
		now := c.clock.Clock().Now().UnixMilli()
		letter, err := proto.AppendLetter(nil, &proto.Letter{Class: proto.Normal, ID: proto.MailID{7}, Created: now, NotAfter: now + 1, Body: make([]byte, 1000)})
		if err != nil {
			c.t.Fatal(err)
		}
		c.h.queue(box.AppendMail(nil, &box.Mail{Box: box.MaxBoxes + 1, Letter: letter}), false, false, nil)
	}
	c.h.flush()
	c.h.work()
}

// moving has the home read the one mail of its sparse segments. Its MOVE is queued, not written.
func (c *crashes) moving() {
	c.t.Helper()
	c.fill(2 * simSegment)
	c.h.checkpoint()
	c.fill(1)
	c.h.checkpoint()
	for range 3 {
		c.clock.Advance(time.Second)
		c.h.step()
	}
	if n := len(c.h.log.queue); n != 1 {
		c.t.Fatalf("%d calls are queued, want that of the MOVE", n)
	}
}

// segment returns the segment of the one mail at the home.
func (c *crashes) segment() uint64 {
	for _, k := range c.h.state.Places(box.Cursor{}) {
		return segmentOf(k.Place, c.h.last.Load())
	}
	return 0
}

// I21: at each point of a move a crash leaves the mail at its old place or at its new one, and
// a segment is given back only when a start finds the mail without it.
func TestEachCrashOfAMove(t *testing.T) {
	rows := []struct {
		name     string
		run      func(c *crashes)
		moved    bool
		released bool
	}{
		{"before it is written", func(c *crashes) { c.lost(c.h, 0) }, false, false},
		{"written, and the power is cut before a sync", func(c *crashes) {
			c.h.log.write(1<<30, false)
			c.lost(c.h, 0)
		}, false, false},
		{"written, and the process dies", func(c *crashes) {
			c.h.log.write(1<<30, false)
			c.lost(c.h, len(c.h.log.recs)-c.h.log.synced)
		}, true, false},
		{"applied, and the power is cut before a sync", func(c *crashes) {
			c.h.work()
			c.lost(c.h, 0)
		}, false, false},
		{"synced with what came later", func(c *crashes) {
			c.h.work()
			c.fill(1)
			c.lost(c.h, 0)
		}, true, false},
		{"behind the next checkpoint", func(c *crashes) {
			c.h.work()
			c.h.checkpoint()
			c.lost(c.h, 0)
		}, true, true},
		{"behind the next checkpoint, which cannot be read", func(c *crashes) {
			c.h.work()
			c.h.checkpoint()
			c.h.log.images = c.h.log.images[:1]
			c.lost(c.h, 0)
		}, true, true},
		{"none: it is moved again", func(c *crashes) {
			c.h.work()
			c.moving()
			c.h.work()
			c.h.checkpoint()
		}, true, true},
	}
	for _, tt := range rows {
		t.Run(tt.name, func(t *testing.T) {
			s := newSim(t)
			c := &crashes{sim: s, t: t, o: s.nodes[0], h: s.home()}
			c.h.cfg.CheckpointRecords = 1 << 30 // but those of the test
			c.fill(simSegment)
			c.send("1")
			c.calm()
			old := c.segment()
			c.moving()
			tt.run(c)
			if moved := c.segment() != old; moved != tt.moved || c.h.log.released[old] != tt.released {
				t.Errorf("moved %v, given back %v", moved, c.h.log.released[old])
			}
			c.send("2") // its number follows
			c.want("1", "2")
			c.h.checkSpace()
			c.lost(c.h, 0)
			c.want("1", "2")
			c.done()
			c.want("2")
		})
	}
}

// A mail that ends while its MOVE is on the way has ended.
func TestEndDuringAMove(t *testing.T) {
	s := newSim(t)
	c := &crashes{sim: s, t: t, o: s.nodes[0], h: s.home()}
	c.fill(simSegment)
	c.send("1")
	c.calm()
	c.moving()
	c.done()
	c.want()
	c.lost(c.h, 0)
	c.want()
}

// churn fills more than a segment with mail that is done.
func (f *fixture) churn() {
	f.t.Helper()
	const mails = 11
	for range mails {
		f.send("agent:busy", strings.Repeat("x", 200<<10))
	}
	s := f.read("agent:busy", mails)
	got, _ := f.next(s, mails)
	for _, d := range got {
		f.settle("agent:busy", d, box.Ack, proto.CodeOK)
	}
	if err := s.Close(f.t.Context(), false); err != nil {
		f.t.Fatal(err)
	}
}

// sparse sends n mails, each in a segment of which nothing else is needed.
func (f *fixture) sparse(name string, n int) (kept []string) {
	f.t.Helper()
	for i := range n {
		kept = append(kept, fmt.Sprint("kept ", i))
		f.send(name, kept[i])
		f.churn()
	}
	return kept
}

// rest has the broker write checkpoints, and move what is due between them.
func (f *fixture) rest() {
	f.t.Helper()
	if err := f.call(f.t.Context(), func(box.Now) { f.Broker.cfg.CheckpointRecords = 1 }); err != nil {
		f.t.Fatal(err)
	}
	for range 3 {
		f.send("agent:busy", "x")
		time.Sleep(time.Second)
		synctest.Wait()
	}
}

// The mail of sparse segments moves, whatever it is, and changes in nothing: the order of a lane,
// the attempts of a mail, what a subscription of a topic has read, the number of a mail in a spool.
func TestMovedMailIsAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		f := newFixture(t, Config{})
		defer func() { f.stop() }()
		f.mailbox("agent:busy")
		f.mailbox("agent:ceo")
		if err := f.SetBox(ctx, box.BoxSettings{Name: "topic:orders", Kind: box.Topic}); err != nil {
			t.Fatal(err)
		}
		if err := f.SetSub(ctx, "topic:orders", box.SubSettings{Name: "billing"}, box.Start{}); err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			letter := f.letter(fmt.Sprint("in a lane ", n), func(l *proto.Letter) { l.Key = []byte("k") })
			if _, err := f.Send(ctx, []Item{{Box: "agent:ceo", Letter: letter}, {Box: "topic:orders", Letter: f.letter(fmt.Sprint("order ", n), nil)}}, false); err != nil {
				t.Fatal(err)
			}
			if _, err := f.Forward(ctx, []Outgoing{{Box: "agent:far", Home: homeID, Generation: 1, Letter: f.letter(fmt.Sprint("far ", n), nil)}}, false); err != nil {
				t.Fatal(err)
			}
			f.churn()
		}
		reader, err := f.Read(ctx, Reading{Box: "topic:orders", Subscription: "billing", Reader: "r", Credit: 1})
		if err != nil {
			t.Fatal(err)
		}
		got, _ := f.next(reader, 1)
		if _, err := f.Settle(ctx, "topic:orders", "billing", []Settlement{{Handle: got[0].Handle, Op: box.Ack}}); err != nil {
			t.Fatal(err)
		}
		ceo := f.read("agent:ceo", 1)
		got, _ = f.next(ceo, 1)
		f.settle("agent:ceo", got[0], box.Final, proto.CodeOK) // a dead letter
		got, _ = f.next(ceo, 1)
		f.settle("agent:ceo", got[0], box.Nack, proto.CodeOK)
		before := f.records()
		f.rest()
		after := f.records()
		for k, place := range before {
			if _, ok := after[k]; !ok || after[k] == place {
				t.Errorf("mail %v was at %d and is at %d, want it moved", k, place, after[k])
			}
		}
		if st := f.log.Stats(); st.Segments > 4 {
			t.Errorf("%d segments", st.Segments)
		}
		if needed, moved := f.Space(); needed == 0 || moved == 0 || needed > 64<<10 || moved > 64<<10 {
			t.Errorf("%d bytes needed, %d moved", needed, moved)
		}
		f.restart()
		if got, bodies := f.next(f.read("agent:ceo", 5), 1); bodies[0] != "in a lane 1" || got[0].Attempt != 2 {
			t.Errorf("%q, attempt %d", bodies, got[0].Attempt)
		}
		reader, err = f.Read(ctx, Reading{Box: "topic:orders", Subscription: "billing", Reader: "r", Credit: 5})
		if err != nil {
			t.Fatal(err)
		}
		if got, bodies := f.next(reader, 2); fmt.Sprint(bodies) != "[order 1 order 2]" || got[0].Handle.Seq != 2 {
			t.Errorf("%q", bodies)
		}
		lane, err := f.Lane(ctx, homeID)
		if err != nil {
			t.Fatal(err)
		}
		m, err := lane.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if text := string(m.GetLetters()); !strings.Contains(text, "far 0") || !strings.Contains(text, "far 2") || m.GetRuns()[0].GetCount() != 3 {
			t.Errorf("%v", m)
		}
	})
}

// records returns where each record that is needed lies, except those of agent:busy.
func (f *fixture) records() map[[2]uint64]box.Place {
	f.t.Helper()
	all := map[[2]uint64]box.Place{}
	if err := f.View(f.t.Context(), func(s *box.State) {
		busy, _ := s.Find("agent:busy")
		for _, k := range s.Places(box.Cursor{}) {
			if k.Box != busy {
				all[[2]uint64{uint64(k.Box), k.Seq}] = k.Place
			}
		}
	}); err != nil {
		f.t.Fatal(err)
	}
	return all
}

// I23: a delivery, a bundle and a page of a list that were made before a move are read after it,
// when the segment is gone.
func TestReadersFindMovedMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{})
		defer func() { f.stop() }()
		f.mailbox("agent:busy")
		f.mailbox("agent:ceo")
		if err := f.SetSub(t.Context(), "agent:ceo", box.SubSettings{Lease: time.Hour, Attempts: 1}, box.Start{}); err != nil {
			t.Fatal(err)
		}
		s := f.read("agent:ceo", 9) // it is leased what comes, and asks for it later
		kept := f.sparse("agent:ceo", 3)
		if _, err := f.Forward(t.Context(), []Outgoing{{Box: "agent:far", Home: homeID, Generation: 1, Letter: f.letter("far", nil)}}, false); err != nil {
			t.Fatal(err)
		}
		f.churn()
		lane, err := f.Lane(t.Context(), homeID)
		if err != nil {
			t.Fatal(err)
		}
		var bundle *shipment
		var listed []box.Kept
		if err := f.call(t.Context(), func(box.Now) {
			bundle = lane.take(1 << 20)
			for _, k := range f.state.Places(box.Cursor{}) {
				listed = append(listed, k)
			}
		}); err != nil {
			t.Fatal(err)
		}
		f.rest()
		gone := 0
		for _, k := range listed {
			if _, _, err := f.mailAt(k.Place, k.Length); err != nil {
				gone++
			}
			if _, _, err := f.MailOf(t.Context(), k); err != nil {
				t.Errorf("mail %d of box %d: %v", k.Seq, k.Box, err)
			}
		}
		if gone < 4 {
			t.Errorf("%d old places are gone, want those of 4 mails at least", gone)
		}
		if m, err := lane.fetch(t.Context(), bundle); err != nil || !strings.Contains(string(m.GetLetters()), "far") {
			t.Errorf("%v, %v", m, err)
		}
		if _, bodies := f.next(s, 3); !slices.Equal(bodies, kept) {
			t.Errorf("%q", bodies)
		}
		if i := f.info("agent:ceo"); i.EndedAs(box.Dead) != 0 {
			t.Errorf("%+v", i)
		}
	})
}

// A segment with a record that cannot be read stays, is told once, and keeps no other one.
func TestDamagedMailIsNotMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		f := newFixture(t, Config{Logger: slog.New(slog.NewTextHandler(&said, nil))})
		defer func() { f.stop() }()
		f.mailbox("agent:busy")
		f.mailbox("agent:ceo")
		f.sparse("agent:ceo", 4)
		f.restart() // nothing of it is in memory now
		paths, err := filepath.Glob(filepath.Join(f.dir, "*.seg"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if at := strings.Index(string(b), "kept 1"); at >= 0 {
				b[at] ^= 1
				if err := os.WriteFile(path, b, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		before := f.records()
		for range 3 {
			f.rest()
		}
		moved := 0
		for k, place := range f.records() {
			if place != before[k] {
				moved++
			}
		}
		var damaged int
		if err := f.call(t.Context(), func(box.Now) { damaged = len(f.moving.damaged) }); err != nil {
			t.Fatal(err)
		}
		f.stop()
		if n := strings.Count(said.String(), "its segment of the ledger stays"); moved != 3 || damaged != 1 || n != 1 {
			t.Errorf("%d of 4 mails were moved, want 3; %d segments are damaged, and %d were told", moved, damaged, n)
		}
	})
}

// I21: a ledger was rebuilt: what a record behind a gap says of where a mail is counts if the mail
// came before the gap, because its old segment may be gone.
func TestMoveBehindAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{})
		f.mailbox("agent:ceo")
		f.send("agent:ceo", "a", "b")
		f.stop()
		id, _ := f.state.Find("agent:ceo")
		next := f.sequences()
		next[id] = 2 // b came behind the gap, and may be another mail
		for seq, moves := range map[uint64]bool{1: true, 2: false} {
			old, _ := f.state.Record(id, seq)
			move, err := box.AppendMove(nil, seq, box.AppendMail(nil, &box.Mail{Box: id, Letter: f.letter("a", nil)}))
			if err != nil {
				t.Fatal(err)
			}
			at := ledger.Place{Segment: 1, Offset: 1 << 20}
			if err := f.replayBehindGap(at, move, next); err != nil {
				t.Fatal(err)
			}
			if is, _ := f.state.Record(id, seq); is.Place != map[bool]box.Place{true: pack(at), false: old.Place}[moves] {
				t.Errorf("mail %d is at %d, moves: %v", seq, is.Place, moves)
			}
		}
		if err := f.replayBehindGap(ledger.Place{}, []byte{0, 0, 0, 12, byte(box.TypeMove), 0, 0, 0, 0, 0, 0, 1}, next); err == nil {
			t.Error("a MOVE of nothing")
		}
	})
}

// Moves are at most 10 MiB a second, and what is moved between two checkpoints has a limit.
func TestMovesAreSlow(t *testing.T) {
	b := newBroker(new(simLog), Config{CheckpointBytes: 1000})
	b.state = box.New(&b.chains)
	log := b.log.(*simLog)
	for i := range 8 * simSegment {
		log.recs = append(log.recs, make([]byte, 100+i))
	}
	log.images = []simImage{{index: len(log.recs)}, {index: len(log.recs)}}
	needed := map[uint64]int64{}
	for first, size := range log.segments() {
		needed[first] = min(size/sparsePart-1, 200)
	}
	if got := b.release(needed); len(got) != 3 || !got[1] || !got[11] || !got[21] {
		t.Errorf("%v is moved, want the oldest 500 bytes", got)
	}
	for _, tt := range []struct{ mono, due int64 }{{1000, 1010}, {1005, 1010}, {1010, 1020}} {
		b.moving.sparse = map[uint64]bool{1: true}
		b.moveDue(box.Now{Mono: tt.mono})
		if b.moving.due != tt.due {
			t.Errorf("at %d: the next batch is due at %d, want %d", tt.mono, b.moving.due, tt.due)
		}
	}
}
