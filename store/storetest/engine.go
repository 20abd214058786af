package storetest

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/store"
)

// RunEngine tests what [store.Engine] promises.
func RunEngine(t *testing.T, open Opener) {
	runAll(t, open, []suite{
		{"scan is ordered and excludes its end", scanOrder},
		{"scan pages", scanPages},
		{"buckets are apart", bucketsApart},
		{"odd keys and values", oddBytes},
		{"slices are private", privateSlices},
		{"last operation on a key wins", lastWins},
		{"deleting a missing key is not an error", deleteMissing},
		{"a commit is seen whole", commitWhole},
		{"reopen finds everything", reopen},
		{"empty buckets bear readers after a reopen", emptyReaders},
		{"compaction keeps everything", compaction},
		{"snapshot is an engine of its own", snapshot},
		{"snapshot is of one moment", snapshotMoment},
		{"stats make sense", stats},
		{"a random history matches the model", randomHistory},
	})
}

func scanOrder(t *testing.T, open Opener) {
	e := start(t, open, t.TempDir())
	b := store.Inbox
	wantPage(t, scan(t, e, b, nil, nil, 10))
	commit(t, e, put(b, "b", "2"), put(b, "a\x00", "1"), put(b, "a", "0"), put(b, "b\xff", "3"), put(b, "c", "4"))
	wantPage(t, scan(t, e, b, nil, nil, 10), "a", "a\x00", "b", "b\xff", "c")
	wantPage(t, scan(t, e, b, []byte("a\x00"), []byte("c"), 10), "a\x00", "b", "b\xff")
	wantPage(t, scan(t, e, b, []byte("b\x00"), nil, 10), "b\xff", "c")
	wantPage(t, scan(t, e, b, []byte("aa"), []byte("b"), 10))
	wantPage(t, scan(t, e, b, []byte("d"), nil, 10))
	wantPage(t, scan(t, e, b, []byte("c"), []byte("a"), 10))
	wantPage(t, scan(t, e, b, []byte("b"), []byte("b"), 10))
	wantPage(t, scan(t, e, b, nil, []byte("b"), 1), "a")
}

func scanPages(t *testing.T, open Opener) {
	e := start(t, open, t.TempDir())
	const n = 2500
	var ops []store.Op
	for i := range n {
		ops = append(ops, put(store.Dedup, fmt.Sprintf("%05d", i), fmt.Sprint(i)))
		if len(ops) == 500 {
			commit(t, e, ops...)
			ops = nil
		}
	}
	seen := 0
	for from := []byte(nil); ; {
		page := scan(t, e, store.Dedup, from, nil, 1<<20)
		if len(page) > store.MaxScan {
			t.Fatalf("a page of %d pairs, at most %d", len(page), store.MaxScan)
		}
		for _, p := range page {
			if want := fmt.Sprintf("%05d", seen); string(p.Key) != want || string(p.Val) != fmt.Sprint(seen) {
				t.Fatalf("pair %d is %q=%q", seen, p.Key, p.Val)
			}
			seen++
		}
		if len(page) == 0 {
			break
		}
		from = append(page[len(page)-1].Key, 0)
	}
	if seen != n {
		t.Errorf("pages hold %d pairs, want %d", seen, n)
	}
}

func bucketsApart(t *testing.T, open Opener) {
	e := start(t, open, t.TempDir())
	var ops []store.Op
	for _, b := range store.Buckets() {
		ops = append(ops, put(b, "key", b.String()), put(b, "\xff\xff", "last"))
	}
	commit(t, e, ops...)
	commit(t, e, del(store.Leases, "key"))
	for _, b := range store.Buckets() {
		if b == store.Leases {
			wantNone(t, e, b, "key")
			wantPage(t, scan(t, e, b, nil, nil, 10), "\xff\xff")
			continue
		}
		wantGet(t, e, b, "key", b.String())
		wantPage(t, scan(t, e, b, nil, nil, 10), "key", "\xff\xff")
	}
	if err := e.Commit([]store.Op{put(store.Bucket(200), "k", "v")}); err == nil {
		t.Error("a commit to a bucket that does not exist returned nil")
	}
}

func oddBytes(t *testing.T, open Opener) {
	dir := t.TempDir()
	e := open(t, dir)
	long := strings.Repeat("k", store.MaxKey)
	big := strings.Repeat("\x00\xff\n", 64<<10/3)
	pairs := map[string]string{"\x00": "zero", "\x00\x00": "", "\xff": "ff", long: big, "empty": "", "crc": "\r\n\x1a"}
	for key, val := range pairs {
		commit(t, e, put(store.Chunks, key, val))
	}
	for range 2 {
		for key, val := range pairs {
			wantGet(t, e, store.Chunks, key, val)
		}
		wantPage(t, scan(t, e, store.Chunks, nil, []byte("a"), 10), "\x00", "\x00\x00")
		closeEngine(t, e)
		e = open(t, dir)
	}
	closeEngine(t, e)
}

func privateSlices(t *testing.T, open Opener) {
	e := start(t, open, t.TempDir())
	op := put(store.Done, "key", "value")
	commit(t, e, op)
	copy(op.Key, "xxx")
	copy(op.Val, "xxxxx")
	for range 2 {
		val, _, _ := e.Get(store.Done, []byte("key"))
		if string(val) != "value" {
			t.Fatalf("value is %q after slices outside were written to", val)
		}
		copy(val, "yyyyy")
		page := scan(t, e, store.Done, nil, nil, 1)
		copy(page[0].Key, "zzz")
		copy(page[0].Val, "zzzzz")
	}
	wantPage(t, scan(t, e, store.Done, nil, nil, 2), "key")
}

func lastWins(t *testing.T, open Opener) {
	dir := t.TempDir()
	e := open(t, dir)
	b := store.Leases
	commit(t, e, put(b, "gone", "1"), put(b, "back", "1"))
	commit(t, e,
		put(b, "twice", "1"), put(b, "twice", "2"),
		put(b, "gone", "2"), del(b, "gone"),
		del(b, "back"), put(b, "back", "3"),
		put(b, "never", "1"), del(b, "never"))
	for range 2 {
		wantGet(t, e, b, "twice", "2")
		wantNone(t, e, b, "gone")
		wantGet(t, e, b, "back", "3")
		wantNone(t, e, b, "never")
		closeEngine(t, e)
		e = open(t, dir)
	}
	closeEngine(t, e)
}

func deleteMissing(t *testing.T, open Opener) {
	e := start(t, open, t.TempDir())
	commit(t, e, del(store.Meta, "nothing"))
	commit(t, e, put(store.Meta, "a", "1"), del(store.Meta, "nothing"), put(store.Meta, "b", "2"))
	wantPage(t, scan(t, e, store.Meta, nil, nil, 10), "a", "b")
}

// commitWhole: no reader sees half of a commit (I1: exactly one state).
func commitWhole(t *testing.T, open Opener) {
	e := start(t, open, t.TempDir())
	b := store.PendingTasks
	commit(t, e, put(b, "a", "0"), put(b, "z", "0"))
	var done atomic.Bool
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for !done.Load() {
				page, err := e.Scan(b, nil, nil, 10)
				if err != nil || len(page) != 2 || !bytes.Equal(page[0].Val, page[1].Val) {
					t.Errorf("a scan during commits gives %q, %v", page, err)
					return
				}
			}
		})
	}
	for i := range 200 {
		v := fmt.Sprint(i)
		commit(t, e, put(b, "a", v), put(b, "z", v))
	}
	done.Store(true)
	wg.Wait()
}

// reopen: what Commit returned nil for is there, and nothing that was deleted.
func reopen(t *testing.T, open Opener) {
	dir := t.TempDir()
	var want []string
	for round := range 4 {
		e := open(t, dir)
		if got := Dump(t, e); !slices.Equal(got, want) {
			t.Fatalf("round %d: found %q, want %q", round, got, want)
		}
		for i := range 50 {
			commit(t, e, put(store.Inbox, fmt.Sprintf("%d-%d", round, i), strings.Repeat("v", i)))
		}
		for i := 0; i < 50; i += 2 {
			commit(t, e, del(store.Inbox, fmt.Sprintf("%d-%d", round, i)))
		}
		want = Dump(t, e)
		closeEngine(t, e)
	}
}

// emptyReaders is for the race detector: readers of buckets that hold nothing.
func emptyReaders(t *testing.T, open Opener) {
	dir := t.TempDir()
	closeEngine(t, open(t, dir))
	e := start(t, open, dir)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for _, b := range store.Buckets() {
				if page, err := e.Scan(b, nil, nil, 10); err != nil || len(page) > 0 {
					t.Errorf("scan of empty %v: %d pairs, %v", b, len(page), err)
				}
				if _, ok, err := e.Get(b, []byte("k")); ok || err != nil {
					t.Errorf("get from empty %v: %v, %v", b, ok, err)
				}
			}
		})
	}
	commit(t, e, put(store.Meta, "x", "y"), del(store.Meta, "x"))
	wg.Wait()
}

func compaction(t *testing.T, open Opener) {
	dir := t.TempDir()
	e := open(t, dir)
	for i := range 40 {
		var ops []store.Op
		for j := range 50 {
			ops = append(ops, put(store.Done, fmt.Sprintf("%03d", j), fmt.Sprintf("%d-%s", i, strings.Repeat("x", 500))))
		}
		commit(t, e, append(ops, put(store.Audit, fmt.Sprint(i), "kept"), del(store.Audit, fmt.Sprint(i-20)))...)
	}
	want := Dump(t, e)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // a concurrent reader
		for {
			select {
			case <-stop:
				return
			default:
			}
			if page, err := e.Scan(store.Done, nil, nil, 100); err != nil || len(page) != 50 {
				t.Errorf("a scan during a compaction: %d pairs, %v", len(page), err)
				return
			}
		}
	})
	for range 3 {
		if err := e.Compact(); err != nil {
			t.Fatalf("compact: %v", err)
		}
		commit(t, e, put(store.Meta, "after", "compaction"))
		commit(t, e, del(store.Meta, "after"))
	}
	close(stop)
	wg.Wait()
	for range 2 {
		if got := Dump(t, e); !slices.Equal(got, want) {
			t.Errorf("compaction changed %d records to %d", len(want), len(got))
		}
		closeEngine(t, e)
		e = open(t, dir)
	}
	closeEngine(t, e)
}

func snapshot(t *testing.T, open Opener) {
	e := start(t, open, t.TempDir())
	commit(t, e, put(store.Peers, "p", "1"), put(store.Meta, "m", ""))
	want := Dump(t, e)
	dir := filepath.Join(t.TempDir(), "copy")
	if err := e.Snapshot(dir); err != nil {
		t.Fatalf("snapshot: %v", err)
	}
	if err := e.Snapshot(dir); err == nil {
		t.Error("a snapshot over an existing folder returned nil")
	}
	commit(t, e, put(store.Peers, "p", "2"))
	c := start(t, open, dir)
	if got := Dump(t, c); !slices.Equal(got, want) {
		t.Errorf("the snapshot holds %q, want %q", got, want)
	}
	commit(t, c, del(store.Peers, "p"))
	wantGet(t, e, store.Peers, "p", "2")
}

func snapshotMoment(t *testing.T, open Opener) {
	e := start(t, open, t.TempDir())
	b := store.Flows
	commit(t, e, put(b, "a", "0"), put(store.Meta, "a", "0"))
	var wg sync.WaitGroup
	var done atomic.Bool
	wg.Go(func() {
		for i := 0; !done.Load(); i++ {
			v := fmt.Sprint(i)
			commit(t, e, put(b, "a", v), put(b, "z"+v, v), put(store.Meta, "a", v))
		}
	})
	dir := filepath.Join(t.TempDir(), "copy")
	err := e.Snapshot(dir)
	done.Store(true)
	wg.Wait()
	if err != nil {
		t.Fatalf("snapshot during commits: %v", err)
	}
	c := start(t, open, dir)
	val, _, _ := c.Get(b, []byte("a"))
	wantGet(t, c, store.Meta, "a", string(val))
	if string(val) != "0" {
		wantGet(t, c, b, "z"+string(val), string(val))
	}
}

func stats(t *testing.T, open Opener) {
	e := start(t, open, t.TempDir())
	commit(t, e, put(store.Meta, "k", strings.Repeat("v", 4096)))
	s := e.Stats()
	if s.Engine == "" || s.DiskBytes < 0 || s.LiveBytes < 0 || s.Keys < -1 || s.CompactDue {
		t.Errorf("stats of a fresh engine with one key: %+v", s)
	}
	if s.Keys >= 0 && s.Keys != 1 {
		t.Errorf("stats count %d keys, want 1", s.Keys)
	}
}

// randomHistory compares an engine with a map over commits, reopens and
// compactions.
func randomHistory(t *testing.T, open Opener) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := t.TempDir()
		e := open(t, dir)
		defer func() { closeEngine(t, e) }()
		model := map[store.Bucket]map[string]string{store.Inbox: {}, store.Dedup: {}}
		buckets := rapid.SampledFrom([]store.Bucket{store.Inbox, store.Dedup})
		keys := rapid.StringMatching(`[ab\x00]{1,3}`)
		vals := rapid.StringN(0, 20, 200)
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0:
				closeEngine(t, e)
				e = open(t, dir)
			case 1:
				if err := e.Compact(); err != nil {
					rt.Fatalf("compact: %v", err)
				}
			default:
				var ops []store.Op
				for range rapid.IntRange(1, 10).Draw(rt, "ops") {
					b, k := buckets.Draw(rt, "bucket"), keys.Draw(rt, "key")
					if rapid.Bool().Draw(rt, "delete") {
						ops = append(ops, del(b, k))
						delete(model[b], k)
					} else {
						v := vals.Draw(rt, "val")
						ops = append(ops, put(b, k, v))
						model[b][k] = v
					}
				}
				if err := e.Commit(ops); err != nil {
					rt.Fatalf("commit: %v", err)
				}
			}
			if got, want := Dump(t, e), lines(model); !slices.Equal(got, want) {
				rt.Fatalf("the engine holds %q, the model %q", got, want)
			}
		}
	})
}

// lines writes a model as Dump writes an engine.
func lines(model map[store.Bucket]map[string]string) []string {
	var out []string
	for _, b := range store.Buckets() {
		var keys []string
		for k := range model[b] {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			out = append(out, fmt.Sprintf("%v %q=%q", b, k, model[b][k]))
		}
	}
	return out
}
