// Package storetest holds every engine, and the front over it, to the one
// contract of package store.
//
//	func TestStore(t *testing.T) { storetest.Run(t, open) }
//
// It also has [Faults], an engine that fails, stalls or panics when told to.
// On Linux, SmallDisk is a disk that becomes full.
package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/balefire/balefire/store"
)

// An Opener opens the engine kept in the folder dir, which may not exist yet,
// may have been kept by an engine that was closed since, or may have been
// written by Snapshot. It fails the test if it cannot. The caller closes the
// engine.
type Opener func(t testing.TB, dir string) store.Engine

// Run runs all tests of the contract on the engine that open opens.
func Run(t *testing.T, open Opener) {
	t.Run("engine", func(t *testing.T) { RunEngine(t, open) })
	t.Run("front", func(t *testing.T) { RunFront(t, open) })
}

// A suite is a set of tests by name.
type suite struct {
	name string
	test func(t *testing.T, open Opener)
}

func runAll(t *testing.T, open Opener, tests []suite) {
	for _, tt := range tests {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) { tt.test(t, open) })
	}
}

// start opens an engine in dir and closes it when the test ends, for tests that
// do not close it themselves.
func start(t testing.TB, open Opener, dir string) store.Engine {
	t.Helper()
	e := open(t, dir)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close engine: %v", err)
		}
	})
	return e
}

func put(b store.Bucket, key, val string) store.Op {
	return store.Op{Bucket: b, Key: []byte(key), Val: append([]byte{}, val...)}
}

func del(b store.Bucket, key string) store.Op {
	return store.Op{Bucket: b, Key: []byte(key), Delete: true}
}

func commit(t testing.TB, e store.Engine, ops ...store.Op) {
	t.Helper()
	if err := e.Commit(ops); err != nil {
		t.Fatalf("commit of %d operations: %v", len(ops), err)
	}
}

func closeEngine(t testing.TB, e store.Engine) {
	t.Helper()
	if err := e.Close(); err != nil {
		t.Fatalf("close engine: %v", err)
	}
}

func scan(t testing.TB, e store.Engine, b store.Bucket, start, end []byte, limit int) []store.Pair {
	t.Helper()
	page, err := e.Scan(b, start, end, limit)
	if err != nil {
		t.Fatalf("scan %v: %v", b, err)
	}
	return page
}

// Dump returns all that e holds as lines "bucket key=value" in order.
func Dump(t testing.TB, e store.Engine) []string {
	t.Helper()
	var lines []string
	for _, b := range store.Buckets() {
		var from []byte
		for {
			page := scan(t, e, b, from, nil, store.MaxScan)
			for _, p := range page {
				lines = append(lines, fmt.Sprintf("%v %q=%q", b, p.Key, p.Val))
			}
			if len(page) < store.MaxScan {
				break
			}
			from = append(slices.Clone(page[len(page)-1].Key), 0)
		}
	}
	return lines
}

// wantPage compares the keys of page.
func wantPage(t testing.TB, page []store.Pair, keys ...string) {
	t.Helper()
	var got []string
	for _, p := range page {
		got = append(got, string(p.Key))
	}
	if !slices.Equal(got, keys) {
		t.Errorf("scan gives %q, want %q", got, keys)
	}
}

func wantGet(t testing.TB, e store.Engine, b store.Bucket, key, want string) {
	t.Helper()
	val, ok, err := e.Get(b, []byte(key))
	if err != nil || !ok {
		t.Errorf("get %v %q: found %v, error %v", b, key, ok, err)
	} else if !bytes.Equal(val, []byte(want)) {
		t.Errorf("get %v %q = %q, want %q", b, key, val, want)
	}
}

func wantNone(t testing.TB, e store.Engine, b store.Bucket, key string) {
	t.Helper()
	val, ok, err := e.Get(b, []byte(key))
	if err != nil || ok {
		t.Errorf("get %v %q = %q, %v, %v; want nothing", b, key, val, ok, err)
	}
}
