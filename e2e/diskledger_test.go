//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/balefire/balefire/store"
	ledgers "github.com/balefire/balefire/store/ledger"
	"github.com/balefire/balefire/store/mem"
)

// A ledgerEngine keeps commits as entries of a ledger, in memory when it is open. Compact
// makes a checkpoint and gives segments up, which are used again.
type ledgerEngine struct {
	*mem.Engine
	log *ledgers.Ledger
	at  uint64 // index of the last batch
}

func openLedger(dir string) (store.Engine, error) {
	log, err := ledgers.Open(dir, ledgers.Config{Segment: 2 << 20, Logger: silent})
	if err != nil {
		return nil, err
	}
	e := &ledgerEngine{Engine: mem.New(), log: log}
	if e.at, err = log.LoadCheckpoint(e.load); err != nil {
		return nil, err
	}
	return e, log.Replay(e.at+1, func(b ledgers.Batch) error {
		for _, data := range b.Entries() {
			if err := e.load(bytes.NewReader(data)); err != nil {
				return err
			}
		}
		e.at = b.Index
		return nil
	})
}

// load reads commits as lines of JSON.
func (e *ledgerEngine) load(r io.Reader) error {
	for lines := json.NewDecoder(r); ; {
		var ops []store.Op
		if err := lines.Decode(&ops); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := e.Engine.Commit(ops); err != nil {
			return err
		}
	}
}

func (e *ledgerEngine) Commit(ops []store.Op) error {
	data, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	entry := ledgers.Entry{Data: data, After: func(index uint64, _ ledgers.Place, _ error) { e.at = index }}
	if err := e.log.Queue([]ledgers.Entry{entry}).Wait(context.Background()); err != nil {
		return err
	}
	return e.Engine.Commit(ops)
}

func (e *ledgerEngine) Compact() error {
	err := e.log.Checkpoint(e.at, func(w io.Writer) error {
		for _, b := range store.Buckets() {
			for start := []byte(nil); ; {
				page, err := e.Scan(b, start, nil, 100)
				if err != nil {
					return err
				}
				ops := make([]store.Op, len(page))
				for i, p := range page {
					ops[i] = store.Op{Bucket: b, Key: p.Key, Val: p.Val}
				}
				if err := json.NewEncoder(w).Encode(ops); err != nil {
					return err
				}
				if len(page) < 100 {
					break
				}
				start = append(page[len(page)-1].Key, 0)
			}
		}
		return nil
	})
	e.log.Release(func(uint64, int64) bool { return false })
	return err
}
