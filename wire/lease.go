package wire

// A LeaseCause is the code of why an ownership event happened. The cause of an event may also be
// that of a task (crashed_often) or of a released lease (STOPPED).
type LeaseCause string

// Why a lease, a queue or a claim changed
const (
	LeaseCreatedTwice   LeaseCause = "created_twice"    // two admins created the name while they were not connected: the statement with the lower root counts everywhere, and the other home hands over what it has
	LeaseNeverHad       LeaseCause = "never_had"        // the peer hands over a queue that it never had
	LeaseTooManyQueues  LeaseCause = "too_many_queues"  // the peer hands over more queues than one node may
	LeaseNoWorker       LeaseCause = "no_worker"        // its home needs the role work, and no certificate known here gives it to the peer
	LeaseForeignQueue   LeaseCause = "foreign_queue"    // the peer announces a queue of another home
	LeaseUnproven       LeaseCause = "unproven"         // the peer claims to be its home, and nothing that was signed proves that
	LeaseStatesTooLarge LeaseCause = "states_too_large" // the queue states of the peer are too large: detail
	LeaseUnstorable     LeaseCause = "unstorable"       // a message would have made a record that the store refuses: detail
	LeaseNeverHome      LeaseCause = "never_home"       // the peer hands over a task that it was never the home of
	LeaseNewGeneration  LeaseCause = "later_generation" // a later generation of the task came
	LeaseOlder          LeaseCause = "older_lease"      // the claim is of an older lease
	LeaseNeverGranted   LeaseCause = "never_granted"    // the claim is of a lease that was never granted
	LeaseEpochSettled   LeaseCause = "epoch_settled"    // its home has settled the epoch of the grant
	LeaseNewerKnown     LeaseCause = "newer_known"      // a higher epoch or a later home is known here
	LeaseGrantDiffers   LeaseCause = "grant_differs"    // another grant of the same epoch
	LeaseOverHere       LeaseCause = "over_here"        // the grant is of a lease that is over here
	LeaseNotRenewed     LeaseCause = "not_renewed"      // the lease could not be renewed
	LeaseHomeGone       LeaseCause = "home_gone"        // its home has lost the task or was revoked, and its time has passed
	LeaseEndedByHome    LeaseCause = "ended_by_home"    // its home has ended it, or granted it to another node
	LeaseRecovered      LeaseCause = "recovered"        // an operator revoked the lease
	LeaseResultRejected LeaseCause = "result_rejected"  // a result came that does not count
	LeaseMailSettled    LeaseCause = "mail_settled"     // a mail was settled late: it has ended, or another reader was given it
)
