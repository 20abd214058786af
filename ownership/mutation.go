package ownership

// A mutation is a rule left out. There is none but in tests, which leave out each rule
// in turn to show that the simulator misses it: only they can set the field.
type mutation byte

const (
	noMutation mutation = iota
	epochUnchecked
	epochVolatile
	ownerUnchecked
	bootUnchecked
	tokenUnchecked
	renewUnchecked
	releaseUnchecked
	endedAgain
	epochReused
	laneEarly
	blockIgnored
	abandonSpends
	expiredEarly
	permitSkipped
	permitVolatile
	onceReclaimed
	periodSkipped
	jumpUnguarded
	movedActs
	generationUnchecked
	seizeQuiet
	adoptStarts
	closedForgotten
	lowerGrantTaken
	startVolatile
	lostDropped
	stallRenewed
	crashSilent
	cancelLost
	cancelForgotten
	claimUnproven
	handoffUnproven
	startForgotten
	isolatedGrants
	isolatedReclaims
	isolatedIdle
	bootUnclocked // the driver counts starts on its disk alone
	ackEarly      // the driver sends before the fsync
	handoffEarly  // the driver sends handoffs before the fsync
	mutationCount // their number
)

var mutationNames = [mutationCount]string{
	"none", "epoch check dropped", "epoch not persisted", "owner not compared", "boot id not compared", "token not compared",
	"renewal not fenced", "release not fenced", "an ended task ends again", "epoch used again", "lane released early",
	"on_dead: block ignored", "abandon spends an attempt", "expired while it may run", "started without leave",
	"leave not persisted", "at_most_once taken back", "no full period after a restart", "clock jump not guarded",
	"old home acts after a handoff", "generation not compared", "seized without a higher generation",
	"higher epoch started, not adopted", "finished lease forgotten", "lower epoch taken", "start not persisted",
	"result that lost thrown away", "stalled handler renewed", "crash not told",
	"cancel lost after a handoff", "cancel forgotten",
	"claim to a queue without a deed", "handoff by whoever", "start that a disk forgot taken for none",
	"isolated home grants to another", "isolated home takes a lease back", "isolated home refuses itself", "boot number without the clock", "ack before fsync", "handoff before fsync",
}

func (mut mutation) String() string { return mutationNames[mut] }
