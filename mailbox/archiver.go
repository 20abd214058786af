package mailbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// archiver writes the dead letters that the ledger forgets to the archive.
type archiver struct {
	self        proto.PeerID
	ledgers     Ledgers
	log         *slog.Logger
	auditSystem func(ctx context.Context, action, what string) error
	event       func(kind string, p proto.PeerID, fields map[string]string)
	places      *places
	views       *views

	count atomic.Uint64 // dead letters since the start
}

// An archivedMail is a line of the archive of dead letters.
type archivedMail struct {
	Subscription string `json:"subscription,omitempty"` // of a topic
	Text         string `json:"text,omitempty"`         // the body if it is text; any other is in body
	Damage       string `json:"damage,omitempty"`       // why there is no more than its sequence
	wire.BoxedMail
}

// write writes dead letters of one subscription to the archive, before the ledger forgets
// them. After a crash they may be written again.
func (r *archiver) write(ctx context.Context, all []mail.DeadLetter) error {
	var lines bytes.Buffer
	enc := json.NewEncoder(&lines)
	enc.SetEscapeHTML(false)
	for i := range all {
		line, err := r.line(&all[i])
		if err == nil {
			err = enc.Encode(line)
		}
		if err != nil {
			return fmt.Errorf("archive dead letter %d: %w", all[i].Seq, err)
		}
	}
	file, err := r.ledgers.ArchiveMail(lines.Bytes())
	if err != nil {
		return err
	}
	r.count.Add(uint64(len(all)))
	from := place{text: r.places.text(all[0].Box)}.path(all[0].Subscription)
	what := fmt.Sprintf("%s: %d dead letters to %s", from, len(all), file)
	if err := r.auditSystem(context.WithoutCancel(ctx), "dead_mail.archive", what); err != nil {
		r.log.Error("could not write the archiving of dead letters to the audit", "what", what, "why", err)
	}
	r.event(wire.EventMailArchived, r.self, map[string]string{"box": from, "count": fmt.Sprint(len(all)), "file": file})
	return nil
}

func (r *archiver) line(d *mail.DeadLetter) (a archivedMail, err error) {
	p := place{name: d.Box, text: r.places.text(d.Box)}
	a.Subscription, a.Box, a.Seq = d.Subscription, p.text, d.Seq
	if d.Damage == nil {
		a.ReceivedMail, err = r.views.received(p, d.Seq, d.From, d.Letter)
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
