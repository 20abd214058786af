package node

import (
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/schedule"
	"github.com/balefire/balefire/store"
)

// RestoreStore replaces the store of the stopped node in cfg.Dir with a copy of a
// snapshot: see [datadir.Restore].
//
// The node starts with a higher boot number than ever before (I5), assumes that every
// task in the copy may have been sent, and starts no task that was created before the
// last use of the old store, because it may have run already (I6). All times are those that
// the node believed: see [inbox.Traces].
func RestoreStore(cfg Config, snapshot, private string) (datadir.RestoreReport, error) {
	cfg, mark := markerFor(cfg)
	return datadir.Restore(cfg.Storage(), snapshot, private, mark)
}

// SalvageStore copies what is readable of the stopped node in cfg.Dir to the new folder dst:
// see [datadir.Salvage]. A node with the copy of a damaged store starts as after
// [RestoreStore]: an end that is lost is like one after a snapshot.
func SalvageStore(cfg Config, dst string) (datadir.Report, error) {
	cfg, mark := markerFor(cfg)
	return datadir.Salvage(cfg.Storage(), dst, mark)
}

// markerFor returns what marks a copy of the store of the node in cfg.Dir, and cfg with the
// clock of that.
func markerFor(cfg Config) (Config, datadir.Marker) {
	cfg = cfg.withDefaults()
	guard := clock.NewGuard(cfg.Clock)
	if own, err := pairing.Load(cfg.Dir, cfg.Clock.Now()); err == nil { // the start of the node reports the error
		guard.Bound(own.Bounds())
	}
	guard.Hold(true) // nothing of the snapshot expires meanwhile
	cfg.Clock = guard.Clock()
	return cfg, func(s *store.Store, old datadir.Replaced, b *store.Batch) (lost time.Time, revoked []string, err error) {
		traces := inbox.Traces{Written: old.Written}
		boot, err := traceOld(s, old.Meta, b, guard, &traces)
		if err != nil {
			return lost, nil, err
		}
		now := cfg.Clock.Now()
		if old.Meta == nil || boot == 0 {
			boot = uint64(max(now.Unix(), 0)) // the clock went on
		}
		_ = audit.Scan(filepath.Join(cfg.Dir, audit.DirName), func(r audit.Record) error { // use what is readable: it was not rolled back
			boot, traces.Audited = max(boot, r.Boot), r.Time
			return nil
		})
		lost = traces.Lost(now, !guard.State().Stopped)
		if revoked, err = pairing.RevokedSince(cfg.Dir, s, cfg.Clock); err != nil {
			return lost, nil, err
		}
		mailbox.MarkRestored(b, slices.MaxFunc([]time.Time{now, lost}, time.Time.Compare))
		pairing.MarkRestored(b)
		return lost, revoked, errors.Join(inbox.MarkRestored(s, b, lost), outbox.MarkRestored(s, b, boot), schedule.MarkRestored(s, b, lost), ownership.MarkRestored(s, b))
	}
}

// traceOld resumes the clock from the newer of the stamps in s, the copy, and in the store
// that it replaces, nil if that is unreadable. It returns the last boot number of that store.
func traceOld(s, old *store.Store, b *store.Batch, guard *clock.Guard, traces *inbox.Traces) (boot uint64, err error) {
	stamp, err := readStamp(s)
	if err != nil {
		return 0, err
	}
	traces.Copied = clock.StampTime(stamp)
	if old != nil {
		newer, err := readStamp(old)
		if err != nil {
			return 0, err
		}
		if boot, err = outbox.LastBoot(old); err != nil {
			return 0, err
		}
		if traces.Stamped = clock.StampTime(newer); traces.Stamped.After(traces.Copied) {
			stamp = newer
			b.Put(store.Meta, clockKey, stamp) // the next start knows no less
		}
	}
	if traces.Copied.IsZero() && traces.Stamped.IsZero() {
		return boot, nil
	}
	return boot, guard.Resume(stamp)
}
