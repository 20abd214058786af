package inbox

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// TestRecordsComeBack checks that each record of the inbox is read as it was written.
func TestRecordsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p proto.PeerID
		copy(p[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "peer"))
		seq := proto.Seq{Boot: rapid.Uint64().Draw(t, "boot"), Counter: rapid.Uint64().Draw(t, "counter")}
		from, mark, err := parseWatermark(store.Pair{Key: watermarkKey(p), Val: appendSeq(nil, seq)})
		if err != nil || from != p || mark != seq {
			t.Fatalf("mark: %v %v %v", from, mark, err)
		}
		s := success{record: &proto.Record{ExitCode: 3, Result: rapid.SliceOf(rapid.Byte()).Draw(t, "result")}}
		copy(s.id[:], p[:])
		b, err := s.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseSuccess(b)
		if err != nil || got.id != s.id || got.record.ExitCode != 3 || !bytes.Equal(got.record.Result, s.record.Result) {
			t.Fatalf("success: %v %v", got, err)
		}
	})
}

// TestKeysDoNotCollide checks that keys of different prefixes differ, and that the scope of
// an idempotency key is its origin.
func TestKeysDoNotCollide(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range [][]byte{watermarkKey(home), watermarkKey(other), successKey(home, "k"), successKey(home, "l"), successKey(other, "k")} {
		if seen[string(k)] || len(k) > store.MaxKey {
			t.Errorf("key %x", k)
		}
		seen[string(k)] = true
	}
}

func FuzzMark(f *testing.F) {
	f.Add(watermarkKey(home), appendSeq(nil, proto.Seq{Boot: 1, Counter: 2}))
	f.Add([]byte("m"), []byte{})
	f.Fuzz(func(t *testing.T, key, val []byte) {
		from, mark, err := parseWatermark(store.Pair{Key: key, Val: val})
		if err != nil {
			if !errors.Is(err, store.ErrCorrupt) {
				t.Errorf("error %v", err)
			}
			return
		}
		if !bytes.Equal(watermarkKey(from)[1:], key[1:]) || !bytes.Equal(appendSeq(nil, mark), val) {
			t.Error("read something else than what was written")
		}
	})
}

func FuzzSuccess(f *testing.F) {
	b, _ := success{record: &proto.Record{Result: []byte("r"), ResultType: "text/plain"}}.encode()
	f.Add(b)
	f.Add(b[:20])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseSuccess(b); err == nil {
			if _, err := s.encode(); err != nil {
				t.Errorf("what was read cannot be written: %v", err)
			}
		}
	})
}

// TestText checks that text from a handler always fits into a record.
func TestText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, n := string(rapid.SliceOf(rapid.Byte()).Draw(t, "s")), rapid.IntRange(0, 40).Draw(t, "n")
		for _, got := range []string{text(s, n), tail(s, n)} {
			if len(got) > n || !utf8.ValidString(got) {
				t.Fatalf("%q of %q, limit %d", got, s, n)
			}
		}
		if utf8.ValidString(s) && len(s) <= n && (text(s, n) != s || tail(s, n) != s) {
			t.Fatal("changed what fits")
		}
	})
}

// TestLongHistoryFitsARecord checks that a task with many starts still fits, keeping the
// first 4 and the newest 12 (I11).
func TestLongHistoryFitsARecord(t *testing.T) {
	r := &proto.Record{}
	limit := limits{maxAttempts: 1 << 20, maxAbandons: 10}
	for range 100 {
		startRecord(r, proto.BootID{}, at(1), 0)
		res := &handler.Result{Outcome: handler.Retry, Code: 75, Reason: strings.Repeat("long ", 1000), Stderr: strings.Repeat("\xff", 9000)}
		limit.after(r, res, notStopped, 0).apply(r, res, at(2))
	}
	if len(r.History) != proto.MaxAttempts || r.History[0].Number != 1 || r.History[3].Number != 4 || r.History[4].Number != 89 || r.History[proto.MaxAttempts-1].Number != 100 || r.Attempts != 100 {
		t.Errorf("history %v", r.History)
	}
	b, err := proto.Encode(nil, r)
	if err != nil || len(b) > 32<<10 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func at(sec int64) time.Time { return time.Unix(sec, 0) }
