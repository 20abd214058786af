package box

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/balefire/balefire/proto"
)

// fullBench is a state that has something of everything.
func fullBench(t testing.TB) *bench {
	b := newBench(t)
	b.apply(EncodeLimits(Limits{Bytes: 1 << 30, Keys: 100, Kept: 1 << 20}))
	b.apply(EncodePeer(1, proto.PeerID{1}))
	b.apply(EncodeBox(2, &BoxSettings{Name: "topic:orders", Kind: Topic, Mails: 50}))
	b.apply(EncodeSub(2, 1, &SubSettings{Name: "one", Filter: "a.>"}, Start{At: StartFirst}))
	b.apply(EncodeSub(2, 2, &SubSettings{Name: "two", Block: true, To: "agent:next"}, Start{}))
	b.apply(EncodeSub(1, 0, &SubSettings{Attempts: 1, Block: true}, Start{}))
	for i := range 6 {
		b.mustSend(note{key: "k", dedupe: fmt.Sprint("d", i), after: time.Duration(i/5) * time.Minute})
		b.mustSend(note{box: 2, subject: fmt.Sprint("a.", i%2), key: fmt.Sprint("k", i), origin: 1, chain: proto.High, number: proto.Seq{Boot: 1, Counter: uint64(i) + 1}})
	}
	b.apply(EncodeBox(3, &BoxSettings{Name: "out:agent:far", Kind: Spool, Home: proto.PeerID{2}, Generation: 3}))
	b.mustSend(note{box: 3, key: "k", dedupe: "d", chain: proto.High, number: proto.Seq{Boot: 1, Counter: 1}})
	b.mustSend(note{produced: by(1, 3)})
	b.mustSend(note{object: 1})
	b.mustSend(note{box: 2, object: 2, origin: 1})
	b.mustSend(note{produced: by(2, proto.ProducerWindow+9)})
	b.mustSend(note{produced: by(1, 70)})
	b.mustSend(note{box: 3, flags: proto.LetterReceipt, chain: proto.High, number: proto.Seq{Boot: 1, Counter: 2}})
	b.apply(EncodeTaken(3, []Receipt{{2, []byte("signed")}}))
	b.mustSend(note{origin: 1, flags: proto.LetterReceipt, chain: proto.Low, number: proto.Seq{Boot: 1, Counter: 1}})
	b.apply(EncodeBox(4, &BoxSettings{Name: "agent:desk", Kind: Mailbox}))
	b.mustSend(note{box: 4, flags: proto.LetterTellEnd})
	b.done(b.attach(4, 0), 1)
	x := b.attach(1, 0)
	b.must(Nack, b.deliver(x, 1)[0].Handle)
	y := b.attach(2, 2)
	list := b.deliver(y, 3)
	for _, d := range list[:2] {
		if code := b.settle(Settlement{Box: 2, Sub: 2, Handle: d.Handle, Op: Nack, Reason: "busy"}); code != proto.CodeOK {
			t.Fatal(code)
		}
	}
	if code := b.settle(Settlement{Box: 2, Sub: 2, Handle: list[2].Handle, Op: Ack}); code != proto.CodeOK {
		t.Fatal(code)
	}
	b.wait(13 * time.Hour)
	return b
}

func TestCheckpointIsTheState(t *testing.T) {
	b := fullBench(t)
	saved := save(t, b.s)
	if again := save(t, b.s); !bytes.Equal(saved, again) {
		t.Error("the same state is other bytes")
	}
	back, err := Load(bytes.NewReader(saved), chainNotes{})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(saved, save(t, back)) {
		t.Error("what was loaded is another state")
	}
	if back.bytes != b.s.bytes || back.boxes[2].held[1] != b.s.boxes[2].held[1] || back.boxes[1].bytes != b.s.boxes[1].bytes {
		t.Error("sums differ")
	}
	if replayed := save(t, b.replay(New(chainNotes{}), 0)); !bytes.Equal(saved, replayed) {
		t.Error("a replay is another state")
	}
	// Checkpoint and replay from any record on is replay.
	for n := range b.log {
		part := New(chainNotes{})
		var out Output
		for i, rec := range b.log[:n] {
			if err := part.Apply(Place(i+1), rec, &out); err != nil {
				t.Fatal(err)
			}
		}
		part, err := Load(bytes.NewReader(save(t, part)), chainNotes{})
		if err != nil {
			t.Fatalf("after %d records: %v", n, err)
		}
		if !bytes.Equal(saved, save(t, b.replay(part, n))) {
			t.Errorf("a checkpoint after %d records leads to another state", n)
		}
	}
}

// brokenWriter fails after n bytes.
type brokenWriter int

var errBroken = errors.New("broken")

func (w *brokenWriter) Write(b []byte) (int, error) {
	if *w -= brokenWriter(len(b)); *w < 0 {
		return 0, errBroken
	}
	return len(b), nil
}

func TestCheckpointErrors(t *testing.T) {
	b := fullBench(t)
	if err := b.s.Save(new(brokenWriter)); !errors.Is(err, errBroken) {
		t.Errorf("save: %v", err)
	}
	if _, err := Load(io.MultiReader(bytes.NewReader(save(t, b.s)), brokenReader{}), chainNotes{}); !errors.Is(err, errBroken) {
		t.Errorf("load: %v", err)
	}
	saved := save(t, b.s)
	for i := range saved {
		if _, err := Load(bytes.NewReader(saved[:i]), chainNotes{}); !errors.Is(err, ErrBadCheckpoint) {
			t.Fatalf("cut at %d: %v", i, err)
		}
	}
	if _, err := Load(bytes.NewReader(append(bytes.Clone(saved), 0)), chainNotes{}); !errors.Is(err, ErrBadCheckpoint) {
		t.Errorf("with a trailer: %v", err)
	}
	// A bit more or less is refused, or another state that is saved as it was read.
	refused := 0
	for i := range saved {
		flipped := bytes.Clone(saved)
		flipped[i] ^= 1 << (i % 8)
		s, err := Load(bytes.NewReader(flipped), chainNotes{})
		switch {
		case err == nil && !bytes.Equal(save(t, s), flipped):
			t.Fatalf("bit %d of byte %d: it is saved as other bytes", i%8, i)
		case err != nil && !errors.Is(err, ErrBadCheckpoint):
			t.Fatalf("byte %d: %v", i, err)
		case err != nil:
			refused++
		}
	}
	if refused < len(saved)/10 {
		t.Errorf("%d of %d flips were refused", refused, len(saved))
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errBroken }

// TestWaitingMailIsSmall checks the 40 bytes of a waiting mail: 32 in a chunk, 8 in the
// queue of its class. The heap may add a half for spare space and the heads of chunks.
func TestWaitingMailIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(mail{}); size != 32 {
		t.Errorf("a mail has %d bytes, want 32", size)
	}
	if size := unsafe.Sizeof(seqHeap{0}[0]); size != 8 {
		t.Errorf("a place in the queue has %d bytes, want 8", size)
	}
	const n = 100_000
	b := newBench(t)
	rec := b.record(note{})
	x := b.attach(1, 0)
	used := heapInUse()
	var out Output
	for range n {
		out.Reset()
		if err := b.s.Apply(7, rec, &out); err != nil || out.Results[0].Code != proto.CodeOK {
			t.Fatalf("%v, %+v", err, out.Results)
		}
	}
	if got := b.deliver(x, 1); len(got) != 1 { // now all stand in the queue
		t.Fatal(got)
	}
	if per := int64(heapInUse()-used) / n; per > 60 {
		t.Errorf("a waiting mail takes %d bytes of the heap, want 40 and at most a half more", per)
	}
	// They leave nothing behind but some timers of leases that are over.
	for range n - 1 {
		got := b.deliver(x, 1)
		out.Reset()
		b.s.Settle(b.now, []Settlement{{Box: 1, Handle: got[0].Handle, Op: Ack}}, &out)
		if err := b.s.Apply(7, out.Records[0], &out); err != nil {
			t.Fatal(err)
		}
	}
	if i := b.info(); i.Waiting != 1 || i.EndedAs(Done) != n-1 {
		t.Errorf("%+v", i)
	}
	if left := int64(heapInUse() - used); left > 1<<18 {
		t.Errorf("%d bytes are left after %d mails", left, n)
	}
	runtime.KeepAlive(b)
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// FuzzLoad reads any bytes as a checkpoint. What it accepts is saved as it was, and works.
func FuzzLoad(f *testing.F) {
	f.Add(save(f, New(chainNotes{})))
	f.Add(save(f, newBench(f).s))
	b := fullBench(f)
	f.Add(save(f, b.s))
	f.Fuzz(func(t *testing.T, saved []byte) {
		s, err := Load(bytes.NewReader(saved), chainNotes{})
		if err != nil {
			if !errors.Is(err, ErrBadCheckpoint) {
				t.Errorf("%v is not an error of the package", err)
			}
			return
		}
		if !bytes.Equal(save(t, s), saved) && bytes.HasPrefix(saved, []byte(checkpointMagic)) {
			t.Error("it is saved as other bytes")
		}
		exercise(t, s)
	})
}

// FuzzApply applies any records to a state that has something of everything.
func FuzzApply(f *testing.F) {
	b := fullBench(f)
	saved := save(f, b.s)
	f.Add(slices.Concat(b.log...))
	for rec := range goldenRecords(f) {
		f.Add([]byte(rec))
	}
	f.Fuzz(func(t *testing.T, recs []byte) {
		s, err := Load(bytes.NewReader(saved), chainNotes{})
		if err != nil {
			t.Fatal(err)
		}
		var out Output
		for len(recs) >= 4 {
			n := min(max(int(recs[2])<<8|int(recs[3]), 4), len(recs))
			if err := s.Apply(1, recs[:n], &out); err != nil && !errors.Is(err, ErrBadRecord) {
				t.Errorf("%v is not an error of the package", err)
			}
			recs = recs[n:]
		}
		back, err := Load(bytes.NewReader(save(t, s)), chainNotes{})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(save(t, back), save(t, s)) {
			t.Error("it is saved as other bytes")
		}
		exercise(t, s)
	})
}

// exercise uses a state in all ways, and applies what it makes.
func exercise(t testing.TB, s *State) {
	t.Helper()
	var out Output
	now := Now{Wall: start, Mono: 1}
	commit := func() {
		recs := cloneRecords(out.Records)
		out.Reset()
		for _, rec := range recs {
			if err := s.Apply(1, rec, &out); err != nil {
				t.Fatal(err)
			}
		}
		out.Reset()
	}
	if s.boot < 1<<63 {
		s.Start(now, s.boot+1, &out)
	}
	commit()
	for _, id := range s.Boxes() {
		info, _ := s.Info(id)
		for _, sub := range info.Subs {
			x, err := s.Attach(id, sub, "r", 0, 10)
			if err != nil {
				t.Fatal(err)
			}
			for i, d := range s.Deliver(now, x, 10, nil, &out) {
				s.Settle(now, []Settlement{{Box: id, Sub: sub, Handle: d.Handle, Op: Op(1 + i%7)}}, &out)
			}
			commit()
		}
	}
	now.Mono, now.Wall = now.Mono+24*3600_000, now.Wall+40*24*3600_000
	s.Tick(now, &out)
	commit()
	for _, x := range records(s) {
		if x.Size <= 0 {
			t.Errorf("%+v", x)
		}
	}
}
