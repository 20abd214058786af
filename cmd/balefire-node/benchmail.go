package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
)

// benchMailFlags are the parameters of a measurement of the ledger.
type benchMailFlags struct {
	dir      string
	size     int
	inflight int
	batch    int
	relaxed  bool
	span     time.Duration
}

// A benchMailResult is the result of a measurement of the ledger alone.
type benchMailResult struct {
	Letters  int     `json:"letters"`
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"letters_per_second"`
	Bytes    float64 `json:"bytes_per_second"`
	Size     int     `json:"body_bytes"`
	InFlight int     `json:"in_flight"`
	Batch    int     `json:"batch"`
	Commits  int     `json:"commits"`
	Syncs    int     `json:"syncs"`
	P50      float64 `json:"p50_seconds"` // of a commit
	P99      float64 `json:"p99_seconds"`
}

func benchMail(w *app) *cobra.Command {
	var f benchMailFlags
	c := &cobra.Command{
		Use: "mail", Short: "Measure the ledger of mail alone: letters on disk per second",
		Long: `Append letters to a ledger in a temporary folder, each with a sync unless
--relaxed is given, and wait for their answers. All letters that queued during one
sync share the next one. P50 and P99 are those of a commit: to write and to sync.
Nothing is delivered; make bench measures whole mail.`,
		Example:     "  balefire-node bench mail --duration 5s --dir /var/lib",
		Annotations: map[string]string{annotationWaits: "yes"}, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.inflight < 1 || f.inflight > 4096 || f.size < 0 || f.size > proto.MaxInlineBody || f.batch < 1 || f.batch > mail.MaxSend || f.batch > 1 && f.batch*f.size > mail.MaxSendBytes || f.span <= 0 {
				return usage("bench mail: --in-flight must be 1 to 4096, --batch 1 to 512 with at most 1 MiB of bodies, --size at most 256 KiB, --duration positive")
			}
			stop := w.showWaiting("measuring")
			got, err := w.benchMail(cmd.Context(), f)
			stop()
			if err != nil {
				return fmt.Errorf("bench: %w", err)
			}
			return w.show(view{value: got, human: func(p *printer) {
				t := newTable(num("LETTERS/S"), num("MB/S"), num("LETTERS"), num("TIME"), num("BODY"), num("IN FLIGHT"), num("BATCH"), num("COMMITS"), num("SYNCS"), num("P50"), num("P99"))
				t.row(fmt.Sprintf("%.0f", got.Rate), fmt.Sprintf("%.1f", got.Bytes/1e6), got.Letters, fmt.Sprintf("%.1fs", got.Seconds), formatSize(got.Size), got.InFlight, got.Batch, got.Commits, got.Syncs, formatDuration(seconds(got.P50)), formatDuration(seconds(got.P99)))
				p.table(t)
			}})
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.dir, "dir", "", "where to make the temporary folder: on the disk to measure (default that of the system)")
	fs.IntVar(&f.size, "size", 1024, "body size")
	fs.IntVar(&f.inflight, "in-flight", 64, "callers that wait for an answer at the same time")
	fs.IntVar(&f.batch, "batch", 1, "letters in one call")
	fs.BoolVar(&f.relaxed, "relaxed", false, "answer before the sync, which follows within 100ms")
	f.span = 5 * time.Second
	fs.Var(spanValue{&f.span}, "duration", "how long to measure")
	return c
}

func (w *app) benchMail(ctx context.Context, f benchMailFlags) (r benchMailResult, err error) {
	letter, err := proto.AppendLetter(nil, &proto.Letter{Class: proto.Normal, ID: proto.NewMailID(w.clock.Now()), Body: make([]byte, f.size)})
	if err != nil {
		return r, err
	}
	dir, err := os.MkdirTemp(f.dir, "balefire-bench-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var took []time.Duration // of the committer until the ledger is closed
	l, err := ledger.Open(filepath.Join(dir, "ledger"), ledger.Config{
		Space: store.DiskSpace(dir), Logger: w.quietLogger(), Committed: func(d time.Duration) { took = append(took, d) },
	})
	if err != nil {
		return r, err
	}
	var n atomic.Int64
	start := w.clock.Mono()
	g, gctx := errgroup.WithContext(ctx)
	for range f.inflight {
		g.Go(func() error {
			es := make([]ledger.Entry, f.batch)
			for w.clock.Mono()-start < f.span {
				for i := range es {
					es[i] = ledger.Entry{Data: letter, NewWork: true, Relaxed: f.relaxed}
				}
				if err := l.Queue(es).Wait(gctx); err != nil {
					return err
				}
				n.Add(int64(f.batch))
			}
			return nil
		})
	}
	writing, done := context.WithCancel(gctx)
	var releasing errgroup.Group
	releasing.Go(func() error { return releaseLetters(writing, l) })
	err = g.Wait()
	r.Seconds = (w.clock.Mono() - start).Seconds()
	done()
	r.Syncs = int(l.Stats().Syncs)
	if err = errors.Join(err, releasing.Wait(), l.Close()); err != nil {
		return r, err
	}
	slices.Sort(took)
	r.Letters, r.Size, r.InFlight, r.Batch, r.Commits = int(n.Load()), f.size, f.inflight, f.batch, len(took)
	r.Rate = float64(r.Letters) / r.Seconds
	r.Bytes = r.Rate * float64(len(letter))
	r.P50, r.P99 = took[len(took)/2].Seconds(), took[len(took)*99/100].Seconds()
	return r, nil
}

// releaseLetters lets the ledger use the files of what was written again until ctx is done, as
// if all of it had been read.
func releaseLetters(ctx context.Context, l *ledger.Ledger) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if s := l.Stats(); s.Segments > 1 && s.Last > s.Checkpoint {
			if err := l.Checkpoint(s.Last, func(io.Writer) error { return nil }); err != nil {
				return err
			}
			l.Release(func(uint64, int64) bool { return false })
		}
	}
}
