package mail

import (
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/store/ledger"
)

// replayBehindGap applies a record of a ledger that was rebuilt and has lost records before
// this one. A mail may get another sequence than it had, so that what the log says of
// sequences may be of another mail: it does not count, and mail that had ended is delivered
// again. No mail that the log has is missing because another one of its chain is.
func (b *Broker) replayBehindGap(p ledger.Place, rec []byte) error {
	t, err := box.TypeOf(rec)
	if err != nil {
		return err
	}
	switch t {
	case box.TypeAck, box.TypeNack, box.TypeEnd, box.TypeMove:
		return nil
	case box.TypeForward:
		rec = box.Unlinked(rec)
	case box.TypeMail:
		m, err := box.ParseMail(rec)
		if err != nil {
			return err
		}
		m.Prev.Boot, m.Prev.Counter = 0, 0
		rec = box.AppendMail(nil, &m)
	}
	return b.replay(p, rec)
}

// closeGaps writes a checkpoint, so that what is written from now on counts at the next
// start.
func (b *Broker) closeGaps(gaps int) error {
	b.cfg.Logger.Warn("the ledger was rebuilt and lacks records: mail that was sent after them is delivered again", "gaps", gaps)
	return b.log.Checkpoint(b.last.Load(), b.state.Save)
}
