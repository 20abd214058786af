package proto

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Ids from later milliseconds are greater, as bytes and as text, and contain the time of
// their creation.
func TestTaskIDOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const last = 1<<48 - 1 // milliseconds: the year 10889
		a := rapid.Int64Range(0, last-1).Draw(t, "a")
		b := rapid.Int64Range(a+1, last).Draw(t, "b")
		x, y := NewTaskID(time.UnixMilli(a)), NewTaskID(time.UnixMilli(b))
		if x.Compare(y) >= 0 || strings.Compare(x.String(), y.String()) >= 0 {
			t.Fatalf("%s is not before %s", x, y)
		}
		if !x.Time().Equal(time.UnixMilli(a)) || !y.Time().Equal(time.UnixMilli(b)) {
			t.Fatalf("times %v and %v", x.Time(), y.Time())
		}
		if x[6]>>4 != 7 || x[8]>>6 != 2 {
			t.Fatalf("%s is not a UUIDv7", x)
		}
	})
}

// No two ids are equal, even within one millisecond and from many goroutines (I6).
func TestTaskIDUnique(t *testing.T) {
	const callers, each = 8, 5000
	now := time.UnixMilli(1_700_000_000_000)
	ids := make([][]TaskID, callers)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			for range each {
				ids[i] = append(ids[i], NewTaskID(now))
			}
		})
	}
	wg.Wait()
	seen := make(map[TaskID]bool, callers*each)
	for _, list := range ids {
		for _, id := range list {
			if seen[id] || id.IsZero() {
				t.Fatalf("%s was generated twice", id)
			}
			seen[id] = true
		}
	}
}

func TestTaskIDText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var id TaskID
		drawBytes(t, id[:], "id")
		for _, s := range []string{id.String(), strings.ToUpper(id.String())} {
			if back, err := ParseTaskID(s); err != nil || back != id {
				t.Fatalf("%s became %s: %v", s, back, err)
			}
		}
		if back, err := TaskIDFrom(id[:]); err != nil || back != id {
			t.Fatalf("%x became %s: %v", id[:], back, err)
		}
	})
}

func TestMeshIDText(t *testing.T) {
	if got, want := (MeshID{0xab, 15: 1}).String(), "ab000000000000000000000000000001"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestBadTaskIDs(t *testing.T) {
	good := TaskID{1, 2, 3}.String()
	for _, s := range []string{
		"", "-", strings.Repeat("-", 36), strings.ReplaceAll(good, "-", ""), good + "0", good[1:], " " + good[1:],
		strings.Replace(good, "-", "0", 1), strings.Replace(good, "0", "g", 1), strings.Replace(good, "0", "-", 1),
		"{" + good[2:] + "}", "urn:uuid:" + good, good[:35] + "\x00", strings.Repeat("0", 1<<20),
	} {
		if id, err := ParseTaskID(s); !errors.Is(err, ErrBadID) || !id.IsZero() || len(err.Error()) > 200 {
			t.Errorf("%.50q: %s, %.300v", s, id, err)
		}
	}
	for _, n := range []int{0, 1, 15, 17, 32} {
		if _, err := TaskIDFrom(make([]byte, n)); !errors.Is(err, ErrBadID) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func BenchmarkNewTaskID(b *testing.B) {
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		NewTaskID(now)
	}
}

// Whatever number another node gives for a time, the time has a form in JSON.
func TestTimesHaveAFormInJSON(t *testing.T) {
	for ms, want := range map[int64]string{
		math.MinInt64: "1970-01-01T00:00:00Z", -1: "1970-01-01T00:00:00Z", 1: "1970-01-01T00:00:00.001Z",
		253402300799999: "9999-12-31T23:59:59.999Z", 253402300800000: "9999-12-31T23:59:59.999Z", 1 << 53: "9999-12-31T23:59:59.999Z", math.MaxInt64: "9999-12-31T23:59:59.999Z",
	} {
		if got, err := json.Marshal(TimeOrNil(ms)); err != nil || string(got) != `"`+want+`"` {
			t.Errorf("%d: %s, %v", ms, got, err)
		}
	}
}
