package mailbox

import (
	"errors"
	"testing"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/store/ledger"
)

var errBadSector = errors.New("bad sector")

// weakLedgers opens its ledger, and loads it, at the second time.
type weakLedgers struct {
	*fixture
	refused, opened, loaded int
}

func (w *weakLedgers) OpenLedger() (mail.Ledger, error) {
	if w.refused++; w.refused == 1 {
		return (*ledger.Ledger)(nil), errBadSector // not nil as an interface
	}
	w.opened++
	return w.fixture.OpenLedger()
}

// weakDisk cannot be replayed at first.
type weakDisk struct {
	*ledger.Ledger
	ledgers *weakLedgers
}

func (d weakDisk) Replay(from uint64, f func(ledger.Batch) error) error {
	if d.ledgers.loaded++; d.ledgers.loaded == 1 {
		return errBadSector
	}
	return d.Ledger.Replay(from, f)
}

// A ledger that was opened and could not be loaded is not opened a second time: two writers would
// share its files.
func TestLedgerIsOpenedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.stop()
		w := &weakLedgers{fixture: f}
		f.ledgers, f.disk = w, func(l *ledger.Ledger) mail.Ledger { return weakDisk{l, w} }
		f.start()
		for range 2 { // cannot be opened; cannot be loaded
			_, err := f.trySend("agent:build@beta", "lost", nil)
			f.refused(err, errBadSector, "")
		}
		f.mail("agent:build@beta", "stored", nil)
		if w.opened != 1 || w.loaded != 2 {
			t.Errorf("the ledger was opened %d times and loaded %d times, want 1 and 2", w.opened, w.loaded)
		}
		f.restart()
	})
}
