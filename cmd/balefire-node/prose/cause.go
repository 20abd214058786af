package prose

import (
	"cmp"
	"slices"
	"strings"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A causeText states the cause of a change of a task. With a detail it is said in another way,
// or, if that is empty, the detail is added to it.
type causeText struct{ alone, with string }

// causes has the text of each cause.
var causes = map[proto.TaskCause]causeText{
	proto.TaskSubmitted:          {"submitted", ""},
	proto.TaskAcceptedBefore:     {"already known at the target", ""},
	proto.TaskRefused:            {"refused by the target", ""},
	proto.TaskTimesCorrected:     {"times corrected: the clock of this node was wrong when it was created", ""},
	proto.TaskSignedAgain:        {"signed again with correct times: the clock of this node was wrong when it was created", ""},
	proto.TaskForgotten:          {"forgotten: its target no longer knows it", ""},
	proto.TaskForgottenOnce:      {"indeterminate: its target no longer knows it and may have run it, and its mode is at_most_once", ""},
	proto.TaskOrphan:             {"received a result that does not count", ""},
	proto.TaskCommitted:          {"result committed", ""},
	proto.TaskCancelledUnsent:    {"cancelled before it was sent", ""},
	proto.TaskCancelAsked:        {"asked to stop", ""},
	proto.TaskExpired:            {"expired; it was not delivered, or not answered", "expired; the last attempt failed: {detail}"},
	proto.TaskExpiredAccepted:    {"expired, and so has its longest run; its target had accepted it, but no result arrived", ""},
	proto.TaskExpiredStarted:     {"expired, and so has its longest run; its target had started it, but no result arrived", ""},
	proto.TaskExpiredUnreached:   {"expired; its home was not reached", ""},
	proto.TaskResultTooLarge:     {"its target sent too large a result", ""},
	proto.TaskResultWaits:        {"it has ended here; its result is on its way to its home", ""},
	proto.TaskGranted:            {"granted", "granted to {detail}"},
	proto.TaskRestarted:          {"restarted after an unclean stop", ""},
	proto.TaskFailed:             {"the handler failed", "{detail}"},
	proto.TaskRejected:           {"the handler rejected the task", "{detail}"},
	proto.TaskTimedOut:           {"the attempt ran out of time", "{detail}"},
	proto.TaskUnready:            {"nothing could be started", "{detail}"},
	proto.TaskOutputCut:          {"the output was cut off", "{detail}"},
	proto.TaskNoRoom:             {"there was no room for its output", "{detail}"},
	proto.TaskNoRoomOnce:         {"indeterminate: its mode is at_most_once, and it was stopped: there was no room for its output", "indeterminate: its mode is at_most_once, and it was stopped: {detail}"},
	proto.TaskNoRoomOften:        {"abandoned too often: there was no room for its output", "abandoned too often: {detail}"},
	proto.TaskUnusable:           {"it is not what its origin signed", "{detail}"},
	proto.TaskStopped:            {"the node stopped while it ran", ""},
	proto.TaskStoppedOnce:        {"indeterminate: the node stopped while it ran, and its mode is at_most_once", ""},
	proto.TaskCrashed:            {"the process died while it ran", ""},
	proto.TaskCrashedOften:       {"the process died each time it ran", ""},
	proto.TaskCrashedOnce:        {"indeterminate: the process died while it ran, and its mode is at_most_once", ""},
	proto.TaskCrashedParked:      {"indeterminate: the process died while it ran, and its handler leaves that to a person", "indeterminate: the process died while it ran, and on_crash is {detail}"},
	proto.TaskCrashedUnasked:     {"indeterminate: the process died while it ran, and its handler is gone or cannot be asked", ""},
	proto.TaskProbed:             {"the process died while it ran, and its handler says that it was done", ""},
	proto.TaskRestored:           {"indeterminate: its node was restored from an older copy, and may have run the task before", ""},
	proto.TaskTooLate:            {"its time had passed before it could start", "its time had passed before it could start; last: {detail}"},
	proto.TaskNotAllowed:         {"denied: the handler's allow list no longer names the origin", ""},
	proto.TaskCancelledUnarrived: {"cancelled before it arrived", ""},
	proto.TaskCancelledUnstarted: {"cancelled before it started", ""},
	proto.TaskCancelledBetween:   {"cancelled between two starts", ""},
	proto.TaskCancelledRunning:   {"cancelled while it ran", ""},
	proto.TaskSucceededBefore:    {"not run: a task with the same idempotency key succeeded", "not run: task {detail}, which has its result, had the same idempotency key and succeeded"},
	proto.TaskResultLost:         {"its result could not be kept", ""},
	proto.TaskResultLostAtHome:   {"its result was lost at the home of its queue", "it ended as {detail}, and its result was lost at the home of its queue"},
	proto.TaskMoved:              {"not dead: it moved with its queue", "not dead: it moved, with its queue, to {detail}"},
	proto.TaskAttemptsUsed:       {"attempts used up", ""},
	proto.TaskAbandonedOften:     {"abandoned too often: its nodes died, or lost it, each time", "abandoned too often: {detail}"},
	proto.TaskAbandonedOnce:      {"indeterminate: its mode is at_most_once, and its run did not end", ""},
	proto.TaskOwnerLost:          {"its time has passed, and its owner was lost", "its time has passed, and its owner was lost; last: {detail}"},
	proto.TaskOwnerLostOnce:      {"indeterminate: its owner was lost while it ran, and its mode is at_most_once", ""},
	proto.TaskHomeRestoredOnce:   {"indeterminate: the home of its queue was restored from an older copy, and its mode is at_most_once", ""},
	proto.TaskRecordDamaged:      {"indeterminate: its newest record on this node was damaged, and it may have run", ""},
	proto.TaskResultDamaged:      {"its result was damaged: it does not match its digest", ""},
	proto.TaskCancelledLost:      {"cancelled; its owner was lost", ""},
	proto.TaskResultUnsealed:     {"its result could not be sealed for its home", "it ended as {detail}, and its result could not be sealed for its home"},
}

// causeNames finds a cause by its name.
var causeNames = func() map[string]proto.TaskCause {
	names := map[string]proto.TaskCause{}
	for c := range causes {
		names[c.Name()] = c
	}
	return names
}()

// Cause returns why the record of a task changed: its cause with the code of a refusal and
// the detail. Without a cause it is the detail; a cause that this program does not know is
// its own name.
func Cause(cause, refusal, detail string) string {
	c := causeNames[cause]
	s, known := causes[c]
	if !known {
		s.alone = cmp.Or(leaseCauses[wire.LeaseCause(cause)], cause)
	}
	if refusal != "" && (c == proto.TaskRefused || c == proto.TaskExpired) {
		detail = strings.TrimSuffix(refusal+": "+detail, ": ")
		s.with = strings.Replace(s.with, "the last attempt failed:", "the last answer was", 1)
	}
	switch {
	case detail == "":
		return s.alone
	case s.alone == "":
		return Plain(detail)
	case s.with == "":
		return s.alone + ": " + Plain(detail)
	}
	return strings.Replace(s.with, "{detail}", Plain(detail), 1)
}

// leaseCauses has the text of each cause of an ownership event.
var leaseCauses = map[wire.LeaseCause]string{
	wire.LeaseCreatedTwice:   "two admins created this name while they were not connected: the statement with the lower root counts everywhere, and the other home hands over what it has",
	wire.LeaseNeverHad:       "it hands over a queue that it never had",
	wire.LeaseTooManyQueues:  "it hands over more queues than one node may",
	wire.LeaseNoWorker:       "a home needs the role work, and no certificate known here gives it to this one",
	wire.LeaseForeignQueue:   "it announces a queue of another home",
	wire.LeaseUnproven:       "it claims to be the home, and nothing that was signed proves that",
	wire.LeaseStatesTooLarge: "its queue states are too large",
	wire.LeaseUnstorable:     "the store would refuse a record of its message",
	wire.LeaseNeverHome:      "it hands over a task that it was never the home of",
	wire.LeaseNewGeneration:  "a later generation of the task came",
	wire.LeaseOlder:          "an older lease",
	wire.LeaseNeverGranted:   "a lease that was never granted",
	wire.LeaseEpochSettled:   "its home has settled this epoch",
	wire.LeaseNewerKnown:     "a higher epoch or a later home is known here",
	wire.LeaseGrantDiffers:   "another grant of the same epoch",
	wire.LeaseOverHere:       "it is over here",
	wire.LeaseNotRenewed:     "the lease could not be renewed",
	wire.LeaseHomeGone:       "its home has lost the task or was revoked, and its time has passed",
	wire.LeaseEndedByHome:    "its home has ended it, or granted it to another node",
	wire.LeaseRecovered:      "revoked by an operator",
	wire.LeaseResultRejected: "a result that was rejected",
	wire.LeaseMailSettled:    "the mail was settled late: it has ended, or another reader was given it",
}

// bounceCauses has the text of each cause of a bounce that nobody gets.
var bounceCauses = map[wire.BounceCause]string{
	wire.BounceLoop:     "too many mails caused one another: a bounce might cause the next",
	wire.BounceNoSender: "the mail names no sender",
	wire.BounceNoName:   "no mailbox can have that name, or its node is not known",
	wire.BounceNoBox:    "there is no such mailbox (balefire-node mailbox add makes it at its node)",
	wire.BounceFull:     "there is no room",
	wire.BounceRefused:  "the mailbox refuses it",
	wire.BounceFailed:   "it could not be sent",
}

// why returns the cause of an event.
func why(e wire.NodeEvent) string {
	cause, code, detail := e.Fields["cause"], e.Fields["code"], e.Fields["detail"]
	switch e.Kind {
	case wire.EventMailUnproven:
		if cause == string(wire.ReceiptUnsigned) {
			return "its signature is not valid"
		}
		return Text(wire.Note{Code: wire.NoteCode(cause), NoteArgs: wire.NoteArgs{Detail: detail}})
	case wire.EventMailBounced, wire.EventMailUntold:
		said := []string{cmp.Or(bounceCauses[wire.BounceCause(cause)], cause), code, Plain(detail)}
		return strings.Join(slices.DeleteFunc(said, func(s string) bool { return s == "" }), ": ")
	}
	return Cause(cause, code, detail)
}

// Ownership returns what is known of an ownership event besides its kind: the state or the
// refusal, and why.
func Ownership(e wire.OwnershipEvent) string {
	said := []string{e.State, e.Code, Cause(string(e.Cause), "", e.Detail)}
	return strings.Join(slices.DeleteFunc(said, func(s string) bool { return s == "" }), ": ")
}

// Ending returns why a task ended, or why its latest attempt failed; empty: it is not known.
func Ending(e wire.Ending) string {
	text := Cause(e.Cause, e.Code, e.Reason)
	if e.MayHaveRun {
		text += "; it may have run before an unclean stop"
	}
	return text
}
