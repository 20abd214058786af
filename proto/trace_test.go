package proto

import (
	"bytes"
	"strings"
	"testing"
)

// A letter without a trace context gets a new one, at its place among the entries; nothing else
// of it changes.
func TestTraceLetter(t *testing.T) {
	full, before, behind := fullLetter(t), smallLetter(), smallLetter()
	given := string(full.Traceparent)
	full.Traceparent = nil
	before.ContentType, before.Body = []byte("text/plain"), []byte("x")
	behind.Sender, behind.Body = []byte("ci"), []byte("x")
	seen := map[string]bool{}
	for _, l := range []*Letter{smallLetter(), full, before, behind} {
		const front = "in front"
		b := TraceLetter(append([]byte(front), mustLetter(t, l)...), len(front))
		got, err := ParseLetter(bytes.TrimPrefix(b, []byte(front)))
		trace := string(got.Traceparent)
		if err != nil || !ValidTraceparent(got.Traceparent) || !strings.HasSuffix(trace, "-01") || seen[trace] {
			t.Fatalf("%v, trace %q", err, trace)
		}
		seen[trace] = true
		l.Traceparent = got.Traceparent
		if want := front + string(mustLetter(t, l)); string(b) != want {
			t.Errorf("got\n%q, want\n%q", b, want)
		}
	}
	full.Traceparent = []byte(given)
	if raw := mustLetter(t, full); !bytes.Equal(TraceLetter(bytes.Clone(raw), 0), raw) {
		t.Error("the trace of its sender is lost")
	}
}

// Entries that fill a letter leave no room for a trace context: it stays a letter.
func TestFullLetterGetsNoTrace(t *testing.T) {
	l, labels := smallLetter(), map[string]string{}
	for i := range 16 {
		labels[string(rune('a'+i))] = strings.Repeat("v", 230)
		var err error
		if l.Labels, err = MakeLabels(labels); err != nil {
			t.Fatal(err)
		}
		raw := mustLetter(t, l)
		entries := len(raw) - LetterFixed
		got, err := ParseLetter(TraceLetter(raw, 0))
		if err != nil || (len(got.Traceparent) > 0) != (entries <= tracedTLVs) {
			t.Errorf("%d bytes of entries: trace %q, %v", entries, got.Traceparent, err)
		}
	}
}

// A new trace context costs a mail no garbage: it is on the path of every mail.
func TestTraceLetterAllocatesNothing(t *testing.T) {
	l := smallLetter()
	l.Body = make([]byte, 1<<10)
	raw := mustLetter(t, l)
	buf := make([]byte, 0, 2*len(raw))
	if n := testing.AllocsPerRun(100, func() { buf = TraceLetter(append(buf[:0], raw...), 0) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
