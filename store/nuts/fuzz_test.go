package nuts

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/balefire/balefire/store"
)

// replay is the guard's own reading of a log that it passed: what committed
// transactions leave, without NutsDB.
func replay(t testing.TB, gen string) map[string]string {
	t.Helper()
	state, pending := make(map[string]string), []func(){}
	segs, err := listSegments(gen)
	if err != nil {
		t.Fatal(err)
	}
	for _, seg := range segs {
		_, err := scanDamaged(segmentPath(gen, seg.num), 0, func(_ int64, e entry, b []byte) error {
			key, val := fmt.Sprintf("%s/%s", store.Bucket(e.bucket), b[e.header:e.header+e.key]), string(b[e.header+e.key:])
			pending = append(pending, func() {
				switch {
				case e.bucket == voidBucket:
				case e.set:
					state[key] = val
				default:
					delete(state, key)
				}
			})
			if e.committed {
				for _, f := range pending {
					f()
				}
				pending = nil
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return state
}

// logs returns whole and damaged logs of a victim.
func (v *damagedStore) logs() [][]byte {
	all := [][]byte{
		v.log, v.log[:v.to-1], v.log[:v.from+30],
		append(bytes.Clone(v.log), "garbage that never was an entry"...),
		slices.Concat(v.log[:v.from], v.log[:40], v.log[v.from:]),
	}
	for _, at := range []int{3, 9, 40, int(v.from) + 5} {
		log := bytes.Clone(v.log)
		log[at] ^= 1
		all = append(all, log)
	}
	return all
}

// FuzzGuard gives the guard any bytes as a log. It must not panic; a log that
// it passes is repaired at once, and the repair drops no committed transaction.
func FuzzGuard(f *testing.F) {
	v := newDamagedStore(f)
	for _, log := range v.logs() {
		f.Add(log)
	}
	quiet := quiet().Logger
	f.Fuzz(func(t *testing.T, log []byte) {
		dir := t.TempDir()
		write(t, segmentPath(dir, 0), log)
		s, err := surveyLog(dir, 256<<10, func(int64) {})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.judge(); err != nil {
			if !errors.Is(err, store.ErrCorrupt) {
				t.Fatalf("err = %v, want ErrCorrupt", err)
			}
			return
		}
		if s.clean() {
			return
		}
		if err := s.repair(filepath.Join(dir, "aside"), quiet); err != nil {
			t.Fatal(err)
		}
		again, err := surveyLog(dir, 256<<10, func(int64) {})
		if err != nil || !again.clean() || again.last != s.last || again.txs != s.txs+len(s.orphans) {
			t.Fatalf("after the repair %+v, %v; before %+v", again, err, s)
		}
	})
}

// What the guard passes NutsDB reads, to the same end and with the same
// records; what it refuses is an ErrCorrupt.
func TestGuardAgreesWithNutsDB(t *testing.T) {
	v := newDamagedStore(t)
	names := read(t, filepath.Join(v.gen(), bucketFile))
	logs := v.logs()
	rng := rand.New(rand.NewPCG(7, 7))
	for range 120 {
		log := bytes.Clone(logs[rng.IntN(len(logs))])
		for range 1 + rng.IntN(3) {
			switch at := rng.IntN(len(log)); rng.IntN(4) {
			case 0:
				log[at] ^= 1 << rng.IntN(8)
			case 1:
				clear(log[at:min(len(log), at+rng.IntN(60))])
			case 2:
				log = log[:at+1]
			default:
				from := rng.IntN(len(log))
				log = slices.Concat(log[:at], log[from:])
			}
		}
		dir := t.TempDir()
		gen := genDir(dir, 1)
		if err := errors.Join(os.MkdirAll(gen, 0o700), setCurrent(dir, name{1, 256 << 10})); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(gen, bucketFile), names)
		write(t, segmentPath(gen, 0), log)
		d, err := Open(dir, quiet())
		if err != nil {
			if !errors.Is(err, store.ErrCorrupt) {
				t.Fatalf("err = %v, want ErrCorrupt; the log is %x", err, log)
			}
			continue
		}
		if got, want := dump(t, d), replay(t, gen); !maps.Equal(got, want) {
			t.Fatalf("NutsDB reads %q, the guard %q; the log is %x", got, want, log)
		}
		d.Close()
	}
}

// FuzzEntry decodes any bytes. What is accepted stays within its bounds.
func FuzzEntry(f *testing.F) {
	v := newDamagedStore(f)
	f.Add(v.log[:60])
	f.Add(v.log[60:])
	f.Add(make([]byte, 80))
	f.Add(bytes.Repeat([]byte{0xff}, 80))
	f.Fuzz(func(t *testing.T, b []byte) {
		w := &window{r: bytes.NewReader(b), size: int64(len(b))}
		e, raw, verdict, err := w.entryAt(0)
		if err != nil {
			t.Fatal(err)
		}
		if verdict != valid {
			return
		}
		if int64(len(raw)) != e.size() || e.key < 1 || e.key > maxKey || e.val > maxVal || e.header < minHeader || e.header > maxHeader {
			t.Fatalf("accepted %+v of %d bytes", e, len(raw))
		}
	})
}

// FuzzSmallFiles decodes any bytes as each of the small files of a store.
func FuzzSmallFiles(f *testing.F) {
	mark := encodeMark(position{3, 12345})
	f.Add(mark[:])
	f.Add([]byte(name{7, 64 << 20}.String()))
	v := newDamagedStore(f)
	names := read(f, filepath.Join(v.gen(), bucketFile))
	f.Add(names)
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := decodeMark(b); ok {
			if again := encodeMark(p); !bytes.Equal(again[:], b) {
				t.Errorf("mark %v from %x", p, b)
			}
		}
		if n, err := parseName(string(b)); err == nil && n.String() != string(b) {
			t.Errorf("name %+v from %q", n, b)
		}
		if err := checkBuckets(b); err == nil && len(b) < len(names) {
			t.Errorf("%d bytes name all buckets", len(b))
		}
	})
}
