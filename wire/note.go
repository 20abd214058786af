package wire

import "time"

// A Note states one fact about a node, a peer, a queue or a task as a code with arguments:
// what blocks it, what was checked, or what an operator should look at. The text for
// people, and the advice what to do, are made from it where they are shown.
type Note struct {
	Code NoteCode `json:"code" example:"peer_blocked" doc:"stable; the documentation lists all codes and their arguments"`
	NoteArgs
}

// NoteArgs are the arguments of a note. Each code says which of them it has.
type NoteArgs struct {
	Peer       string      `json:"peer,omitempty" doc:"name of the peer that it is about"`
	Other      string      `json:"other,omitempty" doc:"name of another peer or box"`
	Self       string      `json:"self,omitempty" doc:"name of this node"`
	Queue      string      `json:"queue,omitempty"`
	Box        string      `json:"box,omitempty" doc:"a mailbox, a topic, or a subscription as topic:TOPIC/SUB"`
	Task       string      `json:"task,omitempty" doc:"id of a task or of a mail"`
	Kind       string      `json:"kind,omitempty"`
	Key        string      `json:"key,omitempty" doc:"ordering key"`
	State      string      `json:"state,omitempty" doc:"state of the task, the mail or the peer"`
	Refusal    string      `json:"refusal,omitempty" doc:"code of a refusal, such as FULL"`
	Cause      string      `json:"cause,omitempty" doc:"code of the end or of the latest failure of a task, such as crashed_often, or of what keeps a handler from working, such as no_program"`
	Detail     string      `json:"detail,omitempty" doc:"text of an error, the reason that a node or a program gave, or the name that it is about"`
	Path       string      `json:"path,omitempty" doc:"address and protocol of a connection"`
	Epoch      string      `json:"epoch,omitempty" doc:"boot.counter of a lease"`
	Generation uint64      `json:"generation,omitempty" doc:"of the home of a queue"`
	Names      []string    `json:"names,omitempty" doc:"names of peers or readers, or labels"`
	Count      int         `json:"count,omitempty"`
	Of         int         `json:"of,omitempty" doc:"the number that count is part of"`
	Held       int         `json:"held,omitempty" doc:"tasks that a node has a lease for or the result of"`
	Attempts   int         `json:"attempts,omitempty"`
	Abandons   int         `json:"abandons,omitempty" doc:"leases that were lost"`
	Seconds    float64     `json:"seconds,omitempty" doc:"how long ago it happened, or for how long it has been so; of peer_clock and own_clock: the clock minus the other one"`
	Time       *time.Time  `json:"time,omitempty"`
	Dial       *Dialed     `json:"dial,omitempty" doc:"latest and next dial of the peer, and its connection"`
	Clock      *ClockDoubt `json:"clock,omitempty"`
	Transfer   *Transfer   `json:"transfer,omitempty"`
	Result     bool        `json:"result,omitempty" doc:"it is about the result of a task that ended here, not about the task"`
}

// Dialed is the outcome of the latest dial of a peer, and what its connection does.
type Dialed struct {
	Failed  int     `json:"failed,omitempty" doc:"consecutive failed dials"`
	Error   string  `json:"error,omitempty" doc:"why the latest dial or connection failed"`
	Seconds float64 `json:"seconds,omitempty" doc:"time since that failure"`
	Next    float64 `json:"next_seconds,omitempty" doc:"time until the next dial; absent: one is running, or none is planned"`
	Idle    float64 `json:"idle_seconds,omitempty" doc:"time since the last byte of the connection"`
}

// A ClockDoubt says why the wall clock of this machine is doubted.
type ClockDoubt struct {
	Off     float64 `json:"off_seconds" doc:"the clock minus the expected time"`
	Stopped bool    `json:"stopped,omitempty" doc:"compared with the time when this node stopped, not with the uptime of the machine"`
	Denied  bool    `json:"denied,omitempty" doc:"a connected peer disagrees with the clock"`
	Outside bool    `json:"outside,omitempty" doc:"the certificate of this node is not valid at its time, nor near it"`
	Left    float64 `json:"left_seconds" doc:"time until it is trusted again, if no peer agrees with it before"`
}

// A NoteCode names what a [Note] states.
type NoteCode string

// What blocks a peer.
const (
	NoteSelfRevoked       NoteCode = "self_revoked"        // this node was revoked: peer (empty: by the root), time
	NotePeerRevoked       NoteCode = "peer_revoked"        // its certificate was revoked: peer
	NotePeerBlocked       NoteCode = "peer_blocked"        // it is blocked here: peer
	NotePeerUnknown       NoteCode = "peer_unknown"        // it is not in the address book: peer
	NoteClocksDiffer      NoteCode = "clocks_differ"       // by the clock of one of the two nodes a certificate is over, or begins much later: peer, state (theirs, ours), seconds, detail
	NoteRefusedByPeer     NoteCode = "refused_by_peer"     // the peer refused this node: peer, self, seconds, detail
	NoteRefusedHere       NoteCode = "refused_here"        // this node refused the peer: peer, seconds, detail
	NoteIsolated          NoteCode = "isolated"            // this node receives nothing from any member, or does not answer: names (members that report that)
	NoteNoAddress         NoteCode = "no_address"          // no address is known: peer
	NotePeerLeft          NoteCode = "peer_left"           // it was stopped: peer, seconds
	NotePeerLost          NoteCode = "peer_lost"           // it is suspect or dead according to gossip: peer, state, seconds, dial
	NoteRelaysAway        NoteCode = "relays_away"         // none of its relays is connected here: peer, names, dial
	NoteRelaysFail        NoteCode = "relays_fail"         // it cannot be reached directly nor through its relays: peer, names, dial
	NoteDialing           NoteCode = "dialing"             // no dial has failed yet: peer, dial
	NoteNoAnswer          NoteCode = "no_answer"           // none of its addresses answers: peer, count, dial
	NoteHanging           NoteCode = "connection_hangs"    // lost according to gossip, though a connection is open: peer, state, seconds, dial
	NotePeerConnected     NoteCode = "peer_connected"      // nothing blocks it: path, seconds since it was last seen
	NoteCertExpired       NoteCode = "certificate_expired" // an admin renews it: peer
	NoteCertExpiredBeyond NoteCode = "certificate_over"    // it expired too long ago to be renewed: peer
)

// What blocks a task at the node that sent it.
const (
	NoteEnded          NoteCode = "ended"           // it has ended: state, cause, refusal, detail
	NoteEnding         NoteCode = "ending"          // its end is being stored
	NoteRunsThere      NoteCode = "runs_there"      // the peer has it and runs it when it can: peer, task
	NoteGrantsThere    NoteCode = "grants_there"    // the home of its queue has it and grants it: peer, queue, task
	NoteStartedThere   NoteCode = "started_there"   // a node runs it, as it or the home of its queue reported: peer, task
	NoteForgottenThere NoteCode = "forgotten_there" // at_most_once, and the peer no longer knows it: peer, task
	NoteRecordDamaged  NoteCode = "record_damaged"  // its newest record here was damaged, and it may have run there: peer, task
	NoteBehind         NoteCode = "behind"          // an earlier task has the same ordering key: task; state: DEAD_LETTER if a person must retry or delete that one
	NoteRefused        NoteCode = "refused"         // the peer refused it: peer, self, kind, refusal, detail
	NoteRefusedProgram NoteCode = "refused_program" // the peer cannot start the program of its handler: peer, refusal, detail
	NoteRefusedClock   NoteCode = "refused_clock"   // for the peer, it comes from the future: peer, refusal, detail
	NoteStreamOpening  NoteCode = "stream_opening"  // the task stream is being opened: peer
	NoteNotDue         NoteCode = "not_due"         // its time has not come: time
	NoteUnacknowledged NoteCode = "unacknowledged"  // it was sent: peer
	NoteSentNext       NoteCode = "sent_next"       // it is among the next to be sent
	NoteTransferring   NoteCode = "transferring"    // a body is being transferred: transfer
	NoteResultRefused  NoteCode = "result_refused"  // its home permanently refused its result: peer, task, state, cause, refusal, detail
	NoteResultExpired  NoteCode = "result_expired"  // its home did not take its result in time: peer, task, state, cause, refusal, detail
)

// What blocks a task at the node that runs it.
const (
	NoteEndedHere      NoteCode = "ended_here"       // its result is being sent to its home or is there
	NoteHandlerGone    NoteCode = "handler_gone"     // the handler is no longer registered: kind, peer (its origin)
	NoteProgramMissing NoteCode = "program_missing"  // its handler cannot be started: detail
	NoteUnwritten      NoteCode = "end_not_stored"   // its handler has ended, but its end cannot be stored: detail
	NoteRuns           NoteCode = "running"          // it runs
	NoteHomeClock      NoteCode = "home_clock"       // the clock of its home, which alone tells how much of its time is left, is awaited: peer (the home)
	NoteRetryWaits     NoteCode = "retry_waits"      // the last attempt failed: cause, detail
	NoteSlotsBusy      NoteCode = "slots_busy"       // all slots of this node are busy: count, of
	NoteKindBusy       NoteCode = "kind_busy"        // it waits for a slot of its kind
	NoteRunsUnleased   NoteCode = "runs_unleased"    // its handler is running, and its lease could not be renewed: peer (the home)
	NoteFetchingBody   NoteCode = "fetching_body"    // its large body is being transferred: peer
	NoteWaitsForSlot   NoteCode = "waits_for_slot"   // all slots are busy: count, of
	NoteHomeForgot     NoteCode = "home_forgot"      // its result is stored here, but its home does not know it: peer
	NoteResultHomeLost NoteCode = "result_home_lost" // its result is stored here for its home, which is lost: peer
	NoteResultSent     NoteCode = "result_sent"      // its home has not answered yet: peer
)

// What blocks a queue, or a task of one.
const (
	NoteQueueHomeLost  NoteCode = "queue_home_lost"   // the home is lost: queue, peer, state (DEAD, LEFT, REVOKED; UNKNOWN: nothing has been received about it since this node started, or it has been dead for longer than mesh.prune_age), seconds, count (tasks of this node that wait), held
	NoteOldHomeLost    NoteCode = "old_home_lost"     // it was sent to a former home that is lost: queue, peer, other (the home now), task
	NoteOldHomeKeepsIt NoteCode = "old_home_keeps_it" // the same, and this node is the home now: queue, peer, other
	NoteQueuePaused    NoteCode = "queue_paused"      // queue, peer (its home; empty: this node)
	NoteAskHome        NoteCode = "ask_home"          // only its home knows which tasks wait: queue, peer
	NoteSelfPaused     NoteCode = "self_paused"       // this node considers itself isolated and grants only to itself: names, or, if its probes fail, count (its local health), of
	NoteNothingWaits   NoteCode = "nothing_waits"     // no task of the queue waits
	NoteNoWorker       NoteCode = "no_worker"         // no live member works on it: queue
	NoteQueueBusy      NoteCode = "queue_busy"        // its members are busy or serve other kinds, or a limit is reached: queue
	NoteMoveRefused    NoteCode = "move_refused"      // its queue moved, and the new home refuses the task: peer, refusal, detail
	NoteMoveWaits      NoteCode = "move_waits"        // its queue moved, and the new home is not connected: peer
	NoteMoving         NoteCode = "moving"            // its queue moved, and the task is following: peer
	NoteMoved          NoteCode = "moved"             // it moved with its queue: peer, task
	NoteLeased         NoteCode = "leased"            // its result has not arrived yet: peer, task
	NoteMayRun         NoteCode = "may_run"           // it may have started, must not start twice, and its owner does not answer: peer
	NoteLaneBlocked    NoteCode = "lane_blocked"      // an earlier task with its ordering key is a dead letter: queue, key
	NoteLaneWaits      NoteCode = "lane_waits"        // an earlier task with its ordering key has not ended
	NoteKindUnserved   NoteCode = "kind_unserved"     // no live member serves its kind: kind, names (required labels)
	NoteMembersRefused NoteCode = "members_refused"   // members refused it recently: count, of, detail
	NoteMembersBusy    NoteCode = "members_busy"      // all members that serve its kind are busy, or a limit is reached: queue, of
	NoteGrantedNext    NoteCode = "granted_next"      // it is among the next to be granted
)

// What blocks a mail, or the mail of a box. "Here" is the node that was asked.
const (
	NoteMailRefused    NoteCode = "mail_refused"     // the home of its box refuses it for now: box, peer (the home), self, refusal, detail, seconds
	NoteMailSent       NoteCode = "mail_sent"        // it is on its way, and the home has not answered yet: box, peer (the home)
	NoteMailTaken      NoteCode = "mail_taken"       // the home of its box has it: box, peer (the home), task (its id), seconds
	NoteMailTurnedAway NoteCode = "mail_turned_away" // a box here refused it: box, peer (its sender), task (its id), detail, seconds
	NoteMailEnded      NoteCode = "mail_ended"       // it has ended here: box, state, detail, seconds
	NoteMailDead       NoteCode = "mail_dead"        // it is a dead letter: box, state (the cause), detail, seconds, count (1: it was sent again as a new mail)
	NoteMailLeased     NoteCode = "mail_leased"      // a reader has it: box, names (the reader)
	NoteMailPaused     NoteCode = "mail_paused"      // deliveries are paused: box
	NoteMailBlocked    NoteCode = "mail_blocked"     // a dead letter with its ordering key blocks it: box, key
	NoteMailBehind     NoteCode = "mail_behind"      // an earlier mail with its ordering key has not ended: box, key, task (that mail)
	NoteMailRetries    NoteCode = "mail_retries"     // a delivery failed, and it waits for the next one: box, state (the cause), detail, names (the reader)
	NoteNoReader       NoteCode = "no_reader"        // nobody reads the box: box
	NoteHandlerStopped NoteCode = "handler_stopped"  // the handler of the box does not run: box, cause (what keeps it from working), other, names, refusal, detail
	NoteForwardStopped NoteCode = "forward_stopped"  // the subscription does not deliver into its box now: box, cause (what keeps it from working), other, names, refusal, detail
	NoteReadersBusy    NoteCode = "readers_busy"     // its readers take no more until they settle what they have: box, count (readers)
	NoteReadersLeft    NoteCode = "readers_left"     // its readers have leased mail and asked for no more: box, count (readers)
	NoteMailNext       NoteCode = "mail_next"        // it is among the next to be delivered: box
	NoteKeysBlocked    NoteCode = "keys_blocked"     // dead letters block ordering keys: box, count (keys)
	NoteBoxDelivers    NoteCode = "box_delivers"     // its readers are given what is ready: box, count (readers)
	NoteBoxDraining    NoteCode = "box_draining"     // the box takes no new mail for now: box
	NoteBoxFull        NoteCode = "box_full"         // mail to it waits at its senders: box, count, of, detail (code of what blocks its deliveries, if anything does)
	NoteBoxElsewhere   NoteCode = "box_elsewhere"    // its home is another node, and nothing waits for it here: box, peer (the home)
	NoteBoxHomeLost    NoteCode = "box_home_lost"    // the home of a box of the mesh is lost, and mail for it waits: box, peer, state (as of queue_home_lost), seconds
)

// What was checked, in the steps of an explanation.
const (
	StepRecord        NoteCode = "record"            // the record of a task: state, attempts, time (its expiry)
	StepAcceptedThere NoteCode = "accepted_there"    // peer
	StepAcceptedHere  NoteCode = "accepted_here"     // state, attempts
	StepResultFor     NoteCode = "result_for"        // it ended here; its result is for peer
	StepSelf          NoteCode = "addressed_to_self" // it is addressed to this node
	StepConnected     NoteCode = "connected"         // peer, other (the relay)
	StepLastAnswer    NoteCode = "last_answer"       // refusal, detail, seconds
	StepOutbox        NoteCode = "outbox"            // entries that wait for the peer: count
	StepAddresses     NoteCode = "addresses"         // known addresses: count
	StepRelays        NoteCode = "relays"            // names, count (those that are connected here)
	StepMember        NoteCode = "member"            // state, time
	StepDialsFailed   NoteCode = "dials_failed"      // dial
	StepConnFailed    NoteCode = "connection_failed" // dial
	StepQueueHome     NoteCode = "queue_home"        // queue, peer, generation
	StepQueueTasks    NoteCode = "queue_tasks"       // count (waiting), held (granted)
	StepQueueTask     NoteCode = "queue_task"        // queue, state, attempts, abandons
	StepGranted       NoteCode = "granted"           // epoch, peer
	StepHandoff       NoteCode = "handoff"           // peer
	StepStarted       NoteCode = "started"           // peer
	StepLeaseHere     NoteCode = "lease_here"        // epoch, attempts
	StepMail          NoteCode = "mail"              // box, state, key, attempts, abandons, seconds (since it came here), time (its expiry)
	StepSpool         NoteCode = "spool"             // what waits here for a box on another node: box, peer, count, seconds (the oldest)
	StepBox           NoteCode = "box"               // box, peer (its home), generation
	StepBoxMails      NoteCode = "box_mails"         // box, count, of (the limit), seconds (the oldest)
	StepBoxClasses    NoteCode = "box_classes"       // what waits for a subscription: box, count, names (number and name of each class)
	StepBoxReaders    NoteCode = "box_readers"       // box, names, count, held (leased mails)
	StepBoxBlocked    NoteCode = "box_blocked"       // ordering keys that dead letters block: box, count, of (dead letters)
	StepBoxRestored   NoteCode = "box_restored"      // its node was restored from an older copy: the mail may have been read since that was made: box, time
	StepBoxRefused    NoteCode = "box_refused"       // mail of another node that the box refused: box, peer, detail, seconds
)

// Why a path to a peer is in use, or why there is none.
const (
	PathFailed     NoteCode = "path_failed"      // there is none: detail (why the latest connection or dial failed)
	PathUntried    NoteCode = "path_untried"     // there is none, and none was tried
	PathNewest     NoteCode = "path_newest"      // it is the newest of several, and direct
	PathOnly       NoteCode = "path_only"        // it is the only one, and direct
	PathRelayed    NoteCode = "path_relayed"     // no direct one has been tried
	PathNotPunched NoteCode = "path_not_punched" // the latest attempt at a direct one failed: time, detail
)

// What keeps a handler, a mailbox, a subscription or a schedule from working.
const (
	ProblemProgram         NoteCode = "no_program"       // its program is not there, or cannot be run: detail
	ProblemRunAs           NoteCode = "run_as_refused"   // this node cannot run its program as its user: detail
	ProblemHandler         NoteCode = "handler_refused"  // this node does not take its description, or not any more: detail
	ProblemUnready         NoteCode = "not_started"      // it cannot be called now: detail
	ProblemForwardUnknown  NoteCode = "forward_unknown"  // the name of the box to which it forwards means nothing here: other (the box), detail
	ProblemForwardMissing  NoteCode = "forward_missing"  // the box to which it forwards is not on this node: other (the box)
	ProblemForwardRefused  NoteCode = "forward_refused"  // the box to which it forwards takes nothing now: other (the box), refusal, detail
	ProblemForwardFailed   NoteCode = "forward_failed"   // forwarding failed, and is tried again: other (the box), refusal, detail
	ProblemHeld            NoteCode = "box_held"         // it has one reader at a time, and another one reads it: names (the reader)
	ProblemUnread          NoteCode = "box_unread"       // its mail cannot be read now: refusal, detail
	ProblemTaskRefused     NoteCode = "task_refused"     // the newest task could not be created, and its time was skipped: detail
	ProblemScheduleRetried NoteCode = "schedule_retried" // it could not be processed, and is tried again: detail
)

// What is wrong with a receipt, or why there is none.
const (
	ReceiptUnreadable  NoteCode = "receipt_unreadable"    // its proof cannot be read: detail
	ReceiptUnsigned    NoteCode = "receipt_unsigned"      // the node that it names has not signed it
	ReceiptOtherNode   NoteCode = "receipt_other_node"    // its proof is of another node: peer (its id)
	ReceiptOtherFact   NoteCode = "receipt_other_fact"    // its proof is of another fact: detail
	ReceiptOtherTask   NoteCode = "receipt_other_subject" // its proof is about another task, or another mail: task (its id), box (of a mail)
	ReceiptOtherLetter NoteCode = "receipt_other_letter"  // its proof is about another letter: detail (its digest)
	ReceiptNone        NoteCode = "receipt_none"          // the node signed nothing: it does not know any more which letter it took, or its version signs nothing
)

// What may be a mistake in a ticket or in a handler.
const (
	NoteNameKnown    NoteCode = "name_known"    // a ticket admits only the known node with that name: peer
	NoteRoleUnused   NoteCode = "role_unused"   // no member has a role: detail (the role), names (the roles that the mesh itself uses)
	NoteMemberAbsent NoteCode = "member_absent" // no member has a name of the allow list: peer
	NoteRunsPrograms NoteCode = "runs_programs" // the program of a handler runs its arguments as a program: detail (the program)
	NoteRunsCode     NoteCode = "runs_code"     // it runs its arguments as code: detail (the program)
	NoteRiskyFlags   NoteCode = "risky_flags"   // it has flags that run programs or write files: detail (the program)
)

// What an operator should look at.
const (
	NoteClockDoubted   NoteCode = "clock_doubted"   // clock
	NotePeerClock      NoteCode = "peer_clock"      // the clock of the peer and this node's differ by 30 s or more: peer, seconds
	NoteOwnClock       NoteCode = "own_clock"       // this node's clock differs by 30 s or more from those of most connected peers: seconds (median), count, of
	NoteClockJumped    NoteCode = "clock_jumped"    // the clocks jumped, or this node was suspended: time
	NoteClockBehind    NoteCode = "clock_behind"    // this node became a member in the future of its clock: time, seconds
	NoteComparing      NoteCode = "comparing"       // it was restored from a snapshot and admits only admins until it has compared revocations
	NoteDrained        NoteCode = "drained"         // it gets no new work from shared queues
	NoteStopping       NoteCode = "stopping"        // it stops: it takes no new work and waits for the end of what runs
	NoteStoreFailed    NoteCode = "store_failed"    // the store is being reopened: detail
	NoteCompactFails   NoteCode = "compact_fails"   // the store could not be compacted again and again: count, detail
	NoteDiskFull       NoteCode = "disk_full"       // the disk is below its reserve: new work is refused
	NoteMemoryFull     NoteCode = "memory_full"     // the store uses all the memory it may: new work is refused
	NoteHandlerProblem NoteCode = "handler_problem" // a handler cannot be started, or is not offered: kind, cause (what keeps it from working), detail
	NoteLeaseRisk      NoteCode = "lease_risk"      // a member that may be lost owns tasks of queues whose home is here: peer, state, count, held (those that must not start twice)
	NoteTasksWait      NoteCode = "tasks_wait"      // entries wait for a peer that is offline or dead: peer, state, count
	NoteResultsRefused NoteCode = "results_refused" // their homes refused results: count, and of the latest: peer, task, refusal, detail
	NoteBookFull       NoteCode = "book_full"       // the address book is full, and new peers are refused: count
	NoteDeadLetters    NoteCode = "dead_letters"    // count
	NoteDeadMail       NoteCode = "dead_mail"       // dead letters of mailboxes and subscriptions: count, names (of some of those)
	NoteOwnCertificate NoteCode = "own_certificate" // the certificate of this node expires soon: time
	NoteProbesFail     NoteCode = "probes_fail"     // this node claims nothing new from shared queues: count (its local health), of
	NoteMembersDead    NoteCode = "members_dead"    // count, names
	NotePartition      NoteCode = "partition"       // half of the members or more are dead: count, of
)

// What is known about the network of a node.
const (
	NoteNoPeer         NoteCode = "no_peer"          // no peer is known yet
	NoteNoneConnected  NoteCode = "none_connected"   // no peer is connected
	NoteNoQUIC         NoteCode = "no_quic"          // there is no direct QUIC connection
	NoteSymmetricNAT   NoteCode = "symmetric_nat"    // hole punching mostly fails behind it
	NoteReservesNone   NoteCode = "reserves_none"    // net.relays is 0
	NoteNoRelay        NoteCode = "no_relay"         // no other member is a relay
	NoteNoReservation  NoteCode = "no_reservation"   // members are relays, but none has a reservation of this node: count
	NoteHashTableEmpty NoteCode = "hash_table_empty" // no connected member takes part in the hash table
)
