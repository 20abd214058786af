package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/balefire/balefire/datadir"
)

// submit measures submission alone, compared with the rate of the bare store.
func (p *plan) submit(t *table) error {
	t.title = "Submit alone"
	t.intro = fmt.Sprintf("%d callers; each submits its next task when the last one is on disk. The target is not running, so nothing is sent. For comparison, alternating with it, %d callers of the store alone; "+
		"each commits one record after another: like a submit this is one operation, with a key of %d bytes that begins with a new task id, and a value of %d bytes. This is the best that the store's group commit can do. "+
		"The keys matter: ids are not written in order, so Pebble has to merge its tables; ascending keys would avoid this for the store alone, but not for tasks.", callers, callers, keySize, recordSize)
	t.head = []string{"store", "fsync", "submits/s", "store alone/s", "ratio", "CPU a submit", "CPU a record"}
	t.bounds = "at the normal disk speed, CPU. A submit draws keys, seals, hashes and encodes in its caller; the next group is signed during the write of the last one, once it is as large. The store alone only copies, in one goroutine. Because of the work of the callers, a commit of fewer tasks takes as long as one of the store alone, and the next group is not always ready at its end. On a slow disk the next commit waits for the callers that were just answered, so that it includes nearly all of them; the disk is idle during that time."
	for _, e := range p.engines() {
		for _, c := range []struct {
			slow  time.Duration
			tasks int
		}{{0, 60_000}, {extra, 40_000}} {
			two, err := p.medians(
				func() (result, error) { return p.alone(e, c.slow, p.load(stored, c.tasks, callers), "") },
				func() (result, error) { return p.bare(e, c.slow, c.tasks/p.scale, "") },
			)
			if err != nil {
				return err
			}
			sub, bare := two[0], two[1]
			fmt.Fprintf(p.log, "       %s +%v: %.0f/s, %.0f a commit; bare %.0f/s, %.0f a commit\n",
				e, c.slow, sub.rate(), sub.perCommit(sub.Usage), bare.rate(), bare.perCommit(bare.Usage))
			ratio := sub.rate() / bare.rate()
			t.row(e, disk(c.slow), rate(sub.rate()), rate(bare.rate()), fmt.Sprintf("%.2f", ratio),
				us(sub.cpu())+" us", us(bare.cpu())+" us")
		}
	}
	return nil
}

// submitParts splits the CPU time of a submit into parts, compared with that of a record of
// the bare store.
func (p *plan) submitParts(t *table) error {
	t.title = "CPU of a submit, by part"
	t.intro = "Microseconds, from CPU profiles in separate runs, as above at the normal disk speed. \"Record\" is a record of the store alone."
	t.head = []string{"part"}
	t.bounds = "what a submit costs in addition to its record. Seal: two hashes of the content key, the setup of a cipher for it, the body, the slot. Sign: the hash of the sealed body, and a share of one signature and one hash tree. Encode: content and record, once each. Allocation: the task in memory until it is sent."
	var columns []map[string]float64
	for _, e := range p.engines() {
		name := filepath.Join(cmp.Or(p.profiles, p.dir), "submit-"+e)
		sub, err := p.alone(e, 0, p.load(stored, 60_000, callers), name)
		if err != nil {
			return err
		}
		bare, err := p.bare(e, 0, 60_000/p.scale, name+"-bare")
		if err != nil {
			return err
		}
		for _, r := range []struct {
			result
			profile string
		}{{sub, name}, {bare, name + "-bare"}} {
			c, err := r.byPart(r.profile, r.Usage)
			if err != nil {
				return err
			}
			columns = append(columns, c)
		}
		t.head = append(t.head, e+": submit", "record")
	}
	t.byPart(columns)
	return nil
}

// alone runs a load on a node whose peer is stopped. profile is the file of a CPU
// profile, empty for none.
func (p *plan) alone(engine string, slow time.Duration, l load, profile string) (r result, err error) {
	err = p.withPair(pairConfig{engine: engine, slow: slow, held: true}, func(two *pair) error {
		if err := two.b.end(); err != nil {
			return err
		}
		two.b = nil
		l.Target, l.Profile = "b", profile
		a, err := two.a.ask(request{Do: "load", Load: l}, nil)
		r.report = a.Report
		return err
	})
	return r, err
}

// bare measures a bare store.
func (p *plan) bare(engine string, slow time.Duration, records int, profile string) (result, error) {
	dir, err := p.folder()
	if err != nil {
		return result{}, err
	}
	defer os.RemoveAll(dir)
	c, err := spawn("store", slow)
	if err != nil {
		return result{}, err
	}
	a, err := c.ask(request{Do: "front", Front: storeLoadConfig{Dir: filepath.Join(dir, "store"), Engine: engine, Callers: callers, Records: records, Limit: longest, Profile: profile}}, nil)
	return result{report: a.Report}, errors.Join(err, c.end())
}

// batchSize is the number of tasks per call, or per request.
const batchSize = 100

// httpAPI measures the HTTP API, compared with the Go API.
func (p *plan) httpAPI(t *table) error {
	t.title = "Submit over the socket"
	t.intro = fmt.Sprintf("HTTP and JSON on the node's unix socket, from a separate process that uses api/client; %d callers, or %d with batches of %d. The target is not running. CPU is that of node and client together.",
		callers, callers/16, batchSize)
	t.head = []string{"API", "tasks/s", "of the Go API", "target", "", "CPU a task", "more than the Go API"}
	t.bounds = "CPU on both ends of the socket: HTTP, JSON and base64 of the body."
	var base [2]struct{ rate, cpu float64 }
	for i, c := range []struct {
		api    string
		socket bool
		batch  int
		target float64
	}{{"Go API", false, 0, 0}, {"Go API, batches", false, batchSize, 0}, {"HTTP", true, 0, 0}, {"HTTP, batches", true, batchSize, .5}} {
		l := p.load(stored, 40_000, callers)
		if l.Batch = c.batch; c.batch > 0 {
			l.Flying = callers / 16
			l.Warm -= l.Warm % c.batch
		}
		r, err := p.median(func() (result, error) { return p.through(c.socket, l) })
		if err != nil {
			return err
		}
		cpu := r.cpu()
		if !c.socket {
			base[i].rate, base[i].cpu = r.rate(), cpu
			t.row(c.api, rate(r.rate()), "", "", "", us(cpu)+" us", "")
			continue
		}
		b := base[i-2]
		aim, ok := "", ""
		if c.target > 0 {
			aim, ok = fmt.Sprintf("≥ %.2f", c.target), verdict(r.rate() >= c.target*b.rate)
		}
		t.row(c.api, rate(r.rate()), fmt.Sprintf("%.2f", r.rate()/b.rate), aim, ok, us(cpu)+" us", us(cpu-b.cpu)+" us")
	}
	return nil
}

// through runs a load on a node whose peer is stopped, in process or over its
// socket.
func (p *plan) through(socket bool, l load) (r result, err error) {
	if !socket {
		return p.alone(datadir.EngineNuts, 0, l, "")
	}
	err = p.withPair(pairConfig{engine: datadir.EngineNuts, held: true}, func(two *pair) (err error) {
		if err := two.b.end(); err != nil {
			return err
		}
		two.b = nil
		path := filepath.Join(two.dirA, "api.sock")
		if _, err := two.a.ask(request{Do: "serve", Path: path}, nil); err != nil {
			return err
		}
		cl, err := spawn("client", 0)
		if err != nil {
			return err
		}
		l.Target = "b"
		if _, err = cl.ask(request{Do: "dial", Path: path}, nil); err == nil {
			r, err = measured(cl, request{Do: "load", Load: l}, "", two.a)
		}
		return errors.Join(err, cl.end())
	})
	return r, err
}

// single measures one task at a time, compared with its lower bound.
func (p *plan) single(t *table) error {
	t.title = "One task at a time"
	t.intro = "From the call of Submit until the home has the acknowledgement on disk, on an idle mesh. For comparison, in the same folder and hour: the time to append a record to a file and sync it, and the round trip of a record of the same size over TCP."
	t.head = []string{"store", "p50", "p99", "fsync", "round trip", "3 × (3 fsyncs + 1 round trip)", "p50 within"}
	t.bounds = "three commits in series, each with one fsync, and the wake-ups of about ten goroutines between them."
	for _, e := range p.engines() {
		err := p.withPair(pairConfig{engine: e, held: true}, func(two *pair) error {
			r, err := two.run(p.load(accepted, 4_000, 1), "")
			if err != nil {
				return err
			}
			fsync, err := two.a.ask(request{Do: "sync", Path: two.dirA}, nil)
			if err != nil {
				return err
			}
			echo, err := two.b.ask(request{Do: "echo"}, nil)
			if err != nil {
				return err
			}
			trip, err := two.a.ask(request{Do: "ping", Path: echo.Text}, nil)
			if err != nil {
				return err
			}
			limit := 3 * (3*fsync.Took + trip.Took)
			t.row(e, ms(r.P50), ms(r.P99), ms(fsync.Took), ms(trip.Took), ms(limit), verdict(r.P50 <= limit))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
