package node

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/audit"
	"github.com/balefire/balefire/executor"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/notice"
	"github.com/balefire/balefire/outbox"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/receive"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/submit"
	"github.com/balefire/balefire/transfer"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/view"
	"github.com/balefire/balefire/wire"
)

// This file connects the subsystems: each declares what it needs of the others as small
// interfaces.

func (n *Node) outboxConfig() outbox.Config {
	l, sealing := n.cfg.Limits, n.sealing()
	return outbox.Config{
		Mesh: n.mesh.ID, Verifier: n.verifier, MaxPending: l.MaxPending, MaxBytes: int64(l.MaxPendingBytes), Keys: n.cfg.keys(),
		Retention: outbox.Retention{
			DoneFor: l.DoneAge, MaxDone: l.DoneCount, DeadFor: l.DeadAge, MaxDead: l.DeadCount,
			Archive:  backlog.FileArchive(filepath.Join(n.cfg.Dir, archiveFile)),
			Archived: n.archived,
		},
		Bodies: n.transfers, Rewrap: sealing.Rewrap, Reseal: sealing.Reseal,
		WasHome: func(target string, p proto.PeerID) bool { return n.Queues.WasHomeOf(target, p) },
		Changed: n.homeChanged, Event: n.Events.Add, Unneeded: n.storage.Blobs.Drop,
		Clock: n.cfg.Clock, Logger: n.log, Progress: n.progressLogger("tasks with this home"),
	}
}

// archiveFile receives the dead letters that exceed the limits of the store.
const archiveFile = "dead-letters.jsonl"

// archived writes to the audit that dead letters were archived by policy.
func (n *Node) archived(count int) {
	_, err := n.storage.Audit.Append(context.Background(), audit.Entry{
		Boot: n.outbox.Boot(), Actor: audit.ActorSystem, Action: "dead_letters.archive",
		Detail: map[string]string{"count": fmt.Sprint(count), "file": archiveFile},
	})
	if err != nil {
		n.log.Error("could not write the archiving of dead letters to the audit", "count", count, "err", err)
	}
}

// progressLogger logs the progress of reading a large store (S50).
func (n *Node) progressLogger(what string) func(int) {
	last := n.cfg.Clock.Mono()
	return func(entries int) {
		n.cfg.reportOpening("read %d %s", entries, what)
		if now := n.cfg.Clock.Mono(); now-last >= time.Second {
			last = now
			n.log.Info("reading the store", "what", what, "read", entries)
		}
	}
}

func (n *Node) sealing() submit.Sealing {
	return submit.Sealing{Book: n.book, Sealer: n.sealer, Bodies: n.storage.Blobs}
}

func (n *Node) submitParts() submit.Parts {
	return submit.Parts{
		Sealing: n.sealing(), Keys: n.keys, Mesh: n.mesh.ID, Outbox: n.outbox, Draining: n.draining.Load,
		MaxBody: int64(n.cfg.Limits.PayloadMax), Fail: n.cfg.Fail, Clock: n.cfg.Clock, Logger: n.log,
		HomeOf: func(queue string) (proto.PeerID, error) { return n.Queues.HomeOf(queue) }, Want: func(p proto.PeerID) { n.net.Want(p) },
	}
}

func (n *Node) pairingParts() pairing.Parts {
	return pairing.Parts{
		Dir: n.cfg.Dir, Keys: n.keys, Mesh: n.mesh, Book: n.book, Store: n.storage.Store, Clock: n.cfg.Clock, Logger: n.log,
		Audit: n.Audit.Record, PeerClock: n.guard.ObserveRefused, Event: n.Events.Add,
	}
}

// Joiner returns what makes the stopped node with the given configuration a member.
func Joiner(cfg Config) pairing.Joiner {
	cfg = cfg.withDefaults()
	net := transport.Config{Listen: cfg.Net.Listen, Announce: cfg.Net.Announce, Clock: cfg.Clock, Logger: cfg.Logger}
	if cfg.Simulated.Transport != nil {
		cfg.Simulated.Transport(&net)
	}
	return pairing.Joiner{Storage: cfg.Storage(), Net: net}
}

func (n *Node) transferParts() transfer.Parts {
	return transfer.Parts{
		Bodies: n.storage.Blobs, Suite: submit.SuiteOf(n.keys.SealingKey()), Self: n.keys.Peer(),
		MaxBlob: int64(n.cfg.Store.MaxBlob), MaxQueued: n.cfg.Limits.QueueBodies, Full: n.storage.Store.Full, Clock: n.cfg.Clock, Logger: n.log,
	}
}

func (n *Node) inboxParts() inbox.Parts {
	return inbox.Parts{
		Members: inboxMembers{n.book}, Opener: inboxOpener{n.keys}, Results: n.submitter,
		Bodies: transfer.InboxBodies{Store: n.storage.Blobs}, Files: transfer.InboxFiles{Store: n.storage.Blobs},
		Deadline: n.outbox.NotAfter, Ahead: func(p proto.PeerID) (time.Duration, bool) { return n.net.ClockAhead(p) }, Gone: n.book.Gone, Revoked: n.book.Revoked,
	}
}

func (n *Node) viewParts() view.Parts {
	return view.Parts{
		Keys: n.keys, Book: n.book, Net: n.net, Gossip: n.gossip, Outbox: n.outbox, Inbox: n.inbox, Leases: n.Queues.Driver, Store: n.storage.Store, Guard: n.guard,
		Queues: n.Queues, Mail: n.Mail,
		Local: view.Local{
			Record: n.ownRecord, Addrs: n.net.Addrs, Relays: n.relays, Handlers: n.Handlers.List, Phase: n.phase, Comparing: n.Pairing.Comparing,
			BlobBytes: func() int64 { return n.storage.Blobs.Usage().Bytes }, LedgerBytes: n.storage.LedgerBytes,
			Result: n.storage.Blobs.OpenResult,
		},
	}
}

func (n *Node) inboxConfig() inbox.Config {
	l := n.cfg.Limits
	return inbox.Config{
		Self: n.keys.Peer(), Mesh: n.mesh.ID, BootID: n.outbox.BootID(),
		Slots: l.Slots, MaxTasks: l.MaxInbox, MaxBytes: recordBytes(n.cfg.memoryLimit()), MaxKept: 10 * l.MaxInbox, Keys: n.cfg.keys(), GracefulTimeout: l.GracefulTimeout,
		Dangerous: n.cfg.Dangerous, OnStarted: func(s inbox.Started) { n.notices.SendStarted(s) }, OnChange: n.ownerChanged, OnUntold: submit.UntoldHook(n.Events.Add),
		Fail: n.cfg.Fail, Logger: n.log, Clock: n.cfg.Clock, Progress: n.progressLogger("accepted tasks"),
	}
}

// openReceivers opens what takes the messages of peers about tasks.
func (n *Node) openReceivers() {
	n.notices = notice.New(notice.Parts{
		Keys: n.keys, Book: n.book, Verifier: n.verifier, Inbox: n.inbox, Outbox: n.outbox, Full: n.storage.Store.Full, Event: n.Events.Add, Clock: n.cfg.Clock, Logger: n.log,
		Lease: func(ctx context.Context, id proto.TaskID) (proto.PeerID, proto.Seq, error) {
			v, _, err := n.Queues.Driver.Task(ctx, id)
			return v.Peer, v.Epoch, err
		},
		RetryMail: func(ctx context.Context, from proto.PeerID, c proto.Code) { n.Mail.RetryNow(ctx, from, c) },
	})
	n.frames = receive.New(receive.Parts{
		Keys: n.keys, Mesh: n.mesh, Book: n.book, Verifier: n.verifier, Inbox: n.inbox, Outbox: n.outbox, Bodies: n.storage.Blobs,
		Wants:   n.transfers.WantsResult,
		Ahead:   func(p proto.PeerID) time.Duration { ahead, _ := n.net.ClockAhead(p); return ahead },
		Refused: n.notices.Refused, Event: n.Events.Add, Fail: n.cfg.Fail, Clock: n.cfg.Clock, Logger: n.log,
		Queues:    func(from proto.PeerID, m *proto.Message) error { return n.Queues.Receive(from, m) },
		Schedules: func(from proto.PeerID, m *proto.Message) error { return n.Schedules.Receive(from, m) },
	})
}

// inboxMembers resolves peers for the inbox.
type inboxMembers struct{ book *addressbook.Book }

// Member returns the name and the roles of an admitted peer. If two members have the
// same name, neither is known by it: no rule for one may apply to the other. A peer with
// an expired certificate is still a member while it can be renewed: its new tasks wait
// (see identity.Checks), accepted ones run.
func (m inboxMembers) Member(p proto.PeerID) (name string, roles []string, ok bool) {
	who, ok := m.book.Renewable(p)
	if ok && !m.book.Unique(who) {
		who.Name = ""
	}
	return who.Name, who.Roles, ok
}

// inboxOpener decrypts for the inbox what was sealed for this node.
type inboxOpener struct{ keys *identity.Keys }

// Content opens a stored task.
func (o inboxOpener) Content(st *proto.Stored) (*proto.Content, error) {
	h, err := proto.ParseHeader(st.GetEnvelope().GetHeader())
	if err != nil {
		return nil, err
	}
	plain, _, err := o.keys.Open(st.GetEnvelope(), &h)
	if err != nil {
		return nil, err
	}
	c := new(proto.Content)
	return c, proto.DecodeShared(plain, c)
}

// openHandlers opens the executor.
func (n *Node) openHandlers() (err error) {
	n.Handlers, err = executor.Open(executor.Parts{
		Inbox: n.inbox, Store: n.storage.Store, Audit: n.storage.Audit, Record: n.Audit.Record, Changed: n.announceHandlers, Unknown: n.unknownAllowed,
	}, executor.Config{
		Dir: n.cfg.Dir, Node: n.keys.Peer(), Boot: n.outbox.Boot(), Handlers: n.cfg.Handlers, Functions: n.cfg.Functions, Dangerous: n.cfg.Dangerous,
		NoDisk: n.cfg.Simulated.Engine != nil, Clock: n.cfg.Clock, Logger: n.log,
	})
	return err
}

// homeChanged and ownerChanged are called for every durable change of a task, on either
// side.
func (n *Node) homeChanged(id proto.TaskID, r *proto.Record) {
	n.metrics.taskChanged(wire.RoleHome, r)
	n.logTask(wire.RoleHome, id, r)
	n.transfers.DropEnded(r)
	n.cfg.Changed(id, r.GetState())
}

func (n *Node) ownerChanged(id proto.TaskID, r *proto.Record) {
	n.metrics.taskChanged(wire.RoleOwner, r)
	n.logTask(wire.RoleOwner, id, r)
}

// announceHandlers tells the members which kinds this node handles now. With more it also
// notifies every connected peer, so that its tasks need not wait for the end of a backoff.
func (n *Node) announceHandlers(more bool) {
	if n.running.Load() {
		n.gossip.Describe()
	}
	if more {
		n.notices.AnnounceServed()
	}
}
