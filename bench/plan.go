package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/balefire/balefire/datadir"
)

// Sizes that all measurements share.
const (
	bodySize = 1024
	flying   = 256
	callers  = 128
	extra    = 2 * time.Millisecond // added to each fsync for a slower disk
	longest  = 12 * time.Second     // of one measurement
)

// A plan runs the measurements.
type plan struct {
	dir      string
	profiles string        // folder for profiles; empty: they are discarded
	scale    int           // all numbers of tasks and mails are divided by it
	offered  int           // mails a second where the rate is fixed
	span     time.Duration // how long
	wait     time.Duration // limit of the wait for an idle machine
	log      io.Writer
	begin    time.Time

	folders int
	page    page
	figures []figure                 // for comparison with NATS
	rivals  map[time.Duration]result // NATS, by what is added to each fsync
}

// A measurement fills one table.
type measurement struct {
	name string
	do   func(*plan, *table) error
}

var measurements = []measurement{
	{"accept", (*plan).accept},
	{"ended", (*plan).ended},
	{"rival", (*plan).nats}, // soon after what is compared with it, and so is the next
	{"queue", (*plan).queue},
	{"takeover", (*plan).takeover},
	{"handoff", (*plan).handoff},
	{"parts", (*plan).parts},
	{"submit", (*plan).submit},
	{"submitparts", (*plan).submitParts},
	{"window", (*plan).httpAPI},
	{"single", (*plan).single},
	{"memory", (*plan).memory},
	{"binary", (*plan).binary},
	{"mail", (*plan).mailRate},
	{"mailoffered", (*plan).mailOffered},
	{"mailone", (*plan).mailOneByOne},
	{"mailhttp", (*plan).mailHTTPRates},
	{"mailnodes", (*plan).mailTwoNodes},
	{"mailtopic", (*plan).mailTopic},
	{"mailwaiting", (*plan).mailWaiting},
}

// run runs all measurements, or the named ones, comma-separated.
func (p *plan) run(only string) (*page, error) {
	if _, err := straced(); err != nil {
		return nil, err
	}
	machine := describe(p.dir)
	machine.others = waitQuiet(p.log, p.wait)
	wanted := strings.Split(only, ",")
	for _, m := range measurements {
		if only != "" && !slices.Contains(wanted, m.name) {
			continue
		}
		fmt.Fprintf(p.log, "%5.0fs %s\n", time.Since(p.begin).Seconds(), m.name)
		t := new(table)
		if err := m.do(p, t); err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		p.page.tables = append(p.page.tables, t)
	}
	if len(p.page.tables) == 0 {
		return nil, fmt.Errorf("unknown measurement %q", only)
	}
	p.page.head = p.preface(machine)
	return &p.page, nil
}

// engines returns the storage engines to measure.
func (p *plan) engines() []string {
	if p.scale > 1 {
		return []string{datadir.EngineNuts}
	}
	return []string{datadir.EngineNuts, datadir.EnginePebble}
}

// load returns a load of n tasks, with a quarter more as warm-up.
func (p *plan) load(until string, n, inFlight int) load {
	n /= p.scale
	return load{Until: until, Warm: n / 4, Tasks: n, Limit: longest, Flying: inFlight, Size: bodySize}
}

// folder creates a new folder.
func (p *plan) folder() (string, error) {
	p.folders++
	dir := filepath.Join(p.dir, strconv.Itoa(p.folders))
	return dir, os.MkdirAll(dir, 0o700)
}

// withPair runs f with two nodes and stops them.
func (p *plan) withPair(s pairConfig, f func(*pair) error) error {
	dir, err := p.folder()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	two, err := newPair(dir, s)
	if err != nil {
		return err
	}
	return errors.Join(f(two), two.end())
}

// once runs one load on a new pair.
func (p *plan) once(s pairConfig, l load, profile string) (r result, err error) {
	err = p.withPair(s, func(two *pair) error {
		r, err = two.run(l, profile)
		return err
	})
	if err == nil && r.Bad > 0 {
		err = fmt.Errorf("%d of %d tasks ended in an unexpected state", r.Bad, r.Tasks)
	}
	if err == nil {
		fmt.Fprintf(p.log, "       %s +%v in flight %d: %.0f/s; CPU %.0f us and %.1f + %.1f KiB allocated a task; %.1f and %.1f tasks a commit; others used %.1f cores\n", s.engine, s.slow, l.Flying,
			r.rate(), r.cpu(), r.allocated(r.Usage), r.allocated(r.Other), r.perCommit(r.Usage), r.perCommit(r.Other), r.others())
	}
	return r, err
}

// times is how often a figure with a target is measured; the median is used.
const times = 3

// median runs f several times and returns the run with the median rate.
func (p *plan) median(f func() (result, error)) (result, error) {
	all, err := p.medians(f)
	if err != nil {
		return result{}, err
	}
	return all[0], nil
}

// medians is like median for rates that are compared: they are run alternately, so that
// slow periods of the machine affect all of them.
func (p *plan) medians(fs ...func() (result, error)) ([]result, error) {
	n := times
	if p.scale > 1 {
		n = 1
	}
	all := make([][]result, len(fs))
	for range n {
		for i, f := range fs {
			r, err := f()
			if err != nil {
				return nil, err
			}
			all[i] = append(all[i], r)
		}
	}
	out := make([]result, len(fs))
	for i, rs := range all {
		slices.SortFunc(rs, func(a, b result) int { return cmp.Compare(a.rate(), b.rate()) })
		out[i] = rs[n/2]
	}
	return out, nil
}

// disk names a delay of the disk.
func disk(slow time.Duration) string {
	if slow == 0 {
		return "as it is"
	}
	return "+" + slow.String()
}

func rate(f float64) string { return strconv.FormatFloat(f, 'f', 0, 64) }

func us(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }

func ms(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds()*1e3, 'f', cmp.Compare(0, d-10*time.Millisecond)+1, 64) + " ms"
}

// mib has a decimal, so that what is just above a limit is seen to be.
func mib(n int64) string {
	return strings.TrimSuffix(strconv.FormatFloat(float64(n)/(1<<20), 'f', 1, 64), ".0") + " MiB"
}
