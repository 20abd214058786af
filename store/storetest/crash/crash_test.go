package crash

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
)

// logEngine is the simplest engine that survives a kill: memory, and a file with
// one JSON line a transaction. Its mutants break one promise each.
type logEngine struct {
	*mem.Engine
	file   *os.File
	mutant string
	late   []byte // what the mutant "late" has not written yet
}

func openLogEngine(mutant string) Opener {
	return func(path string) (store.Engine, error) {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
		if err != nil {
			return nil, err
		}
		d := &logEngine{Engine: mem.New(), file: f, mutant: mutant}
		lines := bufio.NewReader(f)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil { // a cut line was never acknowledged
				return d, f.Truncate(d.size(path) - int64(len(line)))
			}
			var ops []store.Op
			if err := json.Unmarshal(bytes.TrimLeft(line, "\x00"), &ops); err != nil {
				return nil, err
			}
			if err := d.Engine.Commit(ops); err != nil {
				return nil, err
			}
		}
	}
}

func (d *logEngine) size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

func (d *logEngine) Commit(ops []store.Op) error {
	switch d.mutant {
	case "half":
		for i := range ops {
			if err := d.write(ops[i : i+1]); err != nil {
				return err
			}
		}
	case "undelete":
		if err := d.write(slices.DeleteFunc(slices.Clone(ops), func(op store.Op) bool { return op.Delete })); err != nil {
			return err
		}
	case "late":
		line, err := json.Marshal(ops)
		if err != nil {
			return err
		}
		if _, err := d.file.Write(d.late); err != nil {
			return err
		}
		d.late = append(line, '\n')
	default:
		if err := d.write(ops); err != nil {
			return err
		}
	}
	return d.Engine.Commit(ops)
}

func (d *logEngine) write(ops []store.Op) error {
	line, err := json.Marshal(ops)
	if err == nil {
		_, err = d.file.Write(append(line, '\n'))
	}
	return err
}

var mutants = []string{"", "half", "undelete", "late", "deaf"}

func TestMain(m *testing.M) {
	engines := make(map[string]Opener)
	for _, name := range mutants {
		engines["log "+name] = openLogEngine(name)
	}
	engines["log deaf"] = func(string) (store.Engine, error) { return nil, errors.New("deaf") }
	Main(m, engines)
}

// A harness that catches nothing proves nothing: an engine that keeps its
// promises passes and each mutant is caught.
func TestHarnessCatchesMutants(t *testing.T) {
	says := map[string]string{
		"half":     "at transaction",
		"undelete": "is there again",
		"late":     "was the last acknowledged",
		"deaf":     "the store does not open",
	}
	for i, mutant := range mutants {
		for _, writers := range []int{0, 4} {
			t.Run(fmt.Sprintf("%s with %d writers", mutant, writers), func(t *testing.T) {
				cfg := Config{Engine: "log " + mutant, Rounds: 12, Life: 20 * time.Millisecond, Writers: writers, Window: 5}
				if mutant == "half" {
					cfg.Rounds = 150 // it must be hit between two writes
				}
				res, err := run(t.Context(), t.TempDir()+"/log", uint64(i), cfg.withDefaults())
				switch {
				case mutant == "" && err != nil:
					t.Fatalf("the honest engine was caught: %v", err)
				case mutant == "" && (res.Kills == 0 || res.Acked == 0):
					t.Fatalf("the victims hardly wrote: %+v", res)
				case mutant != "" && (err == nil || !strings.Contains(err.Error(), says[mutant])):
					t.Fatalf("err = %v after %+v, want one that says %q", err, res, says[mutant])
				}
			})
		}
	}
}

// The model and the transactions agree: playing them gives the model's state.
func TestWriterModel(t *testing.T) {
	l := writer{num: 3, ops: 5, value: 40, window: 4}
	got := make(map[string][]byte)
	for n := 1; n <= 60; n++ {
		for _, op := range l.tx(n) {
			if op.Delete {
				delete(got, id(op.Bucket, op.Key))
			} else {
				got[id(op.Bucket, op.Key)] = op.Val
			}
		}
		if at, err := l.check(got, n, n); at != n || err != nil {
			t.Fatalf("after transaction %d: %d, %v", n, at, err)
		}
	}
	if _, err := l.check(got, 61, 61); err == nil {
		t.Error("a lost transaction was not noticed")
	}
	if _, err := l.check(got, 58, 58); err == nil {
		t.Error("a transaction nobody wrote was not noticed")
	}
}
