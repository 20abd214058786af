package box

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// by returns a number of one of some producers.
func by(producer byte, n uint64) proto.Produced {
	return proto.Produced{Producer: proto.ProducerID{producer}, Number: n}
}

// producerBench is a bench whose boxes never get full.
func producerBench(t *testing.T) *bench {
	b := newBench(t)
	b.apply(EncodeBox(2, &BoxSettings{Name: "topic:orders", Kind: Topic, Mails: 8}))
	return b
}

// TestNumberedMailNeedsNoKeys sends many more mails than there are dedupe keys: each is taken,
// and a second time known.
func TestNumberedMailNeedsNoKeys(t *testing.T) {
	b := producerBench(t)
	b.apply(EncodeLimits(Limits{Keys: 1}))
	b.mustSend(note{box: 2, dedupe: "the only key"})
	const batch = 512
	var recs [][]byte
	for n := uint64(1); n <= 20*batch; n++ {
		recs = append(recs, b.record(note{box: 2, produced: by(1, n)}))
		if r := b.apply(recs[len(recs)-1]); r.Code != proto.CodeOK || r.Duplicate || r.Seq != n+1 {
			t.Fatalf("mail %d: %+v", n, r)
		}
		if n%batch > 0 {
			continue
		}
		for _, rec := range recs { // the answer was lost
			if r := b.apply(rec); r.Code != proto.CodeOK || !r.Duplicate || r.ID.IsZero() {
				t.Fatalf("mail %d again: %+v", n, r)
			}
		}
		recs = nil
	}
	if r := b.send(note{box: 2, dedupe: "another"}); r.Code != proto.CodeFull {
		t.Errorf("a second key: %+v", r)
	}
	if i, _ := b.s.Info(2); i.Next != 20*batch+2 {
		t.Errorf("%+v", i)
	}
}

// TestProducerWindow takes numbers out of order, as far back as the window goes.
func TestProducerWindow(t *testing.T) {
	const w = proto.ProducerWindow
	for _, tt := range []struct {
		name  string
		taken []uint64
		n     uint64
		want  Result
	}{
		{"the first one", nil, 1, Result{}},
		{"any first one", nil, math.MaxInt64, Result{}},
		{"the next one", []uint64{1}, 2, Result{}},
		{"again", []uint64{1, 2}, 1, Result{Duplicate: true}},
		{"the newest again", []uint64{1, 2}, 2, Result{Duplicate: true}},
		{"left out", []uint64{1, 3}, 2, Result{}},
		{"left out and taken", []uint64{1, 3, 2}, 2, Result{Duplicate: true}},
		{"the oldest of the window", []uint64{5, w + 4}, 5, Result{Duplicate: true}},
		{"left out at its end", []uint64{6, w + 4}, 5, Result{}},
		{"behind it", []uint64{5, w + 5}, 5, Result{Code: proto.CodeExpired, ForGood: true}},
		{"left out behind it", []uint64{6, w + 5}, 5, Result{Code: proto.CodeExpired, ForGood: true}},
		{"the place of one that is behind it", []uint64{5, w + 4, w + 6}, w + 5, Result{}},
		{"after a leap", []uint64{5, 6, 7 + 2*w}, 6 + 2*w, Result{}},
		{"long ago", []uint64{5, math.MaxInt64}, 5, Result{Code: proto.CodeExpired, ForGood: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := producerBench(t)
			for _, n := range tt.taken {
				if r := b.send(note{produced: by(1, n)}); r.Code != proto.CodeOK || r.Duplicate {
					t.Fatalf("number %d: %+v", n, r)
				}
			}
			for _, how := range []string{"", "after a restart"} {
				if how != "" {
					b.restart()
				}
				if r := b.send(note{produced: by(2, tt.n), box: 2}); r.Duplicate != (how != "") {
					t.Errorf("of another producer: %+v %s", r, how)
				}
				r := b.send(note{produced: by(1, tt.n)})
				if want := tt.want; r.Code != want.Code || r.ForGood != want.ForGood || r.Duplicate != (want.Duplicate || how != "" && want.Code == proto.CodeOK) || r.Code != proto.CodeOK && r.Detail == "" {
					t.Errorf("%+v, want %+v %s", r, want, how)
				}
			}
		})
	}
}

// TestRefusedMailKeepsNoNumber sends a mail again that was refused: its number counts when it
// is taken.
func TestRefusedMailKeepsNoNumber(t *testing.T) {
	b := newBench(t)
	b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, Mails: 1}))
	b.mustSend(note{produced: by(1, 1)})
	if r := b.send(note{produced: by(1, 2)}); r.Code != proto.CodeFull {
		t.Fatalf("a full box: %+v", r)
	}
	if r := b.send(note{produced: by(1, 1)}); !r.Duplicate {
		t.Errorf("a full box, again: %+v", r)
	}
	b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, Draining: true}))
	if r := b.send(note{produced: by(1, 2)}); r.Code != proto.CodeDraining {
		t.Errorf("a draining box: %+v", r)
	}
	if r := b.send(note{produced: by(1, 1)}); !r.Duplicate {
		t.Errorf("a draining box, again: %+v", r)
	}
	b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox}))
	b.mustSend(note{produced: by(1, 2)})
	b.apply(EncodeRemoveBox(1))
	if r := b.send(note{produced: by(1, 2)}); !r.Duplicate {
		t.Errorf("a box that is gone: %+v", r)
	}
}

// TestNumbersCountWhereMailIsTakenFirst: a spool takes a number once; the home of the box
// takes what the chain says.
func TestNumbersCountWhereMailIsTakenFirst(t *testing.T) {
	b := newBench(t)
	b.apply(EncodePeer(1, proto.PeerID{1}))
	b.apply(EncodeBox(2, &BoxSettings{Name: "out:agent:far", Kind: Spool, Home: proto.PeerID{2}, Generation: 3}))
	spooled := func(n uint64) Result {
		return b.send(note{box: 2, produced: by(1, 1), chain: proto.High, number: proto.Seq{Boot: 1, Counter: n}})
	}
	if r := spooled(1); r.Code != proto.CodeOK || r.Duplicate {
		t.Fatalf("%+v", r)
	}
	if r := spooled(2); !r.Duplicate {
		t.Errorf("again: %+v", r)
	}
	for n := range uint64(2) {
		if r := b.send(note{origin: 1, produced: by(1, 1), chain: proto.High, number: proto.Seq{Boot: 1, Counter: n + 1}}); r.Code != proto.CodeOK || r.Duplicate {
			t.Errorf("number 1 of a producer elsewhere: %+v", r)
		}
	}
}

// TestProducersAreForgotten forgets the one that was used the longest ago when there are too
// many, and each that sent nothing for a day of running time.
func TestProducersAreForgotten(t *testing.T) {
	b := producerBench(t)
	known := func(id byte) bool { return b.s.producers.byID[proto.ProducerID{id}] != nil }
	b.s.producers.limit = 2
	b.mustSend(note{produced: by(1, 1)})
	b.mustSend(note{produced: by(2, 1)})
	b.mustSend(note{produced: by(1, 2)})
	b.mustSend(note{produced: by(3, 1)})
	if !known(1) || known(2) || !known(3) {
		t.Errorf("the wrong one was forgotten: 1 %v, 2 %v, 3 %v", known(1), known(2), known(3))
	}
	b.now.Wall += 1000 * 3600_000 // the clock alone forgets nobody
	b.wait(agePeriod)
	for range 3 {
		b.wait(7 * time.Hour)
		b.mustSend(note{produced: by(1, b.s.producers.newest.last+7)})
	}
	if b.wait(4 * time.Hour); !known(1) || known(3) {
		t.Errorf("after 25 hours: 1 %v, 3 %v", known(1), known(3))
	}
	if b.wait(24 * time.Hour); known(1) || b.s.producers.oldest != nil || b.s.producers.newest != nil {
		t.Error("a producer that sent nothing for a day is known")
	}
	b.mustSend(note{produced: by(1, 2)}) // a second mail: nobody remembers the first one
}

// TestProducersAreMany has as many as there may be, over a checkpoint.
func TestProducersAreMany(t *testing.T) {
	b := producerBench(t)
	var out Output
	send := func(i uint32) {
		id := proto.ProducerID(binary.BigEndian.AppendUint32(make([]byte, 12), i+1))
		rec := b.record(note{box: 2, produced: proto.Produced{Producer: id, Number: uint64(i) + 1}})
		if out.Reset(); b.s.Apply(1, rec, &out) != nil || out.Results[0].Code != proto.CodeOK {
			t.Fatalf("producer %d: %+v", i, out.Results)
		}
	}
	for i := range uint32(MaxProducers) {
		send(i)
	}
	saved := save(t, b.s)
	if len(saved) > MaxProducers*(40+proto.ProducerWindow/8) {
		t.Errorf("a checkpoint of %d bytes", len(saved))
	}
	back, err := Load(bytes.NewReader(saved), chainNotes{})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(save(t, back), saved) {
		t.Error("what was loaded is another state")
	}
	b.s = back
	if send(MaxProducers); len(back.producers.byID) != MaxProducers || back.producers.oldest.last != 2 {
		t.Errorf("%d producers, the oldest has sent %d", len(back.producers.byID), back.producers.oldest.last)
	}
}

// TestBadProducersInACheckpoint refuses what Save cannot have written.
func TestBadProducersInACheckpoint(t *testing.T) {
	window := func(last uint64, words ...uint64) []byte {
		b := appendU64(appendU64(append([]byte{1}, bytes.Repeat([]byte{7}, 16)...), last), 0)
		for _, w := range words {
			b = appendU64(b, w)
		}
		return b
	}
	all := make([]uint64, proto.ProducerWindow/64)
	for i := range all {
		all[i] = math.MaxUint64
	}
	for _, tt := range []struct {
		name string
		b    []byte
		ok   bool
	}{
		{"one number", window(1, 2), true},
		{"all numbers", window(1<<63-1, all...), true},
		{"number 0", window(1, 3), false},
		{"a number above the last one", window(1, 6), false},
		{"without the last one", window(2, 2), false},
		{"without numbers", window(0, 1), false},
		{"2^63", window(1<<63, all...), false},
		{"twice", append(append([]byte{2}, window(1, 2)[1:]...), window(1, 2)[1:]...), false},
		{"without a name", append([]byte{1}, append(make([]byte, 16), window(1, 2)[17:]...)...), false},
		{"too few words", window(64, 2), false},
	} {
		var x producers
		d := decoder{b: tt.b}
		if d.producers(&x); d.done() != tt.ok {
			t.Errorf("%s: %v", tt.name, d.done())
		}
	}
}

// modelProducer is what the model knows of a producer.
type modelProducer struct {
	taken map[uint64]bool
	last  uint64
	used  int64
}

// maxSimProducers is how many producers the state of the simulator remembers.
const maxSimProducers = 3

// produced returns the answer to a mail whose number was used.
func (m *model) produced(rec *Mail, l *proto.Letter) (Result, bool) {
	p := m.producers[l.Produced.Producer]
	switch n := l.Produced.Number; {
	case rec.Origin != 0 || p == nil || n > p.last:
	case n+proto.ProducerWindow <= p.last:
		return Result{Code: proto.CodeExpired, ForGood: true}, true
	case p.taken[n]:
		return Result{Duplicate: true}, true
	}
	return Result{}, false
}

// produce notes the number of a mail that was taken.
func (m *model) produce(rec *Mail, l *proto.Letter) {
	id := l.Produced.Producer
	if rec.Origin != 0 || l.Produced.Number == 0 {
		return
	}
	if m.producers[id] == nil {
		if len(m.lastUse) == maxSimProducers {
			delete(m.producers, m.lastUse[0])
			m.lastUse = m.lastUse[1:]
		}
		m.producers[id] = &modelProducer{taken: map[uint64]bool{}}
	}
	p := m.producers[id]
	p.taken[l.Produced.Number], p.last, p.used = true, max(p.last, l.Produced.Number), m.ran+m.bootN
	m.lastUse = append(slices.DeleteFunc(m.lastUse, func(x proto.ProducerID) bool { return x == id }), id)
}

// forgetProducers forgets those that sent nothing for a day.
func (m *model) forgetProducers() {
	m.lastUse = slices.DeleteFunc(m.lastUse, func(id proto.ProducerID) bool {
		old := m.ran+m.bootN-m.producers[id].used >= 24*3600_000
		if old {
			delete(m.producers, id)
		}
		return old
	})
}

func (m *model) compareProducers(s *State) error {
	if len(s.producers.byID) != len(m.lastUse) {
		return fmt.Errorf("%d producers, want %d", len(s.producers.byID), len(m.lastUse))
	}
	p := s.producers.oldest
	for _, id := range m.lastUse {
		if p == nil || p.id != id || p.last != m.producers[id].last {
			return errors.New("producers differ")
		}
		p = p.newer
	}
	return nil
}

// number returns a number of some producer: mostly its next one, and at times any of those at
// the ends of its window.
func (s *sim) number() proto.Produced {
	id := proto.ProducerID{15: byte(1 + s.choose(maxSimProducers+1))}
	last := uint64(0)
	if p := s.m.producers[id]; p != nil {
		last = p.last
	}
	n := last + 1
	switch s.choose(8) {
	case 0, 1:
		n = last - uint64(s.choose(4))
	case 2:
		n = last + 2
	case 3:
		n = last - proto.ProducerWindow + uint64(s.choose(6))
	case 4:
		n = last + proto.ProducerWindow - 3 + uint64(s.choose(6))
	}
	if n == 0 || n >= 1<<63 {
		n = 1
	}
	return proto.Produced{Producer: id, Number: n}
}
