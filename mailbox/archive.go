package mailbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/wire"
)

// An archivedMail is a line of the archive of dead letters.
type archivedMail struct {
	Subscription string `json:"subscription,omitempty"` // of a topic
	Text         string `json:"text,omitempty"`         // the body if it is text; any other is in body
	Damage       string `json:"damage,omitempty"`       // why there is no more than its sequence
	wire.BoxedMail
}

// archive writes dead letters of one subscription to the archive, before the ledger forgets
// them. After a crash they may be written again.
func (b *Boxes) archive(ctx context.Context, all []mail.DeadLetter) error {
	var lines bytes.Buffer
	enc := json.NewEncoder(&lines)
	enc.SetEscapeHTML(false)
	for i := range all {
		line, err := b.archivedMail(&all[i])
		if err == nil {
			err = enc.Encode(line)
		}
		if err != nil {
			return fmt.Errorf("archive dead letter %d: %w", all[i].Seq, err)
		}
	}
	file, err := b.parts.Ledgers.ArchiveMail(lines.Bytes())
	if err != nil {
		return err
	}
	b.archived.Add(uint64(len(all)))
	from := place{text: b.places.text(all[0].Box)}.path(all[0].Subscription)
	what := fmt.Sprintf("%s: %d dead letters to %s", from, len(all), file)
	if err := b.cfg.AuditSystem(context.WithoutCancel(ctx), "dead_mail.archive", what); err != nil {
		b.cfg.Logger.Error("could not write the archiving of dead letters to the audit", "what", what, "why", err)
	}
	b.cfg.Event(wire.EventMailArchived, b.cfg.Self, map[string]string{"box": from, "count": fmt.Sprint(len(all)), "file": file})
	return nil
}

func (b *Boxes) archivedMail(d *mail.DeadLetter) (a archivedMail, err error) {
	p := place{name: d.Box, text: b.places.text(d.Box)}
	a.Subscription, a.Box, a.Seq = d.Subscription, p.text, d.Seq
	if d.Damage == nil {
		a.ReceivedMail, err = b.received(p, d.Seq, d.From, d.Letter)
		a.Accepted = time.UnixMilli(d.Accepted).UTC()
	} else {
		a.Damage = d.Damage.Error()
	}
	info := box.MailInfo{State: box.Dead, Attempts: d.Attempts, Abandons: d.Abandons, Tries: d.Tries}
	history(&a.BoxedMail, &info, &d.DeadLetter)
	if utf8.Valid(a.Body) {
		a.Text, a.Body = string(a.Body), nil
	}
	return a, err
}
