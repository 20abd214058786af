// Package mail keeps mail until somebody has said that it is done.
//
//	send ─▶ box ─▶ session ─▶ ack    DONE: the mail ends
//	         ▲        ├─────▶ nack   due again later: RETRYING
//	         │        ├─────▶ lapse  the lease ran out: an attempt
//	         └────────┴─────▶ break  the session ended: an abandon
//	         out of attempts, abandons or time ─▶ DEAD, EXPIRED: a bounce to the sender
//
// A box is where mail waits. There are two kinds: a mailbox has one subscription, itself;
// a topic has any number of them, and each reads every mail that its filter lets through.
// A session is one reader of a subscription. It is given mail as deliveries: leases with
// an end, named by a handle. Reading consumes nothing, an acknowledgment does.
//
// A [Broker] serves the boxes of one ledger on one goroutine. Many goroutines send and
// settle; what they ask for while a sync is under way is in the next batch.
//
// Mail for a box on another node waits in a spool until the home of that box has it:
//
//	Forward ─▶ spool ─▶ Lane.Next ──bundle──▶ Take ─▶ box
//	             ▲ end                         │
//	             └──── Lane.Answer ◀──answer───┘
//
// A mail is numbered when it is queued for the log, and the number is written with it. The
// home takes each number once and in order, and answers what it has on disk. Package chain has
// the rules. Nothing that may have been sent ends but by the word of the home, or when its time
// is over.
//
// A body that is too large for a letter is an object of the store of bodies, which the letter
// names. The home takes no mail without its body:
//
//	bundle ─▶ NEED_BODY ─▶ Lane.NextBody ─▶ the body, to the home ─▶ Lane.SentBody ─▶ bundle
//
// [Broker.Objects] names the bodies that mail needs, [Config].Freed those that it needs no more.
//
// All that must survive is in records. A record is appended to a ledger, and applied when
// the ledger says that it is on disk. What the records say together is the state of the
// boxes, which [github.com/balefire/balefire/mail/box] keeps: a state machine without
// clock, disk, network or goroutine.
//
// The states of a mail:
//
//	WAITING    in its box; or in the spool for it, where the API shows PENDING or ACCEPTED
//	LEASED     given to a session; in memory only: after a restart it is WAITING
//	RETRYING   given back, due later
//	DONE       acknowledged; in a spool: its home has it
//	DEAD       out of attempts, or refused by its reader: a dead letter; or refused by its home
//	EXPIRED    past its not_after; in a spool, it may have been delivered if it was sent
//	CANCELLED  purged, bounced, or its box was removed
//	DROPPED    retention of a topic removed it before every subscription had read it
//
// # Space
//
// The ledger gives back whole segments. A checkpoint knows where each record lies that is
// needed: that of a mail that has not ended, that its box keeps, or that is a dead letter. A
// segment in which nothing is needed is given back with it; of one in which less than a
// quarter is, the mail is moved, so that one mail that waits does not keep all that came with
// it:
//
//	checkpoint ─▶ sparse segments ─▶ MOVE: the mail once more, at the end ─▶ checkpoint ─▶ given back
//
// A MOVE says where the record of a mail is, and nothing else. The mail keeps its box and its
// sequence, and all the rest names these: its place in the order and its lane, leases and
// handles, attempts, dedupe keys, the number in a chain, which is in the record, and what the
// subscriptions of a topic have read. No mail gets another position. A letter moves as it is.
//
// After a crash each mail is at its old place or at its new one. Either can be read: a segment
// is given back when a checkpoint is on disk in which nothing of it is needed, and the log has
// all since the checkpoint before that one, should the newer one be damaged. So a MOVE needs no
// sync of its own. The MOVE of a mail that ended meanwhile does nothing.
//
// Moves make way for appends: they are read in the background, and written in batches of
// 256 KiB, at most 10 MiB a second, and between two checkpoints as much as makes half of one due
// (128 MiB). They are written although the disk is full: they make room. A reader that was given a
// place before a move, such as a session with a delivery that it has not fetched, asks for the new one
// when the old one is gone. A segment with a record that cannot be read stays.
//
// What is promised (the tests name the numbers):
//
//   - I21: a mail that was accepted is in exactly one box and one state until it ends, and
//     its sender is told of every end but DONE.
//   - I22: a box takes each mail of a chain once and in order.
//   - I23: a (subscription, mail) has at most one live delivery. An acknowledgment counts
//     if and only if the mail has not ended, nobody else was given it since, as far as
//     this node knows, and each mail of its key that was leased with it before it was
//     acknowledged: a restart of the home forgets who was given what before it.
package mail
