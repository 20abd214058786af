package ownership

// A mutation leaves out one rule. Tests apply each in turn to show that the simulator
// notices; only they can set the field.
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
	bootUnclocked // the driver derives boot numbers from its disk alone
	ackEarly      // the driver sends before the fsync
	handoffEarly  // the driver sends handoffs before the fsync
	mutationCount // number of mutations
)

var mutationNames = [mutationCount]string{
	"none", "epoch check dropped", "epoch not persisted", "owner not compared", "boot id not compared", "token not compared",
	"renewal not fenced", "release not fenced", "an ended task ends again", "epoch reused", "lane advanced early",
	"on_dead: block ignored", "abandon spends an attempt", "expired while it may run", "started without a permit",
	"permit not persisted", "at_most_once reclaimed", "no full period after a restart", "clock jump not guarded",
	"old home acts after a handoff", "generation not compared", "seized without a higher generation",
	"higher epoch started, not adopted", "finished lease forgotten", "lower epoch taken", "start not persisted",
	"losing result discarded", "stalled handler renewed", "crash not reported",
	"cancel lost after a handoff", "cancel forgotten",
	"queue claimed without a deed", "handoff by any node", "start lost with the disk ignored",
	"isolated home grants to another", "isolated home reclaims a lease", "isolated home does not grant to itself", "boot number without the clock", "ack before fsync", "handoff before fsync",
}

func (mut mutation) String() string { return mutationNames[mut] }
