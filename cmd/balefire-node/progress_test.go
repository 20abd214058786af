package main

import (
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// TestABarSaysHowFarABodyIs checks the progress line of a body in transfer: the amount that
// has arrived, the rate and the remaining time, in a line that fits the terminal.
func TestABarSaysHowFarABodyIs(t *testing.T) {
	for _, tt := range []struct {
		name    string
		x       wire.Transfer
		columns int
		want    string
	}{
		{"half of it", wire.Transfer{What: "body", Direction: "out", Peer: "laptop", Bytes: 100 << 20, Size: 200 << 20, Rate: 10 << 20, Left: 10}, 100,
			"body to laptop  50 % [============            ] 100 MiB/200 MiB  10.0 MiB/s  10s left"},
		{"no rate yet", wire.Transfer{What: "result", Direction: "in", Peer: "laptop", Size: 1 << 20}, 100,
			"result from laptop   0 % [                        ] 0 B/1.0 MiB"},
		{"a narrow terminal", wire.Transfer{What: "body", Direction: "out", Peer: "laptop", Bytes: 1 << 20, Size: 1 << 20}, 50, "body to laptop 100 %  1.0 MiB/1.0 MiB"},
		{"a name with terminal control sequences", wire.Transfer{What: "body", Direction: "out", Peer: "a\x1b[2J", Bytes: 2, Size: 0}, 40, "body to a\uFFFD[2J   0 %  2 B/0 B"},
	} {
		if got := progressBar(tt.x, tt.columns); got != tt.want {
			t.Errorf("%s:\n%q, want\n%q", tt.name, got, tt.want)
		}
	}
}

// While the body of a task moves that its sender waits for, a terminal shows a bar that fits it,
// and a file gets a line now and then.
func TestFollowingShowsWhatIsMoving(t *testing.T) {
	task := wire.Task{ID: testID, Kind: "sum", State: "PENDING", Transfers: []wire.Transfer{{What: "body", Direction: "out", Peer: "laptop", Bytes: 1 << 20, Size: 2 << 20}}}
	for _, tt := range []struct {
		tty     bool
		columns string
		want    string
	}{
		{true, "70", "\r\x1b[Kbody to laptop  50 % [============            ] 1.0 MiB/2.0 MiB"},
		{true, "40", "\r\x1b[Kbody to laptop  50 %  1.0 MiB/2.0 MiB"},
		{false, "", "… its body is being transferred to laptop: 1.0 MiB of 2.0 MiB (50 %)\n"},
	} {
		w, _, errs := newTestApp()
		w.errTTY, w.environ = tt.tty, []string{"COLUMNS=" + tt.columns}
		f := &follower{w: w}
		for range 2 {
			f.progress(t.Context(), task)
		}
		want := tt.want
		if tt.tty {
			want += tt.want
		}
		if errs.String() != want {
			t.Errorf("%q, want %q", errs, want)
		}
	}
}

// A task whose body is being transferred shows, in its view and in its JSON, which one,
// where to, and how many bytes of it are done.
func TestTaskShowsWhatIsMoving(t *testing.T) {
	task := wire.Task{ID: testID, Kind: "sum", State: "PENDING", Transfers: []wire.Transfer{
		{What: "body", Direction: "out", Peer: "laptop", Bytes: 50 << 20, Size: 200 << 20, Rate: 10 << 20, Left: 15},
		{What: "result", Direction: "in", Peer: "hub", Bytes: 512, Size: 3 << 10},
	}}
	for format, want := range map[string]string{
		formatTable: "moving  its body is being transferred to laptop: 50.0 MiB of 200.0 MiB (25 %), 10.0 MiB/s, 15s left\n" +
			"moving  its result is being transferred from hub: 0.5 KiB of 3.0 KiB (16 %)\n",
		formatJSONL: `"transfers":[{"what":"body","direction":"out","peer":"laptop","bytes":52428800,"size":209715200,"bytes_per_second":10485760,"seconds_left":15},` +
			`{"what":"result","direction":"in","peer":"hub","bytes":512,"size":3072,"bytes_per_second":0}]`,
	} {
		w, out, _ := newTestApp()
		w.flags.output = format
		if err := w.show(taskView(w, task)); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v\n%s\nwant\n%s", format, err, out, want)
		}
	}
}

// A task that is not due yet shows when it will be.
func TestTaskShowsWhenItIsDue(t *testing.T) {
	w, out, _ := newTestApp()
	due := w.clock.Now().Add(time.Hour)
	task := wire.Task{ID: testID, Kind: "sum", State: "PENDING", Times: wire.Times{Created: testStart, Due: &due}}
	if err := w.show(taskView(w, task)); err != nil || !strings.Contains(out.String(), "not before "+formatTime(due)) {
		t.Errorf("%v\n%s", err, out)
	}
}

// The events of a task are told without package names.
func TestEventsOfATaskArePlain(t *testing.T) {
	w, out, _ := newTestApp()
	task := wire.Task{ID: testID, Kind: "sum", State: "DEAD_LETTER", Events: []wire.Event{{State: "DEAD_LETTER", Cause: "refused", Code: "DENIED", Detail: "command: arguments refused"}}}
	if err := w.show(taskView(w, task)); err != nil || !strings.Contains(out.String(), "DENIED: arguments refused") {
		t.Errorf("%v\n%s", err, out)
	}
}
