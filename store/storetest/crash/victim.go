package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/balefire/balefire/store"
)

// victimEnv holds the job, in a process that is a victim.
const victimEnv = "BALEFIRE_CRASH_VICTIM"

// A job is the configuration of a victim.
type job struct {
	Config
	Store string // its folder
	Acked []int  // last transaction that must be there, by writer
	Last  []int  // last acknowledged transaction, by writer
}

// Main must be called by TestMain: it runs the victim if this process is one,
// otherwise the tests. It does not return.
func Main(m *testing.M, engines map[string]Opener) {
	Victim(engines)
	os.Exit(m.Run())
}

// Victim runs the victim, without returning, if this process is one.
func Victim(engines map[string]Opener) {
	text, ok := os.LookupEnv(victimEnv)
	if !ok {
		return
	}
	v := &victim{out: os.Stdout}
	err := json.Unmarshal([]byte(text), &v.job)
	if err == nil {
		err = v.run(engines)
	}
	v.printf("bad %v", err) // a victim that does not get killed has failed
	os.Exit(1)
}

// A victim is the process that gets killed.
type victim struct {
	job
	mu    sync.Mutex
	out   io.Writer
	notes io.Writer
}

// printf writes one line in one call, so that a kill does not cut it.
func (v *victim) printf(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	fmt.Fprintln(v.out, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// run opens the store, checks it and writes until the process is killed.
func (v *victim) run(engines map[string]Opener) error {
	open, ok := engines[v.Engine]
	if !ok {
		return fmt.Errorf("no engine is called %q", v.Engine)
	}
	e, err := open(v.Store)
	if err != nil {
		return fmt.Errorf("the store does not open: %w", err)
	}
	v.notes = io.Discard
	if v.Notes != "" {
		if v.notes, err = os.OpenFile(v.Notes, os.O_WRONLY|os.O_APPEND, 0); err != nil {
			return err
		}
	}
	t := target{scan: e.Scan, commit: e.Commit, compact: e.Compact}
	if v.Writers > 0 {
		s, err := store.Open(e, store.Config{})
		if err != nil {
			return fmt.Errorf("the front does not open: %w", err)
		}
		t = frontTarget(s)
	}
	writers := make([]writer, len(v.Acked))
	for i := range writers {
		writers[i] = writer{num: i, ops: v.Ops, value: v.Value, window: v.Window}
	}
	at, err := v.check(t, writers)
	if err != nil {
		return err
	}
	text, err := json.Marshal(at)
	if err != nil {
		return err
	}
	v.printf("open %s", text)
	return v.write(t, writers, at)
}

// check compares the whole store with the writers and returns the transaction
// that each is at.
func (v *victim) check(t target, writers []writer) ([]int, error) {
	found := make([]map[string][]byte, len(writers))
	for i := range found {
		found[i] = make(map[string][]byte)
	}
	for _, b := range []store.Bucket{store.Meta, store.Leases, store.Inbox} {
		for start := []byte(nil); ; {
			page, err := t.scan(b, start, nil, 1000)
			if err != nil {
				return nil, fmt.Errorf("read the store: %w", err)
			}
			for _, p := range page {
				if i := int(p.Key[0]) - 'a'; i >= 0 && i < len(writers) && !isSchema(b, p.Key) {
					found[i][id(b, p.Key)] = p.Val
				}
			}
			if len(page) < 1000 {
				break
			}
			start = append(page[len(page)-1].Key, 0)
		}
	}
	at := make([]int, len(writers))
	for i, l := range writers {
		var err error
		if at[i], err = l.check(found[i], v.Acked[i], v.Last[i]); err != nil {
			return nil, err
		}
	}
	return at, nil
}

// isSchema reports whether key is the front's own, not a writer's.
func isSchema(b store.Bucket, key []byte) bool { return b == store.Meta && len(key) > 1 }

// write continues with each writer from where it is, until something fails.
func (v *victim) write(t target, writers []writer, at []int) error {
	failed := make(chan error, len(writers))
	for i, l := range writers {
		go func() {
			for n := at[i] + 1; ; n++ {
				fmt.Fprintf(v.notes, "begin %d %d\n", i, n)
				if err := t.commit(l.tx(n)); err != nil {
					failed <- fmt.Errorf("writer %d, transaction %d: %w", i, n, err)
					return
				}
				fmt.Fprintf(v.notes, "ack %d %d\n", i, n)
				v.printf("ack %d %d", i, n)
				if i == 0 && v.CompactEvery > 0 && n%v.CompactEvery == 0 {
					if err := t.compact(); err != nil {
						failed <- fmt.Errorf("compact after transaction %d: %w", n, err)
						return
					}
				}
			}
		}()
	}
	return <-failed
}

// A target is the store, seen through its engine or through the front.
type target struct {
	scan    func(b store.Bucket, start, end []byte, limit int) ([]store.Pair, error)
	commit  func([]store.Op) error
	compact func() error
}

func frontTarget(s *store.Store) target {
	return target{
		scan: func(b store.Bucket, start, end []byte, limit int) (all []store.Pair, err error) {
			for {
				page, next, err := s.Scan(b, start, end, limit-len(all))
				all = append(all, page...)
				if err != nil || next == nil || len(all) == limit {
					return all, err
				}
				start = next
			}
		},
		commit: func(ops []store.Op) error {
			var b store.Batch
			for _, op := range ops {
				if op.Delete {
					b.Delete(op.Bucket, op.Key)
				} else {
					b.Put(op.Bucket, op.Key, op.Val)
				}
			}
			return s.Apply(context.Background(), &b)
		},
		compact: func() error { return s.Compact(context.Background()) },
	}
}
