package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

func benchCommand(w *app) *cobra.Command {
	return group("bench", "Measure what this machine can do",
		"Measure in this process, in a temporary folder that is removed at the end. The node\nof this machine is not touched.", benchDeliver(w), benchMail(w))
}

// benchFlags are the parameters of a measurement.
type benchFlags struct {
	engine   string
	size     int
	inflight int
	span     time.Duration
}

// A benchResult is the result of a measurement of whole tasks, from submit to the result at
// the sender.
type benchResult struct {
	Engine   string  `json:"engine"`
	Tasks    int     `json:"tasks"`
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"tasks_per_second"`
	Size     int     `json:"body_bytes"`
	InFlight int     `json:"in_flight"`
	P50      float64 `json:"p50_seconds"`
	P99      float64 `json:"p99_seconds"`
}

func benchDeliver(w *app) *cobra.Command {
	var f benchFlags
	c := &cobra.Command{
		Use: "deliver", Short: "Measure whole tasks per second: sent, run, result received",
		Long: `Send tasks from one node to another, on loopback, and wait for their results.
Each node has its own store; every step is on disk, sealed and signed. Both nodes
run in this process and share its CPUs, so two machines are faster. make bench
measures more.`,
		Example:     "  balefire-node bench deliver --duration 5s --in-flight 64",
		Annotations: map[string]string{annotationWaits: "yes"}, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.inflight < 1 || f.inflight > 4096 || f.size < 0 || f.size > 1<<20 || f.span <= 0 {
				return usage("bench deliver: --in-flight must be 1 to 4096, --size at most 1 MiB, --duration positive")
			}
			stop := w.showWaiting("measuring")
			got, err := w.benchDeliver(cmd.Context(), f)
			stop()
			if err != nil {
				return err
			}
			return w.show(view{value: got, human: func(p *printer) {
				t := newTable(col("ENGINE"), num("TASKS/S"), num("TASKS"), num("TIME"), num("BODY"), num("IN FLIGHT"), num("P50"), num("P99"))
				t.row(got.Engine, fmt.Sprintf("%.0f", got.Rate), got.Tasks, fmt.Sprintf("%.1fs", got.Seconds), formatSize(got.Size), got.InFlight, formatDuration(seconds(got.P50)), formatDuration(seconds(got.P99)))
				p.table(t)
			}})
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.engine, "engine", datadir.EngineNuts, "nutsdb or pebble")
	fs.IntVar(&f.size, "size", 1024, "body size")
	fs.IntVar(&f.inflight, "in-flight", 256, "tasks in flight at the same time")
	f.span = 5 * time.Second
	fs.Var(spanValue{&f.span}, "duration", "how long to measure")
	return c
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (w *app) benchDeliver(ctx context.Context, f benchFlags) (_ benchResult, err error) {
	p, err := newPair(ctx, f.engine, w.quietLogger(), wire.HandlerSpec{Kind: "discard", Type: wire.TypeDiscard, Allow: []string{"peer:alpha"}, Concurrency: f.inflight})
	if err != nil {
		return benchResult{}, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, p.close()) }()
	m := meter{app: w, from: p.sender.node, request: wire.Request{Target: p.receiverName, Kind: "discard", Body: make([]byte, f.size)}}
	if err := m.once(ctx); err != nil { // connect the nodes
		return benchResult{}, fmt.Errorf("bench: %w", err)
	}
	m.took = nil
	start := w.clock.Mono()
	g, gctx := errgroup.WithContext(ctx)
	for range f.inflight {
		g.Go(func() error {
			for w.clock.Mono()-start < f.span {
				if err := m.once(gctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return benchResult{}, fmt.Errorf("bench: %w", err)
	}
	took := (w.clock.Mono() - start).Seconds()
	slices.Sort(m.took)
	n := len(m.took)
	return benchResult{
		Engine: f.engine, Tasks: n, Seconds: took, Rate: float64(n) / took, Size: f.size, InFlight: f.inflight,
		P50: m.took[n/2].Seconds(), P99: m.took[n*99/100].Seconds(),
	}, nil
}

// A meter sends tasks and records the latency of each.
type meter struct {
	app     *app
	from    *node.Node
	request wire.Request

	mu   sync.Mutex
	took []time.Duration
}

// once sends one task and waits for its result.
func (m *meter) once(ctx context.Context) error {
	start := m.app.clock.Mono()
	s, err := m.from.Submit(ctx, m.request)
	if err != nil {
		return err
	}
	t, err := m.from.Views.Wait(ctx, s.ID)
	if err != nil {
		return err
	}
	if t.State != proto.Success.Name() {
		return fmt.Errorf("task %s is %s: %s", t.ID, t.State, reasonOf(t))
	}
	m.mu.Lock()
	m.took = append(m.took, m.app.clock.Mono()-start)
	m.mu.Unlock()
	return nil
}
