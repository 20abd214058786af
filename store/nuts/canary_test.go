package nuts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nutsdb/nutsdb"

	"github.com/balefire/balefire/store"
)

// The canaries use NutsDB as it comes and assert that a known defect is still
// there. One that fails says that an upgrade repaired the defect: read its
// comment, and see whether the workaround may go.

// stock opens NutsDB without the guard.
func stock(t testing.TB, dir string, change ...nutsdb.Option) (*nutsdb.DB, error) {
	t.Helper()
	o := nutsdb.DefaultOptions
	o.Dir, o.SegmentSize, o.MergeInterval = dir, 256<<10, 0
	return nutsdb.Open(o, change...)
}

func stockOpen(t testing.TB, dir string, change ...nutsdb.Option) *nutsdb.DB {
	t.Helper()
	db, err := stock(t, dir, change...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// stockPut writes pairs of one bucket in one transaction.
func stockPut(t testing.TB, db *nutsdb.DB, ttl uint32, kv ...string) {
	t.Helper()
	err := db.Update(func(tx *nutsdb.Tx) error {
		if !tx.ExistBucket(nutsdb.DataStructureBTree, "b") {
			if err := tx.NewKVBucket("b"); err != nil {
				return err
			}
		}
		for i := 0; i < len(kv); i += 2 {
			if err := tx.Put("b", []byte(kv[i]), []byte(kv[i+1]), ttl); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func stockGet(t testing.TB, db *nutsdb.DB, key string) (val string, ok bool) {
	t.Helper()
	err := db.View(func(tx *nutsdb.Tx) error {
		v, err := tx.Get("b", []byte(key))
		val = string(v)
		return err
	})
	if err != nil && !errors.Is(err, nutsdb.ErrKeyNotFound) {
		t.Fatal(err)
	}
	return val, err == nil
}

// Defect 1: a torn tail makes NutsDB unopenable forever. Workaround: guard.
func TestCanaryTornTail(t *testing.T) {
	v := newDamagedStore(t)
	log := slices.Clone(v.log)
	clear(log[v.to-3:])
	v.set(t, log, nil)
	db, err := stock(t, v.gen())
	if err == nil {
		db.Close()
		t.Fatal("NutsDB opens a log with a torn tail now")
	}
	dropLock(v.gen())
	open(t, v.dir)
}

// Defect 3: the first entry of the transaction that follows an incomplete one
// is lost at the next open. Workaround: the guard cuts the incomplete one off.
func TestCanarySwallowedTransaction(t *testing.T) {
	v := newDamagedStore(t)
	first := v.entries(t)
	cut := first[len(first)-1] // leaves the transaction without its end
	v.set(t, v.log[:cut.off+cut.size()], nil)
	db := stockOpen(t, v.gen())
	err := db.Update(func(tx *nutsdb.Tx) error { return tx.Put("Meta", []byte("acked"), []byte("1"), 0) })
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
	db = stockOpen(t, v.gen())
	err = db.View(func(tx *nutsdb.Tx) error { _, err := tx.Get("Meta", []byte("acked")); return err })
	if !errors.Is(err, nutsdb.ErrKeyNotFound) {
		t.Fatalf("NutsDB keeps the transaction after an incomplete one now: %v", err)
	}
	db.Close()
	val, ok, err := open(t, v.dir).Get(store.Meta, []byte("acked"))
	if err != nil || !ok || string(val) != "1" {
		t.Errorf("the guard does not bring it back: %q, %v, %v", val, ok, err)
	}
}

// Defect 6: the timer of a TTL outlives a delete and kills what is put there
// later. Workaround: the front has a TTL of its own.
func TestCanaryTTLKillsLiveRecords(t *testing.T) {
	t.Parallel()
	db := stockOpen(t, t.TempDir())
	stockPut(t, db, 3, "k", "short") // seconds: the delete must come before
	if err := db.Update(func(tx *nutsdb.Tx) error { return tx.Delete("b", []byte("k")) }); err != nil {
		t.Fatal(err)
	}
	stockPut(t, db, 3600, "k", "long")
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); ; {
		select {
		case <-tick.C:
			if _, ok := stockGet(t, db, "k"); !ok {
				return
			}
		case <-deadline:
			t.Fatal("NutsDB keeps a record that was put after a delete now")
		}
	}
}

// Defect 9: MergeV2 keeps only the last entry of each transaction. Workaround:
// compaction by generation.
func TestCanaryMergeLosesEntries(t *testing.T) {
	db := stockOpen(t, t.TempDir(), nutsdb.WithEnableMergeV2(true))
	var kv []string
	for i := range 1000 {
		kv = append(kv, fmt.Sprintf("key-%04d", i), strings.Repeat("v", 900))
		if len(kv) == 200 {
			stockPut(t, db, 0, kv...)
			kv = kv[:0]
		}
	}
	if err := db.Merge(); err != nil {
		t.Fatal(err)
	}
	dir := reflect.ValueOf(db).Elem().FieldByName("opt").FieldByName("Dir").String()
	db.Close()
	db = stockOpen(t, dir)
	there := 0
	for i := range 1000 {
		if _, ok := stockGet(t, db, fmt.Sprintf("key-%04d", i)); ok {
			there++
		}
	}
	if there == 1000 {
		t.Fatal("MergeV2 keeps every record now")
	}
}

// Defect 14: a nil value reads as another record's. Workaround: no value that
// reaches NutsDB is nil.
func TestCanaryNilValue(t *testing.T) {
	db := stockOpen(t, t.TempDir())
	stockPut(t, db, 0, "first", "1")
	err := db.Update(func(tx *nutsdb.Tx) error { return tx.Put("b", []byte("nil"), nil, 0) })
	if err != nil {
		t.Fatal(err)
	}
	var got string
	err = db.View(func(tx *nutsdb.Tx) error { v, err := tx.Get("b", []byte("nil")); got = string(v); return err })
	if err == nil && got == "" {
		t.Fatal("NutsDB keeps nil values now")
	}
	d := open(t, t.TempDir())
	commit(t, d, put(store.Meta, "first", "1"), store.Op{Bucket: store.Meta, Key: []byte("nil")})
	if val, ok, err := d.Get(store.Meta, []byte("nil")); err != nil || !ok || len(val) != 0 || val == nil {
		t.Errorf("the engine reads a nil value as %q, %v, %v", val, ok, err)
	}
}

// Defect 16: an iterator on an empty bucket writes to a map of the database,
// under its read lock. Workaround: warm.
func TestCanaryIteratorWrites(t *testing.T) {
	dir := t.TempDir()
	d := open(t, dir)
	gen := d.gen.dir
	d.Close()
	db := stockOpen(t, gen)
	indexed := func() int {
		return reflect.ValueOf(db.Index).Elem().FieldByName("bTree").FieldByName("idx").Len()
	}
	before := indexed()
	err := db.View(func(tx *nutsdb.Tx) error {
		nutsdb.NewIterator(tx, "Meta", nutsdb.IteratorOptions{}).Release()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if indexed() == before {
		t.Fatal("an iterator on an empty bucket writes nothing now")
	}
	db.Close()
	d = open(t, dir)
	if n := reflect.ValueOf(d.gen.raw.db.Index).Elem().FieldByName("bTree").FieldByName("idx").Len(); n != len(store.Buckets()) {
		t.Errorf("%d of %d buckets are warm after open", n, len(store.Buckets()))
	}
}

// Defect 18: without bucket.Meta NutsDB opens an empty store over a full log.
// Workaround: checkBucketFile.
func TestCanaryLostBucketFile(t *testing.T) {
	v := newDamagedStore(t)
	if err := os.Remove(filepath.Join(v.gen(), bucketFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := stock(t, v.gen()); err != nil {
		t.Fatalf("NutsDB refuses a store without bucket.Meta now: %v", err)
	}
}
