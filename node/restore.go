package node

import (
	"path/filepath"
	"time"

	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/ownership"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/store"
)

// RestoreStore replaces the store of the stopped node in cfg.Dir with a copy of a
// snapshot: see [datadir.Restore].
//
// The node starts with a higher boot number than ever before (I5), assumes that every
// task in the copy may have been sent, and starts no task that was created before the
// last write to the old store, because it may have run already (I6).
func RestoreStore(cfg Config, snapshot, private string) (datadir.RestoreReport, error) {
	cfg = cfg.withDefaults()
	return datadir.Restore(cfg.Storage(), snapshot, private, func(s *store.Store, b *store.Batch, lost time.Time) (revoked []string, err error) {
		if revoked, err = pairing.RevokedSince(cfg.Dir, s, cfg.Clock); err != nil {
			return nil, err
		}
		if err := inbox.MarkRestored(s, b, lost); err != nil {
			return nil, err
		}
		if err := outbox.MarkRestored(s, b, lastBoot(cfg)); err != nil {
			return nil, err
		}
		mailbox.MarkRestored(b, cfg.Clock.Now())
		pairing.MarkRestored(b)
		return revoked, ownership.MarkRestored(s, b)
	})
}

// lastBoot returns the highest boot number that is known without the store: the audit
// was not rolled back with it, and the clock went on.
func lastBoot(cfg Config) uint64 {
	boot := uint64(max(cfg.Clock.Now().Unix(), 0))
	_ = audit.Scan(filepath.Join(cfg.Dir, audit.DirName), func(r audit.Record) error { // use what is readable
		boot = max(boot, r.Boot)
		return nil
	})
	return boot
}
