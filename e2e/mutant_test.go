//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/store/nuts"
	"github.com/balefire/balefire/wire"
)

// A mutant is a node with a deliberate bug: a check that does not detect it proves nothing.
// It is this test binary, started again.
const (
	mutantVariable = "BALEFIRE_E2E_MUTANT"
	mutantDir      = "BALEFIRE_E2E_DIR"
	mutantListen   = "BALEFIRE_E2E_LISTEN"

	ackFirst = "ack before commit" // acknowledged data is written a little later
	fsyncOff = "fsync off"         // data is written but never synced
)

func runMutant() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := mutant(ctx, os.Getenv(mutantVariable), os.Getenv(mutantDir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func mutant(ctx context.Context, kind, dir string) error {
	engine, err := newEarlyAckEngine(kind, dir)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	cfg := node.DefaultConfig(dir)
	cfg.Logger, cfg.Simulated.Engine = log, engine
	cfg.Store.Reserve, cfg.Net.Listen = 1, strings.Split(os.Getenv(mutantListen), ",")
	cfg.Handlers = []wire.HandlerSpec{{Kind: "mark", Type: wire.TypeDiscard, Allow: []string{"role:send"}}}
	n, err := node.New(cfg)
	if err != nil {
		return err
	}
	l, err := api.Listen(filepath.Join(dir, "node.sock"))
	if err != nil {
		return err
	}
	go api.New(n, api.Config{Logger: log}).Serve(ctx, l) // ends with the process
	return n.Run(ctx)
}

// An earlyAckEngine acknowledges a commit as durable when it is only in memory.
type earlyAckEngine struct {
	*mem.Engine
	later chan []store.Op // for the underlying engine
	file  *os.File        // or for a file that is not synced
}

// newEarlyAckEngine reads the real store of dir into memory.
func newEarlyAckEngine(kind, dir string) (*earlyAckEngine, error) {
	real, err := nuts.Open(filepath.Join(dir, "store", "nutsdb"), nuts.Config{})
	if err != nil {
		return nil, err
	}
	l := &earlyAckEngine{Engine: mem.New()}
	for _, b := range store.Buckets() {
		for start := []byte(nil); ; {
			page, err := real.Scan(b, start, nil, store.MaxScan)
			if err != nil {
				return nil, err
			}
			for _, p := range page {
				if err := l.Engine.Commit([]store.Op{{Bucket: b, Key: p.Key, Val: p.Val}}); err != nil {
					return nil, err
				}
			}
			if len(page) < store.MaxScan {
				break
			}
			start = append(page[len(page)-1].Key, 0)
		}
	}
	if kind == fsyncOff {
		l.file, err = os.Create(filepath.Join(dir, "unsynced"))
		return l, err
	}
	l.later = make(chan []store.Op, 1<<16)
	go func() {
		for ops := range l.later {
			if err := real.Commit(ops); err != nil {
				panic(err)
			}
		}
	}()
	return l, nil
}

// Commit returns before the batch is durable.
func (l *earlyAckEngine) Commit(ops []store.Op) error {
	ops = slices.Clone(ops) // the caller reuses its buffers
	for i, op := range ops {
		ops[i].Key, ops[i].Val = slices.Clone(op.Key), slices.Clone(op.Val)
	}
	if l.file != nil {
		for _, op := range ops {
			if _, err := l.file.Write(append(op.Key, op.Val...)); err != nil {
				return err
			}
		}
	} else {
		l.later <- ops
	}
	return l.Engine.Commit(ops)
}
