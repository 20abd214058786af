package view

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/store/storetest"
	"github.com/balefire/balefire/wire"
)

// A compaction that fails once is tried again; if it fails again and again, the status says so
// with the reason.
func TestStatusNamesFailedCompactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(&storetest.Faults{
			Engine:        mem.New(),
			OnStats:       func(s *store.Stats) { s.CompactDue = true },
			BeforeCompact: func() error { return errors.New("no space") },
		}, store.Config{Clock: clock.Runtime()})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		time.Sleep(time.Minute)
		if w := storeWarnings(s, wire.StoreStats{}); len(w) > 0 {
			t.Errorf("after one failure: %+v", w)
		}
		time.Sleep(time.Hour)
		w := storeWarnings(s, wire.StoreStats{})
		if len(w) != 1 || w[0].Code != wire.NoteCompactFails || w[0].Count < compactWarnAfter || !strings.Contains(w[0].Detail, "no space") {
			t.Errorf("after an hour of failures: %+v", w)
		}
	})
}
