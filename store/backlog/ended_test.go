package backlog

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// TestDeadSetIsBounded covers S17 and I11: however many tasks fail, the dead set stays
// within its bounds, and every task beyond them is archived before it leaves the store.
func TestDeadSetIsBounded(t *testing.T) {
	const failures, keep = 100_000, 1000
	archived, told := map[Key]bool{}, 0
	w := newFixture(t, Config{MaxEntries: failures, MaxDead: keep})
	w.cfg.Archive = func(_ context.Context, list []Archived) error {
		for _, a := range list {
			if archived[a.Key] {
				t.Errorf("%v archived twice", a.Key)
			}
			if len(a.Stored.GetEnvelope().GetBody()) != 100 || a.Stored.Record.State != failed {
				t.Errorf("%v archived without its body or end", a.Key)
			}
			archived[a.Key] = true
		}
		return nil
	}
	w.cfg.Archived = func(n int) { told += n }
	w.reopen()
	news := make([]NewEntry, 500)
	edits := make([]Edit, len(news))
	for range failures / len(news) {
		for i := range news {
			news[i] = w.task("p", classNormal)
			edits[i].Key = news[i].Key
		}
		w.add(news...)
		now := w.clock.Clock().Now()
		errs := w.Change(t.Context(), edits, func(_ int, r *proto.Record) Action {
			r.Move(failed, now, proto.TaskFailed, "boom")
			return ToDead
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		w.clock.Advance(time.Millisecond)
		if _, err := w.Tidy(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := w.Stats().Dead; n > keep {
			t.Fatalf("%d dead entries, want at most %d", n, keep)
		}
	}
	if len(archived) != failures-keep || told != len(archived) {
		t.Errorf("%d archived, %d reported, want %d", len(archived), told, failures-keep)
	}
	w.reopen()
	if n := w.Stats().Dead; n != keep {
		t.Errorf("after a restart %d dead, want %d", n, keep)
	}
	left, _, err := w.List(Dead, nil, keep+1, nil)
	if err != nil || len(left) != keep {
		t.Fatalf("%d dead in the store, %v", len(left), err)
	}
	for _, l := range left {
		if archived[l.Key] {
			t.Errorf("%v is archived and still there", l.Key)
		}
	}
	w.clock.Advance(31 * 24 * time.Hour)
	if done, err := w.Tidy(t.Context()); err != nil || done.Archived != keep || w.Stats().Dead != 0 {
		t.Errorf("by age: %+v, %v, %d left", done, err, w.Stats().Dead)
	}
}

// TestDeadEntriesAreArchivedFirst covers I11: while the archive cannot be written, dead
// entries stay.
func TestDeadEntriesAreArchivedFirst(t *testing.T) {
	broken := errors.New("disk full")
	w := newFixture(t, Config{MaxDead: 1, Archive: func(context.Context, []Archived) error { return broken }})
	for range 3 {
		w.end(w.addOne("p", classNormal, nil), failed)
	}
	if _, err := w.Tidy(t.Context()); !errors.Is(err, broken) {
		t.Errorf("err = %v, want the archive's", err)
	}
	if n := w.Stats().Dead; n != 3 {
		t.Errorf("%d dead are left, want all 3", n)
	}
}

// TestDamagedDeadRecordIsKept: a dead record that cannot be read is not archived, so it
// is not deleted either; it no longer blocks its lane, as after a restart. This holds also
// where no other is to be archived (I11).
func TestDamagedDeadRecordIsKept(t *testing.T) {
	for _, others := range []int{0, 2} {
		t.Run(fmt.Sprint(others), func(t *testing.T) { tidyDamaged(t, others) })
	}
}

func tidyDamaged(t *testing.T, others int) {
	archived, damaged := 0, 0
	w := newFixture(t, Config{
		MaxDead: 1, Damaged: func([]byte, error) { damaged++ },
		Archive: func(_ context.Context, list []Archived) error { archived += len(list); return nil },
	})
	inLane := func(r *proto.Record) { r.OrderingKey, r.OnDead = "k", "block" }
	bad, next := w.addOne("p", classNormal, inLane), w.addOne("p", classNormal, inLane)
	w.end(bad, failed)
	for range others + 1 {
		w.clock.Advance(time.Millisecond)
		w.end(w.addOne("p", classNormal, nil), failed)
	}
	var b store.Batch
	b.Put(store.DeadLetters, bad.append(nil, kindInitial), []byte{0xff, 0xff, 0xff})
	if err := w.store.Apply(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	if done, err := w.Tidy(t.Context()); err != nil || done.Archived != others || archived != others || damaged != 1 {
		t.Errorf("%+v, %v: %d archived, %d damaged", done, err, archived, damaged)
	}
	if _, err := w.store.Get(store.DeadLetters, bad.append(nil, kindInitial)); err != nil {
		t.Errorf("the damaged record: %v", err)
	}
	if n := w.Stats().Dead; n != 1 {
		t.Errorf("%d dead, want the newest", n)
	}
	if got := w.takeAll("p"); len(got) != 1 || got[0] != next {
		t.Errorf("took %v, want the next of the lane", got)
	}
}

// What succeeded is forgotten beyond the count or after the age, and not before (I11).
func TestDoneSetIsBoundedByCountAndAge(t *testing.T) {
	w := newFixture(t, Config{MaxDone: 300, DoneFor: time.Hour})
	var keys []Key
	for range 700 {
		keys = append(keys, w.addOne("p", classNormal, nil))
	}
	for _, k := range keys {
		w.end(k, success)
		w.clock.Advance(time.Second)
	}
	if done, err := w.Tidy(t.Context()); err != nil || done.Forgotten != 400 {
		t.Fatalf("tidied %+v, %v, want 400 forgotten", done, err)
	}
	if _, _, err := w.Get(keys[399]); !errors.Is(err, ErrNotFound) {
		t.Errorf("an old one: %v", err)
	}
	if _, _, err := w.Get(keys[400]); err != nil {
		t.Errorf("a young one: %v", err)
	}
	w.reopen()
	w.clock.Advance(time.Hour - 100*time.Second)
	if done, err := w.Tidy(t.Context()); err != nil || done.Forgotten != 201 || w.Stats().Done != 99 {
		t.Errorf("by age: %+v, %v, %d left", done, err, w.Stats().Done)
	}
}

func TestPurge(t *testing.T) {
	w := newFixture(t, Config{})
	for i := range 10 {
		k := w.addOne(fmt.Sprint("p", i%2), classNormal, nil)
		w.end(k, failed)
	}
	odd := func(_ Key, r *proto.Record) bool { return string(r.Peer) == "p1" }
	if n, err := w.Purge(t.Context(), Dead, odd, true); n != 5 || err != nil || w.Stats().Dead != 10 {
		t.Errorf("dry run: %d, %v, %d left", n, err, w.Stats().Dead)
	}
	if n, err := w.Purge(t.Context(), Dead, odd, false); n != 5 || err != nil || w.Stats().Dead != 5 {
		t.Errorf("purge: %d, %v, %d left", n, err, w.Stats().Dead)
	}
	if _, err := w.Purge(t.Context(), Live, nil, false); err == nil {
		t.Error("live entries were purged")
	}
}

// TestBlockedLaneWaitsForAPerson covers I10: with on_dead: block a dead entry blocks only
// the entries behind it, also after a restart, until somebody redrives it.
func TestBlockedLaneWaitsForAPerson(t *testing.T) {
	w := newFixture(t, Config{})
	inLane := func(r *proto.Record) { r.OrderingKey, r.OnDead = "k", "block" }
	first, second, third := w.addOne("p", classNormal, inLane), w.addOne("p", classNormal, inLane), w.addOne("p", classNormal, inLane)
	other := w.addOne("p", classNormal, func(r *proto.Record) { r.OrderingKey = "l" })
	w.end(second, failed) // out of order: the entries before it continue
	if got := w.takeAll("p"); len(got) != 2 || got[0] != first || got[1] != other {
		t.Fatalf("took %v, want %v and %v", got, first, other)
	}
	w.end(first, success)
	for range 2 {
		if got := w.takeAll("p"); len(got) != 0 {
			t.Fatalf("took %v from behind a dead one", got)
		}
		if p, _ := w.Where(third); p.Status != "behind" || p.Behind != second.ID || !p.Blocked {
			t.Errorf("its position is %+v", p)
		}
		w.end(w.addOne("p", classNormal, nil), success)
		w.reopen()
		w.change(other, func(*proto.Record) Action { return Keep })
		w.takeAll("p") // other again
		w.Release(other, time.Hour)
	}
	if err := w.Revise(t.Context(), second, func(r *proto.Record) { r.Status = StatusRedriven }); err != nil {
		t.Fatal(err)
	}
	if got := w.takeAll("p"); len(got) != 1 || got[0] != third {
		t.Errorf("then took %v, want %v", got, third)
	}
	w.reopen()
	if got := w.takeAll("p"); len(got) != 2 {
		t.Errorf("after a restart took %v, want both", got)
	}
}

func TestSkippingLaneContinues(t *testing.T) {
	w := newFixture(t, Config{})
	inLane := func(r *proto.Record) { r.OrderingKey = "k" }
	first, second := w.addOne("p", classNormal, inLane), w.addOne("q", classNormal, inLane)
	w.takeAll("p")
	w.Release(first, time.Minute) // S15: the head backs off, only its key waits
	if got := w.takeAll("q"); len(got) != 0 {
		t.Fatalf("took %v before its turn", got)
	}
	w.end(first, failed)
	if got := w.takeAll("q"); len(got) != 1 || got[0] != second {
		t.Errorf("took %v, want the next of the key", got)
	}
}

// TestFileArchive: each line contains one complete task.
func TestFileArchive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dead.jsonl")
	w := newFixture(t, Config{})
	archive := FileArchive(path)
	var list []Archived
	for range 3 {
		n := w.task("p", classNormal)
		n.Stored.Record.Reason = "line one\nline two"
		list = append(list, Archived{n.Key, n.Stored})
	}
	for i := range list {
		if err := archive(t.Context(), list[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm()&0o077 != 0 {
		t.Errorf("mode %v, %v: content keys are in it", fi.Mode(), err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := 0
	for sc := bufio.NewScanner(f); sc.Scan(); lines++ {
		var l archivedLine
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		st := new(proto.Stored)
		if err := proto.Decode(l.Stored, st); err != nil || l.Task != list[lines].Key.ID.String() || len(st.Envelope.Body) != 100 {
			t.Errorf("line %d: %+v, %v", lines, l, err)
		}
	}
	if lines != 3 {
		t.Errorf("%d lines, want 3", lines)
	}
	if err := FileArchive(filepath.Join(path, "no"))(t.Context(), list); err == nil {
		t.Error("an archive that cannot be written returned no error")
	}
}

// I14: while the wall clock is doubted nothing expires and nothing is removed by age;
// afterwards both follow it again.
func TestDoubtedClockRemovesNothing(t *testing.T) {
	var off time.Duration
	cfg := Config{DoneFor: time.Hour, DeadFor: time.Hour, Expires: func(_ Key, r *proto.Record) int64 { return r.NotAfterMs }}
	cfg.Archive = func(context.Context, []Archived) error { return nil }
	w := newFixture(t, cfg)
	w.cfg.Clock = clock.NewGuard(clock.WithOffset(w.clock.Clock(), func() time.Duration { return off })).Clock()
	w.reopen()
	soon := func(r *proto.Record) { r.NotAfterMs = w.clock.Clock().Now().Add(time.Minute).UnixMilli() }
	done, dead, live := w.addOne("a", proto.Normal, nil), w.addOne("a", proto.Normal, nil), w.addOne("a", proto.Normal, soon)
	w.end(done, proto.Success)
	w.end(dead, proto.Failed)
	off = 240 * time.Hour
	w.clock.Advance(5 * time.Minute)
	if _, ok := w.NextExpiry(); ok || len(w.TakeExpired(nil, 10, time.Second)) > 0 {
		t.Error("something expires by a doubted clock")
	}
	if done, err := w.Tidy(t.Context()); err != nil || done != (TidyResult{}) {
		t.Errorf("by a doubted clock: %+v, %v", done, err)
	}
	w.clock.Advance(clock.BelieveAfter)
	if got := w.TakeExpired(nil, 10, time.Second); len(got) != 1 || got[0].Key != live {
		t.Errorf("expired: %v", got)
	}
	if done, err := w.Tidy(t.Context()); err != nil || done.Forgotten != 1 || done.Archived != 1 {
		t.Errorf("by a believed clock: %+v, %v", done, err)
	}
}
