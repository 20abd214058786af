package bodies

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// records are the names that records refer to.
type records map[string]bool

func (r records) Mark(refer func(string, proto.PeerID)) error {
	for name := range r {
		refer(name, proto.PeerID{})
	}
	return nil
}

func (records) Awaits(task proto.TaskID) bool { return task[0] == 1 }

// markFunc is the mark of records that await nothing.
type markFunc func(refer func(string, proto.PeerID)) error

func (f markFunc) Mark(refer func(string, proto.PeerID)) error { return f(refer) }
func (markFunc) Awaits(proto.TaskID) bool                      { return false }

func sweep(t *testing.T, s *Store, mark Records) int {
	t.Helper()
	n, err := s.Sweep(t.Context(), mark)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A sweep, with or without the death of the process before it, at each point between the
// file, the record that refers to it and the end of each record: the object is there as
// long as a record refers to it, and gone after.
func TestSweepAtEachPoint(t *testing.T) {
	for _, dies := range []bool{false, true} {
		dir := t.TempDir()
		s := openStore(t, dir, Config{})
		disk := records{}
		point := func(name, what string, kept bool) {
			t.Helper()
			if dies {
				s.Close()
				s = openStore(t, dir, Config{})
			}
			sweep(t, s, disk)
			if s.Has(name) != kept {
				t.Errorf("dies %v, %s: kept is %v", dies, what, !kept)
			}
		}
		body := random(1, 3*testChunk)
		ref := seal(t, s, body)
		name := ref.Name.String()
		point(name, "file without a record", !dies) // a submit that never returned
		if dies {
			ref = seal(t, s, body)
			name = ref.Name.String()
		}
		disk[name] = true // record of the origin
		if !dies {
			s.Release(name)
		}
		point(name, "referred to", true)
		if !s.Pin(name) { // a second record: a redrive, a copy for another target
			t.Fatal("not there")
		}
		point(name, "pinned", true)
		if !dies {
			s.Release(name)
		}
		delete(disk, name) // the first record ends, the second is durable
		disk2 := records{name: true}
		disk = disk2
		point(name, "one of two records ended", true)
		delete(disk, name)
		point(name, "both ended", false)
		wantUsage(t, s, 0, 0)
	}
}

// What is written, received, released or found while the records are read is spared, even
// if its record came where the mark had passed already. The mark blocks none of that.
func TestSweepSparesWhatIsNewerThanItsMark(t *testing.T) {
	from, s := openStore(t, t.TempDir(), Config{}), openStore(t, t.TempDir(), Config{})
	old := seal(t, s, random(9, 10))
	s.Release(old.Name.String())
	pinned := seal(t, s, random(1, 10)) // its record is written after the mark passed
	var ref, got Ref
	var small string
	removed := sweep(t, s, markFunc(func(func(string, proto.PeerID)) error {
		s.Release(pinned.Name.String())
		ref = seal(t, s, random(2, 10))
		s.Release(ref.Name.String())
		var err error
		if small, err = s.Put(random(3, 10), false); err != nil {
			return err
		}
		s.Release(small)
		got = seal(t, from, random(4, 3*testChunk))
		src := source(t, from, &got)
		in := receive(t, s, src.Manifest)
		for _, p := range pieces(t, src) {
			if err := in.Put(p.index, p.chunk, p.path); err != nil {
				return err
			}
		}
		if _, err := s.Sweep(t.Context(), records{}); !errors.Is(err, ErrBusy) {
			t.Errorf("a second sweep: %v", err)
		}
		return in.Commit()
	}))
	if removed != 1 || s.Has(old.Name.String()) {
		t.Errorf("%d removed, want the old one", removed)
	}
	for _, name := range []string{pinned.Name.String(), ref.Name.String(), small, got.Name.String()} {
		if !s.Has(name) {
			t.Errorf("%s was swept", name)
		}
	}
	if removed := sweep(t, s, records{}); removed != 3 || !s.Has(got.Name.String()) {
		t.Errorf("%d removed by the next sweep, want all but what was received just now", removed)
	}
}

// A received object waits an hour for its record; once it had one, it goes with it.
func TestReceivedObjectsWaitForTheirRecord(t *testing.T) {
	m := clock.NewManual(time.Unix(1e9, 0))
	from := openStore(t, t.TempDir(), Config{})
	s := openStore(t, t.TempDir(), Config{Clock: m.Clock()})
	get := func(seed byte) string {
		ref := seal(t, from, random(seed, 10))
		src := source(t, from, &ref)
		in := receive(t, s, src.Manifest)
		p := pieces(t, src)[0]
		if err := errors.Join(in.Put(0, p.chunk, p.path), in.Commit()); err != nil {
			t.Fatal(err)
		}
		return ref.Name.String()
	}
	a, b := get(1), get(2)
	sweep(t, s, records{a: true})
	m.Advance(30 * time.Minute)
	sweep(t, s, records{})
	if s.Has(a) || !s.Has(b) {
		t.Error("want the one without a record alone")
	}
	m.Advance(31 * time.Minute)
	sweep(t, s, records{})
	if s.Has(b) {
		t.Error("no record came within an hour")
	}
}

// A part survives restarts until nobody can send the rest any more (S12).
func TestPartsWaitForTheRest(t *testing.T) {
	m := clock.NewManual(time.Unix(1e9, 0))
	from := openStore(t, t.TempDir(), Config{})
	dir := t.TempDir()
	s := openStore(t, dir, Config{Clock: m.Clock()})
	for i, tt := range []struct {
		life time.Duration
		task byte // 1 is awaited
	}{{time.Hour, 0}, {-2 * proto.Skew, 0}, {time.Hour, 1}, {time.Hour, 2}} {
		ref := seal(t, from, random(byte(i), 3*testChunk))
		src := source(t, from, &ref)
		in, err := s.Receive(src.Manifest, Terms{NotAfter: m.Clock().Now().Add(tt.life).UnixMilli(), Task: proto.TaskID{tt.task}})
		if err != nil {
			t.Fatal(err)
		}
		p := pieces(t, src)[1]
		if err := errors.Join(in.Put(1, p.chunk, p.path), in.Sync(), in.Close()); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	s = openStore(t, dir, Config{Clock: m.Clock()})
	wantUsage(t, s, 0, 4)
	if n := sweep(t, s, records{}); n != 2 {
		t.Errorf("%d parts swept, want the late one and that of a task that is gone", n)
	}
	wantUsage(t, s, 0, 2)
	m.Advance(2 * time.Hour)
	sweep(t, s, records{})
	wantUsage(t, s, 0, 0)
}

// I14: a part that is late by a doubted clock is kept.
func TestDoubtedClockRemovesNoPart(t *testing.T) {
	m := clock.NewManual(time.Unix(1e9, 0))
	begin := m.Clock().Now()
	from, dir := openStore(t, t.TempDir(), Config{}), t.TempDir()
	s := openStore(t, dir, Config{})
	ref := seal(t, from, random(1, 3*testChunk))
	src := source(t, from, &ref)
	in, err := s.Receive(src.Manifest, Terms{NotAfter: begin.Add(time.Hour).UnixMilli()})
	if err != nil {
		t.Fatal(err)
	}
	p := pieces(t, src)[1]
	if err := errors.Join(in.Put(1, p.chunk, p.path), in.Sync(), in.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	m.Advance(50 * 365 * 24 * time.Hour)
	guard := clock.NewGuard(m.Clock())
	guard.Bound(begin, begin, begin.AddDate(1, 0, 0))
	s = openStore(t, dir, Config{Clock: guard.Clock()})
	sweep(t, s, records{})
	wantUsage(t, s, 0, 1)
	m.Advance(clock.BelieveAnyway)
	sweep(t, s, records{})
	wantUsage(t, s, 0, 0)
}

// A mark over a million records holds no lock: what a submit does goes on meanwhile.
func TestMarkOfAMillionRecordsBlocksNobody(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	ref := seal(t, s, random(1, 10))
	name := ref.Name.String()
	s.Release(name)
	sweep(t, s, markFunc(func(refer func(string, proto.PeerID)) error {
		var sum [8]byte
		for i := range uint64(1_000_000) {
			binary.BigEndian.PutUint64(sum[:], i)
			refer("o-"+string(sum[:]), proto.PeerID{byte(i)})
			if i%100_000 != 0 {
				continue
			}
			small, err := s.Put(sum[:], false) // in the same goroutine: it would wait forever
			if err != nil {
				return err
			}
			if s.Release(small); !s.Pin(name) {
				t.Error("the object is gone")
			}
			s.Release(name)
		}
		return nil
	}))
	if !s.Has(name) {
		t.Error("an object that was released during the mark was swept")
	}
}

// A sweep comes soon after a record has ended, and what was received for that record no
// longer waits.
func TestRunSweepsWhatWasDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, s := openStore(t, t.TempDir(), Config{}), openStore(t, t.TempDir(), Config{})
		ref := seal(t, from, random(1, 10))
		src := source(t, from, &ref)
		in := receive(t, s, src.Manifest)
		p := pieces(t, src)[0]
		if err := errors.Join(in.Put(0, p.chunk, p.path), in.Commit()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.Run(ctx, records{}, func(int, error) {}) })
		time.Sleep(15 * time.Minute)
		wantUsage(t, s, 1, 0)
		s.Drop(ref.Name.String())
		time.Sleep(2 * time.Second)
		wantUsage(t, s, 0, 0)
		cancel()
		wg.Wait()
	})
}

// A record that ends takes a file neither from a sweep in progress nor, at once, from another
// record that is about to refer to it.
func TestDropLeavesTimeForAnotherRecord(t *testing.T) {
	m := clock.NewManual(time.Unix(1e9, 0))
	s := openStore(t, t.TempDir(), Config{Clock: m.Clock()})
	ref := seal(t, s, random(1, 10))
	name := ref.Name.String()
	s.Hold(name)
	sweep(t, s, markFunc(func(func(string, proto.PeerID)) error {
		s.Drop(name)
		m.Advance(sweepPause)
		return nil
	}))
	wantUsage(t, s, 1, 0)
	if !s.Pin(name) {
		t.Fatal("the body is gone")
	}
	s.Hold(name)
	s.Drop(name)
	sweep(t, s, records{})
	wantUsage(t, s, 1, 0)
	m.Advance(sweepPause)
	sweep(t, s, records{})
	wantUsage(t, s, 0, 0)
}

// A mark that fails removes nothing.
func TestFailedMarkRemovesNothing(t *testing.T) {
	s := openStore(t, t.TempDir(), Config{})
	ref := seal(t, s, nil)
	s.Release(ref.Name.String())
	if _, err := s.Sweep(t.Context(), markFunc(func(func(string, proto.PeerID)) error { return os.ErrInvalid })); !errors.Is(err, os.ErrInvalid) {
		t.Errorf("Sweep: %v", err)
	}
	wantUsage(t, s, 1, 0)
}

func FuzzParseManifest(f *testing.F) {
	m := Manifest{Size: 5000, Chunk: testChunk}
	f.Add(m.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseManifest(b)
		if err != nil {
			return
		}
		if !bytes.Equal(m.Append(nil), b) {
			t.Errorf("%x is read as %+v", b, m)
		}
		var sum int64
		if n := m.Chunks(); n <= 1<<12 {
			for i := range n {
				sum += int64(m.ChunkSize(i))
			}
			if sum != m.Size {
				t.Errorf("%+v: its chunks have %d bytes", m, sum)
			}
		}
	})
}

// No chunk and path but those of the object are taken.
func FuzzPut(f *testing.F) {
	from := openStore(f, f.TempDir(), Config{})
	ref := seal(f, from, random(1, 2*testChunk+5))
	src := source(f, from, &ref)
	all := pieces(f, src)
	for _, p := range all {
		f.Add(p.index, p.chunk, p.path)
	}
	s := openStore(f, f.TempDir(), Config{})
	in, err := s.Receive(src.Manifest, Terms{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { in.Close() })
	f.Fuzz(func(t *testing.T, i int, chunk, path []byte) {
		if in.Put(i, chunk, path) == nil && (!bytes.Equal(chunk, all[i].chunk) || !bytes.Equal(path, all[i].path)) {
			t.Errorf("chunk %d was taken", i)
		}
	})
}

// A file of any content is served and read as its object or not at all.
func FuzzFile(f *testing.F) {
	s := openStore(f, f.TempDir(), Config{})
	ref := seal(f, s, random(1, 2*testChunk+5))
	name := ref.Name.String()
	whole, err := os.ReadFile(s.root.Name() + "/" + name)
	if err != nil {
		f.Fatal(err)
	}
	all := pieces(f, source(f, s, &ref))
	f.Add(whole)
	f.Add(whole[:headerSize])
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(s.root.Name()+"/"+name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		src, err := s.Source(name)
		if err != nil {
			return
		}
		defer src.Close()
		for i, p := range all {
			chunk, _, err := src.Chunk(i, make([]byte, len(p.chunk)), nil)
			if err == nil && !bytes.Equal(chunk, p.chunk) {
				t.Errorf("chunk %d is another one", i)
			}
		}
	})
}
