package proto

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// A record keeps at most MaxEvents events: the first and the newest unchanged,
// and one that counts the rest (I11: no event is silently lost).
func TestAddEventFolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := new(Record)
		n := rapid.IntRange(0, 200).Draw(t, "events")
		for i := range n {
			r.AddEvent(&Event{TimeMs: int64(i), State: Running, Detail: "as it was"})
		}
		checkFolded(t, r, n)
	})
}

func checkFolded(t *rapid.T, r *Record, n int) {
	if len(r.Events) != min(n, MaxEvents) {
		t.Fatalf("%d events of %d", len(r.Events), n)
	}
	stands, folded := 0, 0
	for i, e := range r.Events {
		stands += int(max(e.Folded, 1))
		switch {
		case e.Folded > 0:
			folded++
		case i < MaxEvents/4 && e.TimeMs != int64(i), i > MaxEvents/4 && e.TimeMs != int64(n-len(r.Events)+i), e.Detail != "as it was":
			t.Fatalf("event %d of %d is %v", i, n, e)
		}
	}
	if stands != n || folded > 1 || folded == 1 != (n > MaxEvents) {
		t.Fatalf("%d entries stand for %d events, want %d; %d are folded", len(r.Events), stands, n, folded)
	}
}

// Folded entries from another node are counted with the number of events they stand for,
// and a list that is already too long is shortened.
func TestAddEventCountsFoldedOnes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, want := new(Record), 0
		for range rapid.IntRange(0, 100).Draw(t, "before") {
			n := rapid.Uint32Range(0, 5).Draw(t, "folded")
			r.Events = append(r.Events, &Event{Folded: n})
			want += int(max(n, 1))
		}
		r.AddEvent(&Event{Detail: strings.Repeat("x", 1000)})
		want++
		got := 0
		for _, e := range r.Events {
			got += int(max(e.Folded, 1))
		}
		if got != want || len(r.Events) > MaxEvents {
			t.Fatalf("%d entries stand for %d events, want %d", len(r.Events), got, want)
		}
		if _, err := Encode(nil, r); err != nil {
			t.Fatal(err)
		}
	})
}

func TestMove(t *testing.T) {
	r := &Record{Attempts: 2}
	now := time.UnixMilli(5000)
	r.Move(Running, now, 0, "")
	if r.EndedMs != 0 || r.State != Running {
		t.Errorf("%v", r)
	}
	r.Move(Failed, now.Add(time.Second), TaskRejected, "exit 65 \xff"+strings.Repeat("é", 200))
	last := r.Events[len(r.Events)-1]
	if r.EndedMs != 6000 || last.TimeMs != 6000 || last.Attempt != 2 || last.State != Failed || last.Cause != TaskRejected {
		t.Errorf("%v", r)
	}
	if len(last.Detail) > 128 || !utf8.ValidString(last.Detail) || !strings.HasPrefix(last.Detail, "exit 65 ") {
		t.Errorf("detail %q", last.Detail)
	}
	if got, want := (&Record{SeqBoot: 3, SeqCounter: 4}).Seq(), (Seq{3, 4}); got != want {
		t.Errorf("seq %v, want %v", got, want)
	}
}

// A detail that is too long for an event is cut between two words, and says so.
func TestAddEventCutsBetweenWords(t *testing.T) {
	var r Record
	r.AddEvent(&Event{Detail: "refused " + strings.Repeat("arguments ", 13)})
	if got := r.Events[0].Detail; got != "refused "+strings.Repeat("arguments ", 11)+"…" || len(got) > maxCause {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

// Any output of a handler fits into a text field after Clip.
func TestClip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + rapid.String().Draw(t, "text")
		n := rapid.IntRange(0, 40).Draw(t, "n")
		got := Clip(s, n)
		if len(got) > n || !utf8.ValidString(got) {
			t.Fatalf("%q clipped to %d is %q", s, n, got)
		}
		if utf8.ValidString(s) && (!strings.HasPrefix(s, got) || len(s) > n && len(got) < n-3) {
			t.Fatalf("%q clipped to %d is %q", s, n, got)
		}
	})
}

// Names match the table of names, and convert in both directions.
func TestNames(t *testing.T) {
	var states []string
	for n := range int32(len(TaskState_name)) {
		s := TaskState(n)
		back, err := ParseTaskState(strings.ToLower(s.Name()))
		if n == 0 != (err != nil) || err == nil && back != s {
			t.Errorf("%s became %s: %v", s.Name(), back.Name(), err)
		}
		if s.Terminal() {
			states = append(states, s.Name())
		}
	}
	if want := []string{"SUCCESS", "FAILED", "TIMEOUT", "DEAD_LETTER", "CANCELLED", "EXPIRED"}; !slices.Equal(states, want) {
		t.Errorf("terminal states %v, want %v", states, want)
	}
	if TaskState(99).Terminal() || TaskState(-1).Terminal() {
		t.Error("an unknown state counts as an end")
	}
	for name, want := range map[string]Class{"": Normal, "critical": Critical, "HIGH": High, "low": Low} {
		if got, err := ParseClass(name); err != nil || got != want {
			t.Errorf("class %q is %v: %v", name, got, err)
		}
	}
	for _, name := range []string{"unspecified", "urgent", "CLASS_LOW"} {
		if _, err := ParseClass(name); err == nil {
			t.Errorf("class %q is known", name)
		}
	}
	for name, want := range map[string]Mode{"": AtLeastOnce, "at_least_once": AtLeastOnce, "at_most_once": AtMostOnce} {
		if got, err := ParseMode(name); err != nil || got != want || name != "" && got.Name() != name {
			t.Errorf("mode %q is %v: %v", name, got, err)
		}
	}
	if _, err := ParseMode("unspecified"); err == nil || ModeUnspecified.Name() != "at_least_once" {
		t.Errorf("mode unspecified: %v, named %s", err, ModeUnspecified.Name())
	}
	if ClassUnspecified.Name() != "normal" || CodeOK.Name() != "OK" || CodeNoHandler.Name() != "NO_HANDLER" {
		t.Error("names of zero values")
	}
}

// The terminal states of the refusals match the table in the design.
func TestRefusalsThatEndATask(t *testing.T) {
	want := map[Code]TaskState{
		CodeExpired:      Expired,
		CodeDenied:       DeadLetter,
		CodeBadSignature: DeadLetter,
		CodeTooLarge:     DeadLetter,
		CodeBadForm:      DeadLetter,
	}
	for n := range Code_name {
		got, ends := Code(n).Ends()
		if wanted, ok := want[Code(n)]; ends != ok || got != wanted {
			t.Errorf("%s ends %v in %s", Code(n).Name(), ends, got.Name())
		}
	}
	if _, ends := Code(99).Ends(); ends {
		t.Error("an unknown code ends a task")
	}
}
