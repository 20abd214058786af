package prose

import (
	"fmt"
	"strings"

	"github.com/balefire/balefire/wire"
)

// A sentence returns the text of a note and what to do about it, with placeholders for the
// arguments.
type sentence func(a wire.NoteArgs) (text, fix string)

// say is a sentence that is always the same.
func say(text, fix string) sentence {
	return func(wire.NoteArgs) (string, string) { return text, fix }
}

const (
	lookAt   = "start {peer} or check the network in between; the {what} is safe and will be sent automatically"
	askThere = "on {peer}: balefire-node why {task}"
)

// table has the sentence of each code.
var table = map[wire.NoteCode]sentence{
	wire.NoteSelfRevoked: func(a wire.NoteArgs) (string, string) {
		by := "the mesh's root"
		if a.Peer != "" {
			by = "{peer}"
		}
		return "this node was revoked by " + by + " on {date}: it no longer sends or accepts anything", "get a ticket and join with a new key: balefire-node join TICKET --dir NEW-FOLDER"
	},
	wire.NotePeerRevoked: say("{peer} is no longer a member: its certificate was revoked", "invite it again, with a new key"),
	wire.NotePeerBlocked: say("{peer} is blocked here", "balefire-node peers unblock {peer}"),
	wire.NotePeerUnknown: say("{peer} is not in the address book", "pair with it again: invite and join"),
	wire.NoteClocksDiffer: func(a wire.NoteArgs) (string, string) {
		how := "this node refused {peer}"
		if a.State == "theirs" {
			how = "{peer} refused this node"
		}
		return "the clocks of this machine and of {peer} differ too much: " + how + " {ago} ago: {detail}", "compare the clocks of both machines (date) and correct the wrong one"
	},
	wire.NoteRefusedByPeer: say("{peer} refused this node {ago} ago: {detail}", "on {peer}: balefire-node peers show {self}"),
	wire.NoteRefusedHere:   say("this node refused {peer} {ago} ago: {detail}", "fix the stated problem on {peer}"),
	wire.NoteIsolated: func(a wire.NoteArgs) (string, string) {
		return "this node is isolated: it " + isolation(a), "balefire-node netcheck"
	},
	wire.NoteNoAddress:  say("no address of {peer} is known", "start it: it announces its addresses when it connects"),
	wire.NotePeerLeft:   say("{peer} cannot be reached: it was stopped {ago} ago", "start {peer}; the {what} is safe and will be sent automatically"),
	wire.NotePeerLost:   say("{peer} cannot be reached: it has been {state} for {ago} according to gossip; {dial}", lookAt),
	wire.NoteRelaysAway: say("{peer} cannot be reached: none of its relays ({names}) is connected here; {dial}", "balefire-node path {first}"),
	wire.NoteRelaysFail: say("{peer} cannot be reached: neither directly nor through its relays ({names}); {dial}", "balefire-node path {peer}"),
	wire.NoteDialing:    say("{peer} cannot be reached: {dial}", ""),
	wire.NoteNoAnswer:   say("{peer} cannot be reached at any of its {count} addresses; {dial}", lookAt),
	wire.NoteHanging: say("{peer} has been {state} for {ago} according to gossip; a connection is still open, and its last byte arrived {idle} ago",
		"start {peer} or check the network in between; it is dialed again as soon as the connection is given up"),
	wire.NotePeerConnected:     say("nothing: it is connected by {path} and was last seen {ago} ago", ""),
	wire.NoteCertExpired:       say("the certificate of {peer} has expired", "start a node with the role admin, which renews it"),
	wire.NoteCertExpiredBeyond: say("the certificate of {peer} has expired", "invite it again"),

	wire.NoteEnded: func(a wire.NoteArgs) (text, fix string) {
		text = "it has ended: {state}"
		if a.Cause+a.Detail != "" {
			text = "it has ended: {cause}"
		}
		switch a.State {
		case "DEAD_LETTER", "FAILED", "TIMEOUT":
			fix = "fix the cause, then: balefire-node task retry ID"
		}
		return text, fix
	},
	wire.NoteEnding:         say("its end is being stored", ""),
	wire.NoteRunsThere:      say("{peer} has it and runs it when it can; its result has not arrived yet", askThere),
	wire.NoteGrantsThere:    say("{peer} has it and grants it to a free node, as the home of queue {queue}; its result has not arrived yet", askThere),
	wire.NoteStartedThere:   say("{peer} runs it; its result has not arrived yet", askThere),
	wire.NoteRecordDamaged:  say("its newest record on this node was damaged, so it is not sent again: it may have run on {peer}, and a late result still counts", "check on {peer} whether it ran; balefire-node task cancel {task}, and task retry if it did not"),
	wire.NoteForgottenThere: say("{peer} had accepted it and no longer knows it: it may have run there, and its mode is at_most_once", "check whether it ran; balefire-node task cancel {task}, and task retry if it did not"),
	wire.NoteBehind: func(a wire.NoteArgs) (text, fix string) {
		if a.State != "" {
			return "it waits behind {task}, a dead letter with the same ordering key, whose on_dead is block", "fix the cause, then: balefire-node dlq retry {task}"
		}
		return "it waits behind {task}, which has the same ordering key", "balefire-node why {task}"
	},
	wire.NoteRefused: func(a wire.NoteArgs) (text, fix string) {
		switch a.Refusal {
		case "NO_HANDLER":
			fix = "on {peer}: balefire-node handler add {kind} --allow {self} -- PROGRAM"
		case "FULL":
			fix = "free disk space or finish work on {peer}"
		case "DRAINING":
			fix = "it is sent automatically when {peer} has restarted"
		}
		return "{peer} refused it: {refusal} ({detail})", fix
	},
	wire.NoteRefusedProgram: say("{peer} refused it: {refusal} ({detail})", "install the program on {peer}, or correct the handler there"),
	wire.NoteRefusedClock:   say("{peer} refused it: {refusal} ({detail})", "correct the clocks of this machine and of {peer}"),
	wire.NoteStreamOpening:  say("the task stream to {peer} is being opened", "balefire-node path {peer}"),
	wire.NoteNotDue:         say("it is not due yet", ""),
	wire.NoteUnacknowledged: say("it was sent to {peer} and is not acknowledged yet", ""),
	wire.NoteSentNext:       say("it is sent next", ""),
	wire.NoteTransferring:   say("{transfer}", ""),
	wire.NoteResultExpired:  say("{peer} did not take its result in time: {cause}", "check the task on {peer}: balefire-node why {task}"),
	wire.NoteResultRefused:  say("{peer} permanently refused its result: {refusal} ({detail})", "check the task on {peer}: balefire-node why {task}"),

	wire.NoteEndedHere:      say("it has ended here; its result is being sent to its home or is there", ""),
	wire.NoteHandlerGone:    say("the handler for kind {kind} is no longer registered", "balefire-node handler add {kind} --allow {peer} -- PROGRAM"),
	wire.NoteProgramMissing: say("its handler cannot be started: {detail}", ""),
	wire.NoteUnwritten:      say("its handler has ended, but its end cannot be stored: {detail}", "free disk space on this machine"),
	wire.NoteRuns:           say("its handler is running", ""),
	wire.NoteHomeClock:      say("this machine was off, so its home {peer} must tell how much of its time is left: it waits for that for a minute after the start of the node, and for 24 hours of running if its time is over by the clock of this machine", "balefire-node path {peer}"),
	wire.NoteRetryWaits: func(a wire.NoteArgs) (string, string) {
		reason := "{cause}"
		if a.Cause+a.Detail == "" {
			reason = "no reason given"
		}
		return "the last attempt failed: " + reason + "; it waits for the next one", ""
	},
	wire.NoteSlotsBusy:      say("all {of} slots are busy", "wait, or raise limits.slots"),
	wire.NoteKindBusy:       say("it waits for a slot of its kind", ""),
	wire.NoteRunsUnleased:   say("its handler is running; its lease could not be renewed, so its result counts only if the task was not granted to another node", "balefire-node path {peer}"),
	wire.NoteFetchingBody:   say("its large body is being transferred from {peer}", "balefire-node path {peer}"),
	wire.NoteWaitsForSlot:   say("it waits for a slot: {count} of {of} are busy", ""),
	wire.NoteHomeForgot:     say("its result is stored here, but its home {peer} does not know the task: the home may have been restored from an older copy; the result is kept until a day after the task expires", ""),
	wire.NoteResultHomeLost: say("its result is stored here for {peer}, which is lost", "balefire-node peers show {peer}"),
	wire.NoteResultSent:     say("its result was sent to {peer}, which has not answered yet", ""),

	wire.NoteQueueHomeLost:  homeLost,
	wire.NoteOldHomeLost:    say("it was sent to {peer}, which was the home of queue {queue} before {other} and is lost: {other} has it if it was handed over; otherwise it will follow when {peer} is back", "on {other}: balefire-node why {task}"),
	wire.NoteOldHomeKeepsIt: say("it was sent to {peer}, which was the home of queue {queue} before {other} and is lost: it was not handed over and will follow when {peer} is back", "start {peer} again"),
	wire.NoteQueuePaused: func(a wire.NoteArgs) (string, string) {
		if a.Peer != "" {
			return "it was paused by an operator", "on {peer}: balefire-node queue resume {queue}"
		}
		return "the queue is paused", "balefire-node queue resume {queue}"
	},
	wire.NoteAskHome: say("nothing known here: only its home knows which tasks wait", "on {peer}: balefire-node why queue:{queue}"),
	wire.NoteSelfPaused: func(a wire.NoteArgs) (string, string) {
		return "this node considers itself isolated: it " + isolation(a) + ", and grants only to itself", "balefire-node netcheck"
	},
	wire.NoteNothingWaits: say("nothing waits", ""),
	wire.NoteNoWorker:     say("no live member works on it", "balefire-node queue members {queue}"),
	wire.NoteQueueBusy:    say("its members are busy or serve other kinds, or a limit is reached", "balefire-node queue show {queue}, and balefire-node why TASK for one that waits"),
	wire.NoteMoveRefused: func(a wire.NoteArgs) (text, fix string) {
		text, fix = "its queue moved to {peer}, which refuses the task: {refusal}", "balefire-node path {peer}"
		if a.Detail != "" {
			text += ": {detail}"
		}
		if a.Refusal == "FULL" {
			fix = "free disk space or finish work on {peer}"
		}
		return text, fix
	},
	wire.NoteMoveWaits:   say("its queue moved to {peer}, which is not connected: the task follows when it is", "balefire-node path {peer}"),
	wire.NoteMoving:      say("its queue moved to {peer}, and the task is following", ""),
	wire.NoteMoved:       say("it moved to {peer} with its queue", askThere),
	wire.NoteLeased:      say("{peer} has the lease; its result has not arrived yet", askThere),
	wire.NoteMayRun:      say("{peer} may have started it, it must not start twice, and {peer} does not answer", ""),
	wire.NoteLaneBlocked: say("an earlier task with the same ordering key is a dead letter, and on_dead is block", "balefire-node queue unblock {queue} {key}"),
	wire.NoteLaneWaits:   say("an earlier task with the same ordering key has not ended", ""),
	wire.NoteKindUnserved: func(a wire.NoteArgs) (string, string) {
		text, fix := "no live member serves kind {kind}", "balefire-node handler add {kind} on a node that should"
		if len(a.Names) > 0 {
			text, fix = text+" and has the labels {names}", "set mesh.labels on a node that should, or "+fix
		}
		return text, fix
	},
	wire.NoteMembersRefused: func(a wire.NoteArgs) (string, string) {
		why := "{detail}"
		if a.Detail == "" {
			why = "no answer"
		}
		return "{count} of {of} members that serve its kind refused it recently: " + why, ""
	},
	wire.NoteMembersBusy: say("all {of} members that serve its kind are busy, or a limit of the queue is reached", "balefire-node queue show {queue}"),
	wire.NoteGrantedNext: say("it is granted next", ""),

	wire.NoteMailRefused: func(a wire.NoteArgs) (text, fix string) {
		switch a.Refusal {
		case "NO_HANDLER":
			fix = "on {peer}: balefire-node {add} --allow peer:{self}; if the name is wrong, send it again to the right one"
		case "FULL":
			fix = "on {peer}: balefire-node why {box}; its readers must make room, or raise its limits"
		case "DRAINING":
			fix = "on {peer}: let {box} take mail again, with --draining=false"
		}
		return "{peer} refused it {ago} ago: {refusal} ({detail}); it waits here", fix
	},
	wire.NoteMailSent:       say("it is on its way to {peer}, which has not answered yet", "balefire-node path {peer}"),
	wire.NoteMailTaken:      say("{peer} has had it for {ago}", askThere),
	wire.NoteMailTurnedAway: say("{box} refused it {ago} ago: {detail}", "on {peer}, which sent it: balefire-node why {task}"),
	wire.NoteMailEnded: func(a wire.NoteArgs) (string, string) {
		switch {
		case a.State == "DONE" && a.Seconds == 0:
			return "it was acknowledged", ""
		case a.State == "DONE":
			return "it was acknowledged {ago} ago", ""
		case a.Detail == "":
			return "it ended {ago} ago as {state}", ""
		}
		return "it ended {ago} ago as {state}: {detail}", ""
	},
	wire.NoteMailDead: func(a wire.NoteArgs) (text, fix string) {
		text, fix = "it has been a dead letter for {ago}: {state}", "fix the cause, then: balefire-node dlq retry --mailbox {box}"
		if a.Detail != "" {
			text += ": {detail}"
		}
		if a.Count > 0 {
			text, fix = text+"; it was sent again as a new mail", ""
		}
		return text, fix
	},
	wire.NoteMailLeased:  say("{reader} has it and has not acknowledged it yet; if its lease ends, it is delivered again", ""),
	wire.NoteMailPaused:  say("{box} is paused", "balefire-node {resume}"),
	wire.NoteMailBlocked: say("a dead letter with its ordering key blocks it, and on_dead is block", "balefire-node mailbox unblock {box} {key}"),
	wire.NoteMailBehind:  say("an earlier mail with its ordering key has not ended: {task}", "balefire-node why {task}"),
	wire.NoteMailRetries: func(a wire.NoteArgs) (string, string) {
		text := "its last delivery failed"
		if a.State != "" {
			text += ": {state}"
		}
		if a.Detail != "" {
			text += ": {detail}"
		}
		return text + "; it waits for the next one", ""
	},
	wire.NoteHandlerStopped: say("the handler of {box} does not run, and its mail waits: {problem}", "fix what it says, or change the handler: balefire-node mailbox set"),
	wire.NoteForwardStopped: say("{box} does not deliver into its box now, and its mail waits: {problem}", "fix what it says, or change the box: balefire-node sub set"),
	wire.NoteNoReader:       say("nobody reads {box}", "start its reader, or: balefire-node mail read {box}"),
	wire.NoteReadersBusy:    say("its {count|reader takes|readers take} no more until they settle what they have", "add a reader, or give each more credit"),
	wire.NoteReadersLeft:    say("{count|reader has|readers have} leased mail and asked for no more; the next one that reads is given mail", "balefire-node mail read {box}"),
	wire.NoteMailNext:       say("it is among the next to be delivered", ""),
	wire.NoteKeysBlocked:    say("dead letters block {count|ordering key|ordering keys}; what has no such key is delivered", "balefire-node dlq ls --mailbox {box}"),
	wire.NoteBoxDelivers:    say("nothing: {count|reader is|readers are} given what is ready", ""),
	wire.NoteBoxDraining:    say("{box} takes no new mail for now, which waits at its senders", "let it take mail again, with --draining=false"),
	wire.NoteBoxFull: func(a wire.NoteArgs) (string, string) {
		switch wire.NoteCode(a.Detail) {
		case wire.NoteNoReader:
			return "{box} is full, because nobody reads it: mail to it waits at its senders", "start its reader, or: balefire-node mail read {box}"
		case wire.NoteMailPaused:
			return "{box} is full, because it is paused: mail to it waits at its senders", "balefire-node {resume}"
		}
		return "{box} is full: mail to it waits at its senders", "add readers, purge some of its mail, or raise its limits"
	},
	wire.NoteBoxHomeLost:  boxHomeLost,
	wire.NoteBoxElsewhere: say("nothing waits here for it: only its home knows what waits there", "on {peer}: balefire-node why {box}"),

	wire.StepRecord:        say("record: {state}, attempts {attempts}, expires at {time}", ""),
	wire.StepAcceptedThere: say("accepted: {peer} has it (receipt accepted)", ""),
	wire.StepAcceptedHere:  say("accepted: here, {state}, attempts {attempts}", ""),
	wire.StepResultFor:     say("accepted: it ended here; its result is for {peer}", ""),
	wire.StepSelf:          say("peer: this node itself", ""),
	wire.StepConnected: func(a wire.NoteArgs) (string, string) {
		if a.Other != "" {
			return "path: connected with {peer} through the relay {other}", ""
		}
		return "path: connected with {peer}", ""
	},
	wire.StepLastAnswer:  say("last answer: {refusal} {detail}, {ago} ago", ""),
	wire.StepOutbox:      say("outbox: {count|entry waits|entries wait} for it", ""),
	wire.StepAddresses:   say("address: {count} known", ""),
	wire.StepRelays:      say("relays: {names}, of which {count} are connected here", ""),
	wire.StepMember:      say("member: {state} since {time}", ""),
	wire.StepDialsFailed: say("dial: {dials} failed in a row, the last {dialed} ago: {error}", ""),
	wire.StepConnFailed:  say("connection: it failed {dialed} ago: {error}", ""),
	wire.StepQueueHome: func(a wire.NoteArgs) (string, string) {
		text := "queue {queue}: home {peer}"
		if a.Generation > 0 {
			text += ", generation {generation}"
		}
		if a.State != "" {
			text += ", " + strings.ToLower(a.State)
		}
		return text, ""
	},
	wire.StepQueueTasks: say("tasks: {count} waiting, {held} granted", ""),
	wire.StepQueueTask:  say("queue {queue}: home here, state {state}, {attempts} attempts, {abandons} leases lost", ""),
	wire.StepGranted:    say("lease: epoch {epoch}, {peer}", ""),
	wire.StepHandoff:    say("handoff: moving to {peer}", ""),
	wire.StepStarted:    say("lease: {peer} has reported its start", ""),
	wire.StepMail: func(a wire.NoteArgs) (string, string) {
		text := "mail: {state} in {box} for {ago}, attempts {attempts}, abandons {abandons}, expires at {time}"
		if a.State == "PENDING" {
			text = "mail: {state} for {box} for {ago}, expires at {time}, or 5 minutes later if it was sent"
		}
		if a.Key != "" {
			text += ", key {key}"
		}
		return text, ""
	},
	wire.StepSpool: say("spool: {count|mail waits|mails wait} here for {box} on {peer}, the oldest for {ago}", ""),
	wire.StepBox:   say("box {box}: home {peer}", ""),
	wire.StepBoxMails: func(a wire.NoteArgs) (string, string) {
		if a.Count == 0 {
			return "mail: none waits, at most {of} may", ""
		}
		return "mail: {count} of at most {of}, the oldest for {ago}", ""
	},
	wire.StepBoxClasses: func(a wire.NoteArgs) (string, string) {
		if len(a.Names) == 0 {
			return "{box}: nothing waits", ""
		}
		return "{box}: {count|mail waits|mails wait}: {names}", ""
	},
	wire.StepBoxReaders: func(a wire.NoteArgs) (string, string) {
		if a.Count == 0 {
			return "{box}: no reader", ""
		}
		return "{box}: read by {readers}; {held|mail is|mails are} leased", ""
	},
	wire.StepBoxBlocked:  say("{box}: {of|dead letter|dead letters}, which block {count|ordering key|ordering keys}", ""),
	wire.StepBoxRestored: say("{box}: its node was restored from an older copy at {time}; mail from before may have been read, and have ended, since that copy was made", ""),
	wire.StepBoxRefused:  say("{box}: mail of {peer} was refused {ago} ago: {detail}", ""),
	wire.StepLeaseHere:   say("lease: epoch {epoch}, attempt {attempts}, held by this node", ""),

	wire.ProblemProgram:        say("its program cannot be run: {detail}", "install it, or correct exec of the handler"),
	wire.ProblemRunAs:          say("this node cannot run its program as its user: {detail}", ""),
	wire.ProblemHandler:        say("this node does not take it: {detail}", ""),
	wire.ProblemUnready:        say("it cannot be called now: {detail}", ""),
	wire.ProblemForwardUnknown: say("it forwards to {other}, which means nothing here: {detail}", ""),
	wire.ProblemForwardMissing: func(a wire.NoteArgs) (string, string) {
		return "it forwards to {other}, and there is no such box on this node", "balefire-node " + boxCommand("add", a.Other)
	},
	wire.ProblemForwardRefused:  say("it forwards to {other}, which takes nothing now: {refusal}: {detail}", ""),
	wire.ProblemForwardFailed:   say("forwarding to {other} failed, and is tried again: {detail}", ""),
	wire.ProblemHeld:            say("it has one reader at a time, and {reader} reads it", ""),
	wire.ProblemUnread:          say("its mail cannot be read now: {detail}", ""),
	wire.ProblemTaskRefused:     say("the newest task could not be created: {detail}", ""),
	wire.ProblemScheduleRetried: say("it could not be processed, and is tried again: {detail}", ""),

	wire.ReceiptUnreadable:  say("the proof cannot be read: {detail}", ""),
	wire.ReceiptUnsigned:    say("the node that it names has not signed it", ""),
	wire.ReceiptOtherNode:   say("the proof is of node {peer}", ""),
	wire.ReceiptOtherFact:   say("the proof is of the fact {detail}", ""),
	wire.ReceiptOtherTask:   say("the proof is about {what} {task}", ""),
	wire.ReceiptOtherLetter: say("the proof is about the letter {detail}", ""),
	wire.ReceiptNone:        say("its node has signed nothing: it does not know any more which letter it took, or its version signs nothing", ""),

	wire.NoteClockDoubted: say("{doubt}", "check the clock of this machine (date) and its time synchronization; nothing else is needed"),
	wire.NotePeerClock: func(a wire.NoteArgs) (string, string) {
		return "the clock of {peer} is " + aheadOf(a.Seconds) + " this node's", "compare the clocks of both machines (date) and correct the wrong one"
	},
	wire.NoteOwnClock: func(a wire.NoteArgs) (string, string) {
		return "the clock of this machine is " + aheadOf(a.Seconds) + " those of {count} of {of|connected peer|connected peers}", "check the clock of this machine (date) and its time synchronization"
	},
	wire.NoteClockJumped:    say("the clocks jumped, or this node was suspended, at {time}: no lease was revoked in that round", "check the machine's clock if this happens often"),
	wire.NoteClockBehind:    say("the clock of this machine is behind: this node became a member on {time}, which is {ago} ahead of it", "correct the clock"),
	wire.NoteComparing:      say("this node was restored from a snapshot: it admits only admins until it has compared revocations with one, or has met none for 5 minutes", ""),
	wire.NoteDrained:        say("this node is drained: it gets no new work from shared queues", "balefire-node drain --off"),
	wire.NoteStopping:       say("this node is stopping: it takes no new work and waits for the end of what runs", ""),
	wire.NoteStoreFailed:    say("the store has failed and is being reopened: {detail}", ""),
	wire.NoteCompactFails:   say("the space of deleted records does not return to the disk: the store could not be compacted {count} times in a row: {detail}", "if the disk is full, free the space that a second copy of its live records needs (balefire-node store stats), then: balefire-node store compact"),
	wire.NoteDiskFull:       say("new work is refused: the disk is below its reserve; results, ends and deletes still work", "free some space; balefire-node store stats shows how much"),
	wire.NoteMemoryFull:     say("new work is refused: the store uses all the memory it may", "let tasks end, give the node more (limits.memory_limit, or the limit of its container), or convert its store: balefire-node store migrate --to pebble"),
	wire.NoteHandlerProblem: say("handler {kind}: {problem}", ""),
	wire.NoteLeaseRisk: func(a wire.NoteArgs) (string, string) {
		text := "{peer}, which is {state}, has {count|task|tasks} of queues whose home is here: "
		if a.State == "SUSPECT" {
			text += "others get them once it is DEAD or their leases are over"
		} else {
			text += "they are being granted to others"
		}
		if a.Held > 0 {
			text += "; {held|may be started|may each be started} only once and may end INDETERMINATE"
		}
		return text, "balefire-node lease ls --role home; balefire-node mesh recover"
	},
	wire.NoteTasksWait: func(a wire.NoteArgs) (string, string) {
		return "{count|task or result waits|tasks and results wait} for {peer}, which is " + strings.ToLower(a.State), "balefire-node peers show {peer}"
	},
	wire.NoteResultsRefused: say("{count|result was refused by its home|results were refused by their homes}: {peer} answered {refusal}: {detail}", "balefire-node why {task}"),
	wire.NoteBookFull:       say("{count} peers are known, which is the limit: new ones are refused until some are forgotten; if you did not admit that many, revoke the admin who did", "balefire-node peers forget"),
	wire.NoteDeadLetters:    say("{count|dead letter|dead letters}", "balefire-node dlq ls"),
	wire.NoteDeadMail:       say("{count|mail is a dead letter|mails are dead letters} in {names}", "balefire-node dlq ls --mailbox {first}"),
	wire.NoteOwnCertificate: say("this node's certificate expires on {day}: it is renewed once the node connects to one with the role admin", ""),
	wire.NoteProbesFail:     say("this node's own probes fail (local health {count} of {of}): it claims nothing new from shared queues until they succeed", "balefire-node netcheck"),
	wire.NoteMembersDead: func(a wire.NoteArgs) (string, string) {
		named := strings.Join(a.Names[:min(len(a.Names), maxNamed)], ", ")
		if more := len(a.Names) - maxNamed; more > 0 {
			named += fmt.Sprintf(" and %d more", more)
		}
		return "{count|member is|members are} dead: " + named, "balefire-node why {first}"
	},
	wire.NotePartition: say("{count} of {of} members are dead: this node may be in the minority of a network partition", ""),

	wire.PathFailed:     say("not connected: {detail}", ""),
	wire.PathUntried:    say("not connected, and not tried yet", ""),
	wire.PathNewest:     say("a direct path is preferred: the newest live one", ""),
	wire.PathOnly:       say("the only path, and direct", ""),
	wire.PathRelayed:    say("through a relay: no direct path has been tried yet", ""),
	wire.PathNotPunched: say("through a relay: the last attempt at a direct path, at {time}, failed: {detail}", ""),

	wire.NoteNameKnown: say("{peer} is the name of a known node: this ticket admits only that node", "for another machine choose another --name"),
	wire.NoteRoleUnused: func(a wire.NoteArgs) (text, fix string) {
		if text = "no member has the role {detail}"; len(a.Names) > 0 {
			text += "; the mesh itself uses {names}, any other role counts only in allow lists"
		}
		return text, ""
	},
	wire.NoteMemberAbsent: say("no member is named {peer}", ""),
	wire.NoteRunsPrograms: say("{detail} runs its arguments as a program: whoever may ask for this kind can run anything as this node's user", ""),
	wire.NoteRunsCode:     say("{detail} runs its arguments as code: whoever may ask for this kind can run anything as this node's user", "name the script in exec"),
	wire.NoteRiskyFlags:   say("{detail} has flags that run programs or write files: whoever may ask for this kind can run anything as this node's user", "leave --allow-flags out"),

	wire.NoteNoPeer:         say("no peer is known yet", "create a ticket for one with balefire-node invite"),
	wire.NoteNoneConnected:  say("no peer is connected", "check this machine's network; balefire-node peers shows why each dial failed"),
	wire.NoteNoQUIC:         say("there is no direct QUIC connection: UDP may be blocked, or all peers are on the LAN, where TCP is preferred", ""),
	wire.NoteSymmetricNAT:   say("this node is behind a symmetric NAT: hole punching mostly fails, so peers reach it through relays", "a forwarded port (net.announce) or net.port_map would allow direct connections"),
	wire.NoteReservesNone:   say("net.relays is 0: behind a NAT, no peer can open a connection to this node", ""),
	wire.NoteNoRelay:        say("no other member is a relay", "give a reachable one the role relay, so that nodes behind NATs can be reached"),
	wire.NoteNoReservation:  say("{count} members are relays, but this node has no reservation at any: peers behind a NAT cannot open a connection to it", ""),
	wire.NoteHashTableEmpty: say("the hash table is empty: no connected member takes part in it (net.dht)", ""),
}

// maxNamed limits how many members are named in one line.
const maxNamed = 5

// isolation explains why a node considers itself isolated.
func isolation(a wire.NoteArgs) string {
	switch {
	case a.Of > 0:
		return "gets no answer to many of its probes (local health {count} of {of})"
	case len(a.Names) > 0:
		return "does not answer according to " + strings.Join(a.Names, " and ")
	}
	return "receives nothing from any member"
}

// lostHome says how a home was lost.
func lostHome(a wire.NoteArgs) string {
	verb := map[string]string{"DEAD": "has been dead", "LEFT": "has left", "UNKNOWN": "has been silent", "REVOKED": "has been revoked"}[a.State]
	if a.Seconds > 0 {
		if verb += " for {ago}"; a.State == "LEFT" {
			verb = "left {ago} ago"
		}
	}
	return "its home {peer} " + verb
}

// boxHomeLost describes a mailbox or a topic of the mesh whose home is lost.
func boxHomeLost(a wire.NoteArgs) (text, fix string) {
	allow := ""
	if !strings.HasPrefix(a.Box, "topic:") {
		allow = " --allow '*'"
	}
	return "{box}: " + lostHome(a) + ", so it takes no mail", "start {peer} again: then nothing is lost; if it is lost permanently, run on the node that should become the home, an admin: balefire-node {set} --seize --from {peer} --accept-loss" + allow
}

// homeLost describes the alarm of a queue.
func homeLost(a wire.NoteArgs) (text, fix string) {
	text = "queue {queue}: " + lostHome(a) + ", so none of its tasks is granted"
	if a.Count > 0 {
		text += "; {count|task of this node waits|tasks of this node wait} for {peer}"
	}
	if a.Held > 0 {
		text += "; {held} run here or have results waiting here for it"
	}
	return text, "start {peer} again: then nothing is lost; if it is lost permanently, run on the node that should become the home: balefire-node queue seize {queue} --from {peer} --accept-loss"
}
