package mail

import (
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/store/ledger"
)

// replayBehindGap applies a record of a ledger that was rebuilt and has lost records before
// this one. A mail may get another sequence than it had, so that what the log says of
// sequences may be of another mail: it does not count, and mail that had ended is delivered
// again. No mail that the log has is missing because another one of its chain is. A MOVE counts
// if the mail came before the first gap, by the next sequences then: that is the mail, and its
// old record may be gone. So does one that adds a mail to a copy of a box: it is the only record.
func (b *Broker) replayBehindGap(p ledger.Place, rec []byte, next map[box.BoxID]uint64) error {
	t, err := box.TypeOf(rec)
	if err != nil {
		return err
	}
	switch t {
	case box.TypeAck, box.TypeNack, box.TypeEnd, box.TypeTold, box.TypeTaken:
		return nil
	case box.TypeMove:
		if id, seq, adds, err := box.MoveOf(rec); err != nil || !adds && seq >= next[id] {
			return err
		}
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

// sequences returns the sequence of the next mail of each box.
func (b *Broker) sequences() map[box.BoxID]uint64 {
	next := map[box.BoxID]uint64{}
	for _, id := range b.state.Boxes() {
		i, _ := b.state.Info(id)
		next[id] = i.Next
	}
	return next
}

// closeGaps writes a checkpoint, so that what is written from now on counts at the next
// start.
func (b *Broker) closeGaps(gaps int) error {
	b.cfg.Logger.Warn("the ledger was rebuilt and lacks records: mail that was sent after them is delivered again", "gaps", gaps)
	return b.log.Checkpoint(b.last.Load(), b.state.Save)
}
