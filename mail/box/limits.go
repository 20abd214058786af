package box

import (
	"time"

	"github.com/balefire/balefire/proto"
)

// Limits of deliveries.
const (
	MaxLease    = 12 * time.Hour      // from the delivery, however often it is extended
	MaxDelay    = 30 * 24 * time.Hour // of a nack or a defer
	MaxBackoff  = 5 * time.Minute     // the wait after a failed attempt, without jitter
	MaxAttempts = 100                 // that a subscription may allow
	MaxAbandons = 10                  // broken sessions until a mail is dead
	MaxKeyBatch = 16                  // mails of one lane that one session has at once
	MaxHops     = 16                  // letters that cause one another; one more is a loop
	MaxSessions = 1024                // of a subscription

	suspectAlone = time.Minute // a suspect has its session to itself for this long, and waits as long for an empty one

	baseBackoff     = time.Second // the wait after the first failed attempt
	defaultAttempts = 3
)

// leases are the default leases by class, from critical to low.
var leases = [4]time.Duration{5 * time.Second, 10 * time.Second, 30 * time.Second, 60 * time.Second}

// Limits of boxes. The defaults apply to settings that are zero.
const (
	MaxBoxes   = 4096    // of a state
	MaxSubs    = 256     // of a topic
	MaxOrigins = 1 << 16 // nodes from which mail came
	MaxMails   = 1 << 24 // of a box, whatever its settings
	MaxBlocked = 4096    // lanes of a subscription that a dead letter blocks; one more is not blocked

	defaultMails      = 100_000
	defaultBytes      = 256 << 20
	defaultTopicMails = 1_000_000
	defaultTopicBytes = 1 << 30
	defaultTopicAge   = 7 * 24 * time.Hour
	defaultDead       = 10_000 // dead letters of a subscription
	defaultDeadAge    = 30 * 24 * time.Hour
	defaultNodeBytes  = 10 << 30 // all boxes of a state
	defaultKeys       = 200_000  // dedupe keys of a state
	defaultKeepMails  = 10_000   // mails that are done and that a mailbox keeps
	defaultKept       = 256 << 20
)

// Sizes.
const (
	MaxReason = 256     // bytes of the reason of an end or a nack
	MaxStderr = 4 << 10 // bytes of what a program wrote, behind the reason with which a mail is dead
	MaxDetail = MaxReason + 1 + MaxStderr
	MaxReader = 64      // bytes of the name of a session
	MaxName   = 256     // bytes of the name of a box or a subscription
	MaxNotes  = 8 << 10 // bytes of the notes of a box
	MaxSeqs   = 512     // sequences in one ACK or END
	MaxTries  = 16      // failed deliveries of a mail that are remembered: the newest

	MaxReceipts = 128                  // in one TAKEN
	MaxProof    = proto.MaxMailReceipt // bytes of what a home has signed about a mail

	// MaxRecord is the size of the largest record, a MOVE.
	MaxRecord = moveSize + mailSize + causeSize + proto.MaxLetter

	maxDetails = 16 << 20 // bytes of long reasons of dead letters: one more is cut to MaxReason
	maxEnded   = 1024     // ranges of mails that ended without DONE: older ones are forgotten
	maxAhead   = 4096     // unread mails of a topic among which a subscription chooses

	maxReceipts = 10_000 // mails of spools that are kept with their receipts
	maxTaken    = 16_384 // mails of other nodes of which a state remembers the letters that it took
)

// Periods.
const (
	keyGeneration = 12 * time.Hour // of running time: a dedupe key is kept for two to three of these
	agePeriod     = 5 * time.Minute
	maxRan        = 100 * 365 * 24 * 3600_000 // milliseconds that one start runs
	maxPast       = 1 << 60                   // milliseconds that all of them run
	cleanPeriod   = 10 * time.Second          // of retention and of the archive of dead letters
	sweepMails    = 4096                      // mails that one Tick checks for their not_after
	lookPeriod    = time.Second               // of Tick, at most, while something waits for a time
	sweepLeased   = time.Second               // after which a leased one that is past it is looked at again
	receiptAge    = 30 * 24 * time.Hour       // a mail of a spool is kept for this long with its receipt
)
