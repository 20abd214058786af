package box

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

var (
	oldHome = proto.PeerID{31: 100}
	newHome = proto.PeerID{31: 101}
)

// moving returns the settings of box id in a stage of its move to p.
func (b *bench) moving(id BoxID, stage Stage, p proto.PeerID) BoxSettings {
	b.Helper()
	s, ok := b.s.Settings(id)
	if !ok {
		b.Fatalf("no box %d", id)
	}
	s.Handover = Handover{ID: [16]byte{1}, Peer: p, Generation: 1, Stage: stage}
	return s
}

// stage lets box id be in a stage of its move.
func (b *bench) stage(id BoxID, stage Stage) {
	b.Helper()
	s := b.moving(id, stage, newHome)
	if r := b.apply(EncodeBox(id, &s)); r.Code != proto.CodeOK {
		b.Fatalf("stage %d: %+v", stage, r)
	}
}

// parts returns the parts of a box, as its next home gets them, and who the origins are.
func (b *bench) parts(id BoxID) (all [][]byte) {
	b.Helper()
	all = b.s.CopyHead(id)
	for at := (Cursor{}); ; {
		mails, next := b.s.CopyMails(id, at, 3, 200)
		if len(mails) == 0 {
			break
		}
		at = next
		var kept []CopiedMail
		for _, m := range mails {
			rec, _, err := ForTransit(b.log[m.Place-1], m.Seq, func(i uint32) uint32 { return i + 1 })
			if err != nil {
				b.Fatal(err)
			}
			if all = append(all, rec); m.IsDone {
				kept = append(kept, m)
			}
		}
		if len(kept) > 0 {
			all = append(all, EncodeKept(kept))
		}
	}
	return append(all, b.s.CopyTail(id)...)
}

// copyOf begins a copy of a box of src as the next box.
func (b *bench) copyOf(src *bench, id BoxID) BoxID {
	b.Helper()
	s := src.moving(id, Copying, oldHome)
	s.Name = CopyPrefix + s.Name
	at := b.s.NewBox()
	if r := b.apply(EncodeBox(at, &s)); r.Code != proto.CodeOK {
		b.Fatalf("%+v", r)
	}
	return at
}

// take applies parts of the box of src to a copy of it.
func (b *bench) take(src *bench, id BoxID, parts [][]byte) {
	b.Helper()
	for _, rec := range parts {
		rec, err := ForCopy(rec, id, func(i uint32) (uint32, error) {
			p := oldHome
			if i > 1 {
				p, _ = src.s.Peer(i - 1)
			}
			if b.s.Origin(p) == 0 {
				b.apply(EncodePeer(b.s.NewOrigin(), p))
			}
			return b.s.Origin(p), nil
		})
		if err != nil {
			b.Fatal(err)
		}
		if r := b.apply(rec); r.Code != proto.CodeOK {
			b.Fatalf("a part is refused: %+v", r)
		}
	}
}

// serve lets a copy be served, under the name that it had.
func (b *bench) serve(id BoxID) Result {
	b.Helper()
	whole := b.moving(id, Whole, oldHome)
	b.apply(EncodeBox(id, &whole))
	whole.Handover.Stage, whole.Generation = Came, 2
	whole.Name = strings.TrimPrefix(whole.Name, CopyPrefix)
	return b.apply(b.s.EncodeServe(id, &whole))
}

// sameParts reports whether two boxes have the same, but for the places of their mails.
func sameParts(t *testing.T, x, y [][]byte) {
	t.Helper()
	if len(x) != len(y) {
		t.Fatalf("%d parts, want %d", len(y), len(x))
	}
	for i := range x {
		h, d, err := parseHead(x[i])
		if err != nil {
			t.Fatal(err)
		}
		if h.typ == TypeMove { // its origin is another number
			sx, mx, _ := parseMove(x[i])
			sy, my, err := parseMove(y[i])
			a, _ := ParseMail(mx)
			b, e := ParseMail(my)
			if a.Origin, b.Origin = 0, 0; err != nil || e != nil || sx != sy || !bytes.Equal(AppendMail(nil, &Mail{Letter: a.Letter, At: a.At}), AppendMail(nil, &Mail{Letter: b.Letter, At: b.At})) || a.Number != b.Number {
				t.Errorf("part %d: mail %d is %d (%v, %v)", i, sx, sy, err, e)
			}
			continue
		}
		hy, dy, err := parseHead(y[i])
		if err != nil || h != hy {
			t.Fatalf("part %d: %+v, want %+v (%v)", i, hy, h, err)
		}
		p, q := d.part(), dy.part()
		p.dead.Place, p.dead.Length, q.dead.Place, q.dead.Length = 0, localSize+int(p.dead.Size), 0, localSize+int(q.dead.Size)
		if !bytes.Equal(encodePart(0, h.sub, p), encodePart(0, h.sub, q)) {
			t.Errorf("part %d: %+v, want %+v", i, q, p)
		}
	}
}

// fill makes boxes in which there is something of all, and returns them.
func (b *bench) fill() (boxes []BoxID) {
	b.Helper()
	b.apply(EncodePeer(1, proto.PeerID{31: 7}))
	b.apply(EncodePeer(2, newHome))
	b.apply(EncodeBox(1, &BoxSettings{Name: "agent:ceo", Kind: Mailbox, Keep: time.Hour, JSON: true}))
	for i := range 20 {
		n := note{key: string(rune('a' + i%4)), body: "1", origin: uint32(i % 3), after: time.Duration(i%2) * time.Minute}
		if n.origin > 0 {
			n.chain, n.number = proto.Normal, proto.Seq{Boot: 3, Counter: uint64(i) + 1}
		}
		b.mustSend(n)
	}
	b.send(note{body: "no JSON", object: 0}) // a dead letter at once
	b.mustSend(note{object: 9})
	block := SubSettings{Block: true, Attempts: 1}
	b.apply(EncodeSub(1, 0, &block, Start{}))
	x := b.attach(1, 0)
	given := b.deliver(x, 100)
	for i, d := range given {
		op := []Op{Ack, Nack, Defer, Final, Extend}[i%5]
		b.settle(Settlement{Handle: d.Handle, Op: op, Delay: time.Second, Reason: "no"})
	}
	topic := b.s.NewBox()
	b.apply(EncodeBox(topic, &BoxSettings{Name: "topic:news", Kind: Topic}))
	for i, s := range []SubSettings{{Name: "all"}, {Name: "eu", Filter: "eu.>"}, {Name: "late"}} {
		from := Start{}
		if i == 2 {
			for range 30 {
				b.mustSend(note{box: topic, subject: []string{"eu.a", "us.b", "eu.c"}[b.ids%3], body: "x", key: string(rune('a' + b.ids%2))})
			}
			from.At = StartLast
		}
		b.apply(EncodeSub(topic, SubID(i+1), &s, from))
	}
	b.apply(EncodeRemoveSub(topic, 2))
	b.apply(EncodeSub(topic, 4, &SubSettings{Name: "more", Filter: "eu.>"}, Start{At: StartFirst}))
	for _, sub := range []SubID{1, 4} {
		for i, d := range b.deliver(b.attach(topic, sub), 15) {
			b.settle(Settlement{Box: topic, Sub: sub, Handle: d.Handle, Op: []Op{Ack, Nack, Final, Ack}[i%4]})
		}
	}
	b.wait(cleanPeriod)
	return []BoxID{1, topic}
}

// What a box has comes to its new home: mails with their sequences, what is kept, dead letters,
// retries, lanes, and what subscriptions have read; also when they come twice. A checkpoint and
// a replay there have the same, and it can move on.
func TestCopyOfABox(t *testing.T) {
	src := newBench(t)
	boxes := src.fill()
	dst := newBench(t)
	dst.apply(EncodeRemoveBox(1))
	dst.apply(EncodePeer(1, proto.PeerID{31: 55}))
	for _, id := range boxes {
		src.stage(id, Still)
		parts := src.parts(id)
		at := dst.copyOf(src, id)
		dst.take(src, at, parts)
		dst.take(src, at, parts[len(src.s.CopyHead(id)):]) // a mail is there once
		if r := dst.serve(at); r.Code != proto.CodeOK {
			t.Fatalf("%+v", r)
		}
		sameParts(t, parts, dst.parts(at))
		x, _ := src.s.Info(id)
		y, _ := dst.s.Info(at)
		if x.Waiting != y.Waiting || x.Bytes != y.Bytes || x.Next != y.Next || x.ended != y.ended || x.Settings.Name != y.Settings.Name || x.Settings.Keep != y.Settings.Keep {
			t.Errorf("%+v, want %+v", y, x)
		}
		back, err := Load(bytes.NewReader(save(t, dst.s)), chainNotes{})
		if err != nil || !bytes.Equal(save(t, back), save(t, dst.s)) || !bytes.Equal(save(t, dst.s), save(t, dst.replay(New(chainNotes{}), 0))) {
			t.Errorf("%v, or other bytes", err)
		}
		objects := len(slices.Collect(func(yield func([32]byte) bool) {
			for name := range src.s.Objects() {
				if !yield(name) {
					return
				}
			}
		}))
		src.apply(EncodeLeave(id))
		if _, there := src.s.Find(x.Settings.Name); there || len(src.out.Ends)+len(src.out.Bounces) > 0 || len(src.out.Objects) != objects {
			t.Errorf("after it has gone: there %v, %+v", there, src.out)
		}
	}
	if src.s.bytes != 0 || src.s.kept != 0 || src.s.details != 0 {
		t.Errorf("%d bytes are left, %d kept, %d of details", src.s.bytes, src.s.kept, src.s.details)
	}
	if _, err := Load(bytes.NewReader(save(t, src.s)), chainNotes{}); err != nil {
		t.Error(err)
	}
}

// Readers at the new home are given what those of the old one had not acknowledged, in order, and
// the attempts count on; a lease of the old home is none there.
func TestReadersAfterAMove(t *testing.T) {
	src, dst := newBench(t), newBench(t)
	dst.apply(EncodeRemoveBox(1))
	for _, dedupe := range []string{"", "", "inv-1"} {
		src.mustSend(note{key: "k", dedupe: dedupe})
	}
	x := src.attach(1, 0)
	src.must(Ack, src.want(x, 1)[0].Handle)
	src.must(Nack, src.want(x, 2)[0].Handle)
	src.wait(2 * time.Second)
	leased := src.want(x, 2)[0].Handle
	src.stage(1, Closing)
	if r := src.send(note{}); r.Code != proto.CodeBusy || r.ForGood {
		t.Errorf("a send while it closes: %+v", r)
	}
	if n := src.s.Leases(1); n != 1 {
		t.Errorf("%d leases", n)
	}
	src.stage(1, Still)
	for _, op := range []Op{Ack, Nack, Extend, Return} {
		if code := src.settle(Settlement{Handle: leased, Op: op}); code != proto.CodeStale {
			t.Errorf("settlement %d while it is still: %v", op, code)
		}
	}
	if code := src.settle(Settlement{Handle: Handle{1, 1, 1}, Op: Ack}); code != proto.CodeOK {
		t.Errorf("what is done: %v", code)
	}
	src.want(x)
	dst.now = src.now
	src.wait(2 * time.Hour) // nothing expires
	if i := src.info(); i.Waiting != 2 || x.held != 0 {
		t.Errorf("%+v, %d held", i, x.held)
	}
	parts := src.parts(1)
	at := dst.copyOf(src, 1)
	dst.take(src, at, parts)
	if d := dst.deliver(dst.attach(at, 0), 9); len(d) > 0 {
		t.Errorf("a copy gives %+v", d)
	}
	dst.serve(at)
	given := dst.deliver(dst.attach(at, 0), 9)
	if len(given) != 1 || given[0].Handle.Seq != 2 || given[0].Attempt != 2 || !given[0].Redelivered {
		t.Errorf("%+v", given)
	}
	if r := dst.send(note{box: at, dedupe: "inv-1", origin: dst.s.Origin(oldHome), chain: proto.Normal, number: proto.Seq{Boot: 1, Counter: 1}, key: "k"}); !r.Duplicate || r.Seq != 3 {
		t.Errorf("a dedupe key of a mail that came: %+v", r)
	}
	leased.Boot = 0
	if code := dst.settle(Settlement{Box: at, Handle: leased, Op: Ack}); code != proto.CodeBadForm {
		t.Errorf("a lease of the old home: %v", code)
	}
}

// A move that does not happen leaves the box as it was.
func TestMoveThatIsGivenUp(t *testing.T) {
	b := newBench(t)
	b.mustSend(note{})
	x := b.attach(1, 0)
	b.want(x, 1)
	b.stage(1, Still)
	same := b.moving(1, Still, newHome)
	for name, rec := range map[string][]byte{
		"settings":       EncodeBox(1, &same),
		"a subscription": EncodeSub(1, 0, &SubSettings{Paused: true}, Start{}),
		"its removal":    EncodeRemoveBox(1),
		"a dead letter":  EncodeRedriven(1, 0, []uint64{1}),
	} {
		if r := b.apply(rec); r.Code != proto.CodeBusy {
			t.Errorf("%s: %+v", name, r)
		}
	}
	b.out.Reset()
	if n := b.s.Purge(b.now, 1, 9, "", &b.out); n != 0 {
		t.Errorf("%d mails are purged", n)
	}
	again := b.moving(1, Still, newHome)
	again.Handover = Handover{}
	b.apply(EncodeBox(1, &again))
	if len(b.out.Ready) != 1 {
		t.Errorf("%d sessions are woken", len(b.out.Ready))
	}
	b.must(Ack, b.want(x, 1)[0].Handle)
	if r := b.send(note{}); r.Code != proto.CodeOK {
		t.Errorf("%+v", r)
	}
}

// A copy takes only what fits it, and a box that is none takes no parts.
func TestBadParts(t *testing.T) {
	src, dst := newBench(t), newBench(t)
	src.mustSend(note{})
	src.stage(1, Still)
	head := src.s.CopyHead(1)
	mail := src.parts(1)[len(head)]
	at := dst.copyOf(src, 1)
	dead := DeadLetter{Seq: 1, Length: localSize + proto.LetterFixed, Size: proto.LetterFixed, Cause: CauseFinal}
	for name, p := range map[string]part{
		"a floor of a mailbox":            {op: partSub, floor: 1},
		"a subscription of a mailbox":     {op: partSub, settings: SubSettings{Name: "x"}},
		"what a mailbox has read":         {op: partRead, spans: seqSet{{0, 1}}},
		"ends behind the last":            {op: partEnded, spans: seqSet{{1, 9}}},
		"a retry of no mail":              {op: partRetry, seq: 5},
		"a dead letter of no mail":        {op: partDead, dead: dead},
		"a kept mail that is not there":   {op: partKept, seqs: []uint64{1}, done: []uint32{1}},
		"a past mail that is no letter":   {op: partPast, seqs: []uint64{1}},
		"fewer sequences than there are":  {op: partCounts, next: 1, nextSub: 1},
		"chains that are none":            {op: partChains, notes: []byte("x")},
		"to be served before it is whole": {op: partServe, box: BoxSettings{Name: "agent:x", Kind: Mailbox, Handover: Handover{ID: [16]byte{1}, Peer: oldHome, Generation: 1, Stage: Came}}},
	} {
		if name == "fewer sequences than there are" {
			dst.take(src, at, head)
		}
		if r := dst.apply(encodePart(at, 0, &p)); r.Code == proto.CodeOK {
			t.Errorf("%s: %+v", name, r)
		}
		if p.op < partServe {
			if r := dst.apply(encodePart(1, 0, &p)); r.Code != proto.CodeBusy {
				t.Errorf("%s, in a box that is no copy: %+v", name, r)
			}
		}
	}
	for name, rec := range map[string][]byte{
		"of another box":   encodePart(3, 0, &part{op: partCounts, next: 1, nextSub: 1}),
		"that removes it":  EncodeLeave(0),
		"that serves it":   New(nil).EncodeServe(0, &BoxSettings{Name: "x", Kind: Mailbox}),
		"that is an ack":   appendAck(nil, 0, 0, []uint64{1}),
		"that is a mail":   AppendMail(nil, &Mail{Letter: make([]byte, 60)}),
		"without its end":  mail[:len(mail)-1],
		"that is no box's": nil,
	} {
		if _, err := ForCopy(rec, at, func(i uint32) (uint32, error) { return 0, nil }); err == nil {
			t.Errorf("a part %s is taken", name)
		}
	}
	dst.s.limits.Bytes = 10
	local, err := ForCopy(mail, at, func(uint32) (uint32, error) { return 0, nil })
	if err != nil {
		t.Fatal(err)
	}
	if r := dst.apply(local); r.Code != proto.CodeFull {
		t.Errorf("a mail for which there is no space: %+v", r)
	}
}

// However the parts of a copy are mixed up, the state can be saved and loaded.
func TestMixedPartsAreHarmless(t *testing.T) {
	src := newBench(t)
	boxes := src.fill()
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		dst := newBench(t)
		dst.apply(EncodeRemoveBox(1))
		id := boxes[seed%2]
		if seed < 2 {
			src.stage(id, Still)
		}
		parts := src.parts(id)
		at := dst.copyOf(src, id)
		for range rng.IntN(4) {
			rng.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		}
		for _, rec := range append(src.s.CopyHead(id), append(parts, parts[:rng.IntN(len(parts))]...)...) {
			rec = bytes.Clone(rec)
			if rng.IntN(4) == 0 {
				rec[len(rec)-1-rng.IntN(min(20, len(rec)-headSize))] ^= 1 << rng.IntN(8)
			}
			rec, err := ForCopy(rec, at, func(i uint32) (uint32, error) { return 0, nil })
			if err != nil {
				continue
			}
			dst.apply(rec)
		}
		if _, err := Load(bytes.NewReader(save(t, dst.s)), chainNotes{}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		dst.apply(EncodeLeave(at))
		if dst.s.bytes != 0 || dst.s.kept != 0 || dst.s.details != 0 {
			t.Fatalf("seed %d: %d bytes are left, %d kept, %d of details", seed, dst.s.bytes, dst.s.kept, dst.s.details)
		}
	}
}

// FuzzForCopy reads any bytes as a part of a copy.
func FuzzForCopy(f *testing.F) {
	src := newBench(f)
	for _, id := range src.fill() {
		for _, rec := range src.parts(id) {
			f.Add(rec)
		}
	}
	f.Fuzz(func(t *testing.T, rec []byte) {
		out, err := ForCopy(rec, 1, func(i uint32) (uint32, error) { return i | 1, nil })
		if err != nil {
			return
		}
		// Mail of this node has no number, and no mail has a cause.
		if n := len(rec) - len(out); !slices.Contains([]int{0, causeSize, mailSize - localSize, mailSize - localSize + causeSize}, n) {
			t.Errorf("%x became %x", rec, out)
		}
		if h, _, err := parseHead(out); err != nil || h.box != 1 {
			t.Errorf("%x: %+v, %v", out, h, err)
		}
	})
}

// A mailbox may have mail with a subject, which came through a topic, and two mails with one dedupe key,
// if the first waits for longer than the key is known: the newer one has it at the new home, too.
func TestMailThatACopyMayHave(t *testing.T) {
	src, dst := newBench(t), newBench(t)
	dst.apply(EncodeRemoveBox(1))
	src.mustSend(note{dedupe: "k", body: "old", subject: "eu.a", ttl: 80 * time.Hour})
	for range 40 {
		src.wait(time.Hour)
	}
	second := note{dedupe: "k", body: "new", ttl: 80 * time.Hour}
	src.mustSend(second)
	src.stage(1, Still)
	at := dst.copyOf(src, 1)
	dst.take(src, at, src.parts(1))
	if r := dst.serve(at); r.Code != proto.CodeOK {
		t.Fatalf("%+v", r)
	}
	second.box, second.origin = at, dst.s.Origin(oldHome)
	if r := dst.send(second); !r.Duplicate || r.Seq != 2 {
		t.Errorf("the newer mail is sent again: %+v", r)
	}
	if n := dst.s.dedupe.held[second.origin]; n != 1 {
		t.Errorf("%d keys are held", n)
	}
}
