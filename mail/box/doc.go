// Package box is the state of the mailboxes and topics of one ledger: who waits, who is
// leased to whom, what is next, what is dead. It has no clock, disk, network or goroutine.
//
//	            Settle, Tick ──▶ records ──▶ the ledger ──▶ Apply ──▶ what the broker does:
//	broker ──▶  Deliver      ──▶ deliveries                           bounces, ends, sessions to serve
//
// Three kinds of functions:
//
//   - [State.Apply] changes what survives. It decides from the record and the state alone,
//     so that a replay, or another member of a group, arrives at the same state. It reads no
//     clock: times are in the records.
//   - [State.Settle] and [State.Tick] change nothing that survives: they make the records
//     of acknowledgments, lapses, due times, expiry and retention.
//   - [State.Deliver] leases mail to a session. Leases are in memory only. The handle of a
//     delivery is SEQ.BOOT.N: the mail, the start of the home, and a count of deliveries.
//
// # Order
//
// Mail without a key is ready at once. Mail with a key stands in the lane of its key, and
// only the head of a lane is ready; the next one is ready when the head has ended. Package
// fair chooses the class of what is ready, and within a class the lowest sequence goes
// first. A lane counts with the highest class that waits in it, so that urgent mail pulls
// its key forward and never overtakes within it.
//
// # Spools
//
// A spool keeps mail for a box on another node, with the numbers of its chain, until that has
// it: there are no sessions, no retention, and time alone ends nothing there. What ends in it
// is decided by package chain and told by ACK and END records.
//
// # Ends
//
// An attempt is spent by a nack and by a lease that lapses, an abandon by a session that
// breaks; a restart spends nothing. A mail out of attempts or abandons is DEAD and kept as
// a dead letter until it is archived.
//
// A mail whose last delivery lapsed or broke is a suspect, which may have killed its reader:
// it is leased alone, so that it is the only one that dies. See suspect.go.
//
// A mailbox may keep mail that is DONE, for some time and up to some number, to be looked at:
// see kept.go. It counts as ended, and its record is needed until it is forgotten. So it is of a
// mail whose sender wants to know that it is DONE, until that was told: see untold.go. A spool keeps
// mail that its home has with what that signed, if the sender asked for it: see receipts.go.
//
// # Handover
//
// A box moves to another home as a copy of its state, in records that add to a copy until it is
// served there: see handover.go.
//
// # Memory
//
// A waiting mail takes 40 bytes: 32 in chunks of structs without pointers, 8 in a queue; a kept
// one takes the 32. A key that is in use takes more, for its lane. Bodies are never in memory: a
// [Place] says where a record lies. Of a body that is not in its letter the state has the name:
// see [State.Objects].
//
// # Tests
//
// record_test.go and checkpoint_test.go: one encoding for one value, typed errors for bad
// input, fuzz targets. model_test.go is a slow reference model in which every rule is a
// search over all mails; sim_test.go compares each answer with it, by random operations
// with restarts, replays and checkpoints in between. mutants_test.go leaves each rule out
// once: the model must notice. rules_test.go, limits_test.go and topic_test.go have a table
// for each rule and limit.
package box
