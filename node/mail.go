package node

import (
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/queue"
	"github.com/balefire/balefire/submit"
)

// openMail opens the mailboxes and topics of a node.
func openMail(n *Node) (*mailbox.Boxes, error) {
	restored, err := mailbox.RestoredAt(n.storage.Store)
	if err != nil {
		return nil, err
	}
	titles := queue.Titles{Queues: n.Queues}
	return mailbox.Open(mailbox.Parts{
		Ledgers:  mailLedgers{n.storage},
		Book:     n.book,
		Members:  inboxMembers{n.book},
		Unknown:  n.unknownAllowed,
		Want:     func(p proto.PeerID) { n.net.Want(p) },
		Names:    titles,
		Seize:    titles.Seize,
		Watch:    func(changed func()) { titles.Watch(func(queue.Title) { changed() }) },
		Programs: n.Handlers,
		Bodies:   n.storage.Blobs,
		Sender:   n.transfers,
	}, mailbox.Config{
		Self:        n.keys.Peer(),
		Mesh:        n.mesh.ID,
		Keys:        n.keys,
		Verifier:    n.verifier,
		Boot:        n.outbox.Boot(),
		Restored:    restored,
		Limits:      box.Limits{Bytes: uint64(n.cfg.Mail.MaxBytes), Keys: uint32(n.cfg.Mail.MaxKeys), Kept: uint64(n.cfg.Mail.KeepBytes)},
		Keep:        n.cfg.Mail.Keep,
		Durable:     !n.cfg.Mail.Relaxed,
		MaxBody:     int64(n.cfg.Store.MaxBlob),
		Suite:       submit.SuiteOf(n.keys.SealingKey()),
		Clock:       n.cfg.Clock,
		Logger:      n.log,
		Registerer:  n.registry,
		Audit:       n.Audit.Record,
		AuditSystem: n.Audit.RecordSystem,
		Event:       n.Events.Add,
		Made:        n.notices.AnnounceServed,
		Fail:        n.cfg.Fail,
	})
}

// mailLedgers opens the ledger in the node's folder.
type mailLedgers struct{ *datadir.Dir }

// OpenLedger opens the ledger, or makes it.
func (l mailLedgers) OpenLedger() (mail.Ledger, error) { return l.Dir.OpenLedger() }
