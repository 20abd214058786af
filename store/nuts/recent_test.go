package nuts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/store"
)

// What was committed last is read without the lock that a commit holds while it
// syncs; what is older waits for it.
func TestReadersOfTheLastCommitDoNotWait(t *testing.T) {
	d, err := Open(t.TempDir(), Config{})
	if err != nil {
		t.Fatal(err)
	}
	key, gone := []byte("k"), []byte("gone")
	for _, ops := range [][]store.Op{
		{{Bucket: store.Inbox, Key: key, Val: []byte("old")}, {Bucket: store.Inbox, Key: gone, Val: []byte("x")}},
		{{Bucket: store.Inbox, Key: key, Val: []byte("new")}, {Bucket: store.Inbox, Key: gone, Delete: true}},
	} {
		if err := d.Commit(ops); err != nil {
			t.Fatal(err)
		}
	}
	d.mu.Lock() // as a commit does
	val, ok, err := d.Get(store.Inbox, key)
	if string(val) != "new" || !ok || err != nil {
		t.Errorf("Get = %q, %v, %v", val, ok, err)
	}
	if val, ok, err := d.Get(store.Inbox, gone); ok || err != nil {
		t.Errorf("Get of a deleted key = %q, %v, %v", val, ok, err)
	}
	d.mu.Unlock()

	val[0] = 'N' // it is the caller's
	if again, _, _ := d.Get(store.Inbox, key); string(again) != "new" {
		t.Errorf("a reader changed what is remembered: %q", again)
	}
	d.recent.forget()
	if again, ok, err := d.Get(store.Inbox, key); string(again) != "new" || !ok || err != nil {
		t.Errorf("NutsDB has %q, %v, %v", again, ok, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Get(store.Inbox, key); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Whatever is remembered is the newest, and it stays within its bound (I15).
func TestRecentIsBoundedAndNeverOld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, model := newRecent(), map[string][]byte{}
		for n := range rapid.IntRange(1, 40).Draw(t, "commits") {
			var ops []store.Op
			for i := range rapid.IntRange(1, 8).Draw(t, "ops") {
				key := string('a' + rune(rapid.IntRange(0, 9).Draw(t, "key")))
				op := store.Op{Bucket: store.Inbox, Key: []byte(key), Delete: rapid.Bool().Draw(t, "delete")}
				if !op.Delete {
					op.Val = bytes.Repeat(binary.BigEndian.AppendUint16(nil, uint16(n<<3|i)), rapid.SampledFrom([]int{1, 1 << 16, 1 << 18}).Draw(t, "size"))
				}
				model[key] = op.Val
				ops = append(ops, op)
			}
			r.put(ops)
			if r.bytes > recentBytes || len(r.values) > len(r.order)-r.head {
				t.Fatalf("%d bytes, %d values, %d in order", r.bytes, len(r.values), len(r.order)-r.head)
			}
			for key, want := range model {
				val, ok, known := r.get(store.Inbox, []byte(key))
				if known && (ok != (want != nil) || !bytes.Equal(val, want)) {
					t.Fatalf("%s: %d bytes, %v instead of %d bytes", key, len(val), ok, len(want))
				}
			}
		}
	})
}
