// Package crash kills a process that writes to a store, again and again, and
// checks after each kill that the store opens by itself and holds what was
// acknowledged, all of it, and nothing that was not written whole.
//
//	test ──start──▶ victim: open, compare with the model, write, "ack 17", "ack 18" …
//	  ▲                │
//	  └── what it said │◀── SIGKILL at a random moment
//
// The victim is the test binary itself, started once more. What the store must
// hold after n transactions is a function of n (see lane), so both sides know
// it without telling each other.
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
	Ops          int           // puts a transaction has at most; default 8
	Value        int           // bytes a value has at most; default 600
	Window       int           // transactions whose puts are alive; default 40
	Writers      int           // goroutines that write, through the front; default 0: one, to the engine itself
	CompactEvery int           // commits of lane 0 between two compactions; default none
	Life         time.Duration // a victim lives up to so long after it opened; default 60ms

	// Cut ends a victim and puts what a disk had kept at that moment in the place of its
	// store; by default the victim is killed, and its store has all that it wrote.
	Cut func(victim *os.Process) error `json:"-"`
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

// A Result says what a run did.
type Result struct {
	Kills int // victims that were killed while they wrote
	Early int // victims that were killed while they opened
	Acked int // transactions that were acknowledged
	Ahead int // transactions found whole that had not been acknowledged
}

// Run kills cfg.Rounds victims and fails t as soon as one finds the store in a
// state that it must not be in.
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
	t.Logf("%s: %+v", cfg.Engine, res)
	return res
}

// Try is Run for whoever wants to see it fail: cfg.Dir is given.
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
			cfg.Life *= 2 // a slow machine: nobody has lived long enough to write
		}
		r := round{job: job{Config: cfg, Store: dir, Acked: acked, Last: last}, life: time.Duration(rng.Int64N(int64(cfg.Life)))}
		r.killEarly = rng.IntN(5) == 0
		found, err := r.run(ctx)
		if err != nil {
			return res, fmt.Errorf("round %d: %w", n, err)
		}
		if found == nil {
			res.Early++
			continue
		}
		res.Kills++
		for i, n := range found.opened {
			res.Ahead += n - acked[i]
			next := max(n, found.acked[i])
			res.Acked += next - acked[i]
			acked[i], last[i] = next, max(next, found.last[i])
		}
	}
	return res, nil
}

// report is what a victim told before it died.
type report struct {
	opened []int // transactions it found, by lane
	acked  []int // last acknowledged transaction when its end began, by lane
	last   []int // last acknowledged transaction, by lane
}

// A round is the life of one victim.
type round struct {
	job
	killEarly bool          // it is killed while it opens the store
	life      time.Duration // until it is killed
}

// run returns what the victim said, nil when it was killed before it had opened
// the store. Killing it ends run: nothing of it is left.
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
	var output output
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

// output hear what a victim says.
type output struct {
	mu     sync.Mutex
	report *report
	ending bool
}

// startEnding notes that the end begins: what is acknowledged from now on may be lost.
func (e *output) startEnding() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ending = true; e.report != nil {
		e.report.acked = slices.Clone(e.report.last)
	}
}

// result is what was heard, nil when the victim had not opened the store.
func (e *output) result() *report {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.report != nil && !e.ending {
		e.report.acked = e.report.last
	}
	return e.report
}

// parse notes what one line says.
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
		return false, errors.New(rest)
	}
	return false, nil
}

// read reads what a victim says until its end.
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
