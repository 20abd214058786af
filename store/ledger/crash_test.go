package ledger

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// victimEnv is set for the process that is killed: the folder of its ledger.
const victimEnv = "BALEFIRE_LEDGER_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimEnv); dir != "" {
		fmt.Println("bad", victim(dir))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// I21: 300 times (short form: 10) a process that writes to a ledger, begins segments,
// makes checkpoints and releases segments is killed with SIGKILL at a random moment.
// The next one opens the ledger by itself and has every entry that was answered,
// relaxed ones too, in order and unchanged.
func TestKill(t *testing.T) {
	kills := 10
	if long {
		kills = 300
	}
	path := filepath.Join(t.TempDir(), "ledger")
	acked, wrote := 0, 0
	for n := range kills {
		life := time.Duration(rand.Int64N(int64(60 * time.Millisecond)))
		opened, last, err := runVictim(t, path, life, n%5 == 4, n == 0)
		if err != nil {
			t.Fatalf("kill %d: %v", n, err)
		}
		if opened >= 0 && opened < acked {
			t.Fatalf("kill %d: there are %d entries, %d were answered", n, opened, acked)
		}
		wrote += max(last-max(opened, acked), 0)
		acked = max(acked, opened, last)
	}
	if wrote == 0 {
		t.Error("no victim ever wrote")
	}
	t.Logf("%d kills, %d entries", kills, acked)
}

// runVictim runs a victim until it has lived that long after it opened the ledger,
// or, early, after it was started. It returns how many entries the victim found, -1
// if it did not get so far, and how many it had when it died. patient waits for the
// first answer.
func runVictim(t *testing.T, path string, life time.Duration, early, patient bool) (opened, last int, err error) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), victimEnv+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	kill := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	if early {
		kill.Reset(life)
	}
	opened = -1
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var n int
		if _, scan := fmt.Sscanf(lines.Text(), "open %d", &n); scan == nil {
			opened = n
			if !patient {
				kill.Reset(life)
			}
		} else if _, scan := fmt.Sscanf(lines.Text(), "ack %d", &n); scan == nil {
			last = n
			if patient {
				patient = false
				kill.Reset(life)
			}
		} else {
			err = errors.New(lines.Text())
		}
	}
	_ = cmd.Wait() // it was killed
	return opened, last, err
}

// victimState is what the victim keeps in its checkpoints.
type victimState struct {
	mu      sync.Mutex
	entries int
	index   uint64
}

// victim writes to the ledger in dir until it is killed, or returns what is wrong.
func victim(dir string) error {
	cfg := Config{Segment: 256 << 10, MaxBatch: 32 << 10, Ring: 1, Logger: quiet(), SyncEvery: 5 * time.Millisecond}
	l, err := Open(dir, cfg)
	if err != nil {
		return err
	}
	var s victimState
	s.index, err = l.LoadCheckpoint(func(r io.Reader) error {
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		s.entries = int(binary.BigEndian.Uint64(b))
		return nil
	})
	if err != nil {
		return err
	}
	err = l.Replay(s.index+1, func(b Batch) error {
		s.index = b.Index
		for _, got := range b.Entries() {
			if !bytes.Equal(got, data(s.entries, 3000)) {
				return fmt.Errorf("batch %d: entry %d is wrong", b.Index, s.entries)
			}
			s.entries++
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Println("open", s.entries)
	return s.write(l)
}

// write queues entries without waiting for each, so that groups form.
func (s *victimState) write(l *Ledger) error {
	next := s.entries
	for turn := 0; ; turn++ {
		var last *Pending
		for range 4 {
			es := make([]Entry, 1+turn%5)
			for i := range es {
				n := next
				next++
				es[i] = Entry{Data: data(n, 3000), Relaxed: turn%3 == 0, After: func(index uint64, _ Place, err error) {
					if err != nil {
						return
					}
					s.mu.Lock()
					defer s.mu.Unlock()
					s.entries, s.index = n+1, index
				}}
			}
			last = l.Queue(es)
		}
		if err := last.Wait(context.Background()); err != nil {
			return err
		}
		s.mu.Lock()
		entries, index := s.entries, s.index
		s.mu.Unlock()
		fmt.Println("ack", entries)
		if turn%16 != 15 {
			continue
		}
		err := l.Checkpoint(index, func(w io.Writer) error {
			_, err := w.Write(binary.BigEndian.AppendUint64(nil, uint64(entries)))
			return err
		})
		if err != nil {
			return err
		}
		l.Release(func(segment uint64, _ int64) bool { return segment%5 == 0 })
	}
}
