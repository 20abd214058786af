//go:build unix

package crash

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// A disk that is cut off from a process that lives on loses what that acknowledges from then
// on. It is counted and noted by the victim, and an error unless somebody takes the report.
func TestLostDuringTheCut(t *testing.T) {
	dir := t.TempDir()
	log, notes := filepath.Join(dir, "log"), filepath.Join(dir, "notes")
	for _, name := range []string{log, notes} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lost := 0
	cfg := Config{
		Engine: "log ", Rounds: 8, Life: 20 * time.Millisecond, Notes: notes,
		Lost: func(_, found, acked int) { lost += acked - found },
		Cut: func(victim *os.Process) error {
			kept, err := os.ReadFile(log)
			if err != nil {
				return err
			}
			old, err := os.Open(log)
			if err != nil {
				return err
			}
			defer old.Close()
			if err := os.WriteFile(log+".kept", kept, 0o600); err != nil {
				return err
			}
			if err := os.Rename(log+".kept", log); err != nil {
				return err
			}
			more := make([]byte, 64<<10)
			for range 1 << 20 { // the victim may have ended
				n, _ := old.ReadAt(more, int64(len(kept)))
				if bytes.Count(more[:n], []byte("\n")) >= 3 {
					break // the last but one line of it is acknowledged
				}
				if now, err := os.Stat(log); err != nil || now.Size() > int64(len(kept)) {
					break // the victim opened the log after the cut
				}
				runtime.Gosched()
			}
			return victim.Kill()
		},
	}
	res, err := run(t.Context(), log, 1, cfg.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	if res.Lost == 0 || res.Lost != lost {
		t.Errorf("%+v, %d were reported lost", res, lost)
	}
	if err := os.Truncate(log, 0); err != nil {
		t.Fatal(err)
	}
	again := cfg
	again.Lost, again.Notes = nil, ""
	if res, err := run(t.Context(), log, 2, again.withDefaults()); err == nil || !strings.Contains(err.Error(), "during the cut") || res.Lost == 0 {
		t.Errorf("nobody takes the report: %+v, %v", res, err)
	}
	text, err := os.ReadFile(notes)
	if err != nil {
		t.Fatal(err)
	}
	begun, acked := map[string]bool{}, 0
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "begin "); ok {
			begun[n] = true
		} else if n, ok := strings.CutPrefix(line, "ack "); !ok || !begun[n] {
			t.Fatalf("the notes have %q before its begin", line)
		} else {
			acked++
		}
	}
	if acked == 0 {
		t.Error("no acknowledgement was noted")
	}
}
