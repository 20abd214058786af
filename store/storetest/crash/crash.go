// Package crash kills a process that writes to a store, again and again, and
// checks after each kill that the store opens by itself, holds everything that was
// acknowledged, and no transaction in part.
//
//	test ──start──▶ victim: open, compare with the model, write, "ack 17", "ack 18" …
//	  ▲                │
//	  └── its output ─┤◀── SIGKILL at a random moment
//
// The victim is the test binary itself, started again. What the store must hold
// after n transactions is a function of n (see writer), so both sides know it
// without communicating.
package crash

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/store"
)

// An Opener opens the engine under test in dir.
type Opener func(dir string) (store.Engine, error)

// Config describes a run. The zero value of each field means its default.
type Config struct {
	Engine       string        // a name given to Main
	Dir          string        // of the store; default a fresh one
	Rounds       int           // kills; default 30; BALEFIRE_ROUNDS overrides it
	Ops          int           // maximum puts of a transaction; default 8
	Value        int           // maximum bytes of a value; default 600
	Window       int           // transactions whose puts are live; default 40
	Writers      int           // goroutines that write, through the front; default 0: one, to the engine itself
	CompactEvery int           // commits of writer 0 between two compactions; default none
	Life         time.Duration // longest life of a victim after it has opened; default 60ms

	// Cut ends a victim and replaces its store with what the disk had kept at that
	// moment. By default the victim is killed, and its store has everything it wrote.
	Cut func(victim *os.Process) error `json:"-"`
	// Notes is a file to which the victim writes "begin W N" before it commits transaction
	// N of writer W, and "ack W N" when it is acknowledged. Default: none.
	Notes string
	// Lost is called for each writer of which transactions were acknowledged after Cut
	// was called, by a victim that lived on, and are not there: those after found. Default:
	// that is an error.
	Lost func(writer, found, acked int) `json:"-"`
}

func (c Config) withDefaults() Config {
	c.Rounds = cmp.Or(c.Rounds, 30)
	if n, err := strconv.Atoi(os.Getenv("BALEFIRE_ROUNDS")); err == nil && n > 0 {
		c.Rounds = n
	}
	c.Ops = cmp.Or(c.Ops, 8)
	c.Value = cmp.Or(c.Value, 600)
	c.Window = cmp.Or(c.Window, 40)
	c.Life = cmp.Or(c.Life, 60*time.Millisecond)
	return c
}

// A Result counts what happened in a run.
type Result struct {
	Kills int // victims that were killed while they wrote
	Early int // victims that were killed while they opened
	Acked int // transactions that were acknowledged
	Ahead int // transactions found whole that had not been acknowledged
	Lost  int // transactions that were acknowledged while the disk was cut, and are not there
}

// Run kills cfg.Rounds victims and fails t as soon as one finds the store in an
// invalid state.
func Run(t *testing.T, cfg Config) Result {
	t.Helper()
	cfg.Dir = cmp.Or(cfg.Dir, filepath.Join(t.TempDir(), "store"))
	res, err := Try(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if res.Acked == 0 {
		t.Errorf("the victims never wrote: %+v", res)
	}
	t.Logf("counted: %s: %d cuts or kills, %d more while it opened, %d acknowledged, %d lost", cfg.Engine, res.Kills, res.Early, res.Acked, res.Lost)
	return res
}

// Try is Run for callers that expect a failure: cfg.Dir is required.
func Try(ctx context.Context, cfg Config) (Result, error) {
	seed := rand.Uint64()
	res, err := run(ctx, cfg.Dir, seed, cfg.withDefaults())
	if err != nil {
		return res, fmt.Errorf("seed %#x, %+v: %w", seed, res, err)
	}
	return res, nil
}

// maxLonger bounds how often the victims' life is doubled when none has written.
const maxLonger = 8

func run(ctx context.Context, dir string, seed uint64, cfg Config) (res Result, err error) {
	rng := rand.New(rand.NewPCG(seed, 0))
	acked, last := make([]int, max(cfg.Writers, 1)), make([]int, max(cfg.Writers, 1))
	for n := 0; n < cfg.Rounds || res.Acked == 0 && n < cfg.Rounds+maxLonger; n++ {
		if n >= cfg.Rounds {
			cfg.Life *= 2 // a slow machine: no victim has lived long enough to write
		}
		r := round{job: job{Config: cfg, Store: dir, Acked: acked, Last: last}, life: time.Duration(rng.Int64N(int64(cfg.Life)))}
		r.killEarly = rng.IntN(5) == 0
		there, err := r.run(ctx)
		if err != nil {
			return res, fmt.Errorf("round %d: %w", n, err)
		}
		if there == nil {
			res.Early++
			continue
		}
		res.Kills++
		for i, found := range there.opened {
			res.Ahead += found - acked[i]
			if found < last[i] {
				res.Lost += last[i] - found
				if cfg.Lost == nil {
					return res, fmt.Errorf("round %d: writer %d is at transaction %d, but %d was the last acknowledged, during the cut", n, i, found, last[i])
				}
				cfg.Lost(i, found, last[i])
			}
			next := max(found, there.acked[i])
			res.Acked += next - acked[i]
			acked[i], last[i] = next, max(next, there.last[i])
		}
	}
	return res, nil
}

// A report is what a victim reported before it died.
type report struct {
	opened []int // transactions it found, by writer
	acked  []int // last acknowledged transaction before the kill began, by writer
	last   []int // last acknowledged transaction, by writer
}

// A round is the life of one victim.
type round struct {
	job
	killEarly bool          // it is killed while it opens the store
	life      time.Duration // until it is killed
}

// run returns the victim's report, nil if it was killed before it had opened the
// store. On return the victim has exited.
func (r round) run(ctx context.Context) (*report, error) {
	ctx, kill := context.WithCancel(ctx)
	defer kill()
	text, err := json.Marshal(r.job)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), victimEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	output := output{cut: r.Cut != nil}
	ended := make(chan error, 1)
	limit := time.AfterFunc(time.Minute, func() {
		output.startEnding()
		var err error
		if r.Cut != nil {
			err = r.Cut(cmd.Process)
		}
		kill()
		ended <- err
	})
	if r.killEarly {
		limit.Reset(r.life / 4)
	}
	err = output.read(out, len(r.Acked), func() {
		if !r.killEarly {
			limit.Reset(r.life)
		}
	})
	killed := !limit.Stop()
	if killed {
		err = errors.Join(err, <-ended)
	}
	killed = killed || ctx.Err() != nil
	kill()
	if exit := cmd.Wait(); err == nil && !killed {
		err = fmt.Errorf("the victim ended by itself: %w", cmp.Or(exit, errors.New("exit 0")))
	}
	return output.result(), err
}

// output collects a victim's report.
type output struct {
	mu     sync.Mutex
	report *report
	cut    bool // the disk goes first: the victim may see it fail
	ending bool
}

// startEnding marks the beginning of the kill: later acknowledgements may be
// lost.
func (e *output) startEnding() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ending = true; e.report != nil {
		e.report.acked = slices.Clone(e.report.last)
	}
}

// result returns the report, nil if the victim had not opened the store.
func (e *output) result() *report {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.report != nil && !e.ending {
		e.report.acked = e.report.last
	}
	return e.report
}

// parse processes one line.
func (e *output) parse(line string, writers int) (opened bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "open":
		s := &report{acked: make([]int, writers), last: make([]int, writers)}
		if err := json.Unmarshal([]byte(rest), &s.opened); err != nil {
			return false, err
		}
		e.report = s
		return true, nil
	case "ack":
		var num, n int
		if _, err := fmt.Sscan(rest, &num, &n); err == nil && e.report != nil {
			e.report.last[num] = n
		}
	case "bad":
		if !e.cut || !e.ending {
			return false, errors.New(rest)
		}
	}
	return false, nil
}

// read reads a victim's output until it ends.
func (e *output) read(out io.Reader, writers int, opened func()) error {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		open, err := e.parse(lines.Text(), writers)
		if err != nil {
			return err
		}
		if open {
			opened()
		}
	}
	return nil
}
