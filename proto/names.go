package proto

// Short Go names for the enum values.

// The states of a task: see [TaskState].
const (
	StateUnspecified = TaskState_TASK_STATE_UNSPECIFIED
	Pending          = TaskState_TASK_STATE_PENDING
	Sent             = TaskState_TASK_STATE_SENT
	Accepted         = TaskState_TASK_STATE_ACCEPTED
	Running          = TaskState_TASK_STATE_RUNNING
	Retrying         = TaskState_TASK_STATE_RETRYING
	WaitingApproval  = TaskState_TASK_STATE_WAITING_APPROVAL
	Indeterminate    = TaskState_TASK_STATE_INDETERMINATE
	Success          = TaskState_TASK_STATE_SUCCESS
	Failed           = TaskState_TASK_STATE_FAILED
	Timeout          = TaskState_TASK_STATE_TIMEOUT
	DeadLetter       = TaskState_TASK_STATE_DEAD_LETTER
	Cancelled        = TaskState_TASK_STATE_CANCELLED
	Expired          = TaskState_TASK_STATE_EXPIRED
)

// The classes of priority: see [Class].
const (
	ClassUnspecified = Class_CLASS_UNSPECIFIED
	Critical         = Class_CLASS_CRITICAL
	High             = Class_CLASS_HIGH
	Normal           = Class_CLASS_NORMAL
	Low              = Class_CLASS_LOW
)

// The delivery modes: see [Mode].
const (
	ModeUnspecified = Mode_MODE_UNSPECIFIED
	AtLeastOnce     = Mode_MODE_AT_LEAST_ONCE
	AtMostOnce      = Mode_MODE_AT_MOST_ONCE
)

// The answer codes, CodeOK for yes: see [Code].
const (
	CodeOK             = Code_CODE_UNSPECIFIED
	CodeNoHandler      = Code_CODE_NO_HANDLER
	CodeFull           = Code_CODE_FULL
	CodeBusy           = Code_CODE_BUSY
	CodeDraining       = Code_CODE_DRAINING
	CodeBadKey         = Code_CODE_BAD_KEY
	CodeUnknownVersion = Code_CODE_UNKNOWN_VERSION
	CodeExpired        = Code_CODE_EXPIRED
	CodeDenied         = Code_CODE_DENIED
	CodeBadSignature   = Code_CODE_BAD_SIGNATURE
	CodeTooLarge       = Code_CODE_TOO_LARGE
	CodeBadForm        = Code_CODE_BAD_FORM
	CodeDuplicate      = Code_CODE_DUPLICATE
	CodeStale          = Code_CODE_STALE
	CodeMoved          = Code_CODE_MOVED
	CodeNeedBody       = Code_CODE_NEED_BODY
	CodeInternal       = Code_CODE_INTERNAL
	CodeHeld           = Code_CODE_HELD
	CodeCannotStart    = Code_CODE_CANNOT_START
	CodeClock          = Code_CODE_CLOCK
	CodeNoMesh         = Code_CODE_NO_MESH
)

// Why the record of a task changed: see [TaskCause].
const (
	TaskSubmitted          = TaskCause_TASK_CAUSE_SUBMITTED
	TaskAcceptedBefore     = TaskCause_TASK_CAUSE_ACCEPTED_BEFORE
	TaskRefused            = TaskCause_TASK_CAUSE_REFUSED
	TaskTimesCorrected     = TaskCause_TASK_CAUSE_TIMES_CORRECTED
	TaskSignedAgain        = TaskCause_TASK_CAUSE_SIGNED_AGAIN
	TaskForgotten          = TaskCause_TASK_CAUSE_FORGOTTEN
	TaskForgottenOnce      = TaskCause_TASK_CAUSE_FORGOTTEN_ONCE
	TaskOrphan             = TaskCause_TASK_CAUSE_ORPHAN
	TaskCommitted          = TaskCause_TASK_CAUSE_COMMITTED
	TaskCancelledUnsent    = TaskCause_TASK_CAUSE_CANCELLED_UNSENT
	TaskCancelAsked        = TaskCause_TASK_CAUSE_CANCEL_ASKED
	TaskExpired            = TaskCause_TASK_CAUSE_EXPIRED
	TaskExpiredAccepted    = TaskCause_TASK_CAUSE_EXPIRED_ACCEPTED
	TaskExpiredStarted     = TaskCause_TASK_CAUSE_EXPIRED_STARTED
	TaskExpiredUnreached   = TaskCause_TASK_CAUSE_EXPIRED_UNREACHED
	TaskResultTooLarge     = TaskCause_TASK_CAUSE_RESULT_TOO_LARGE
	TaskResultWaits        = TaskCause_TASK_CAUSE_RESULT_WAITS
	TaskGranted            = TaskCause_TASK_CAUSE_GRANTED
	TaskRestarted          = TaskCause_TASK_CAUSE_RESTARTED
	TaskFailed             = TaskCause_TASK_CAUSE_FAILED
	TaskRejected           = TaskCause_TASK_CAUSE_REJECTED
	TaskTimedOut           = TaskCause_TASK_CAUSE_TIMED_OUT
	TaskUnready            = TaskCause_TASK_CAUSE_UNREADY
	TaskOutputCut          = TaskCause_TASK_CAUSE_OUTPUT_CUT
	TaskNoRoom             = TaskCause_TASK_CAUSE_NO_ROOM
	TaskNoRoomOnce         = TaskCause_TASK_CAUSE_NO_ROOM_ONCE
	TaskNoRoomOften        = TaskCause_TASK_CAUSE_NO_ROOM_OFTEN
	TaskUnusable           = TaskCause_TASK_CAUSE_UNUSABLE
	TaskStopped            = TaskCause_TASK_CAUSE_STOPPED
	TaskStoppedOnce        = TaskCause_TASK_CAUSE_STOPPED_ONCE
	TaskCrashed            = TaskCause_TASK_CAUSE_CRASHED
	TaskCrashedOften       = TaskCause_TASK_CAUSE_CRASHED_OFTEN
	TaskCrashedOnce        = TaskCause_TASK_CAUSE_CRASHED_ONCE
	TaskCrashedParked      = TaskCause_TASK_CAUSE_CRASHED_PARKED
	TaskCrashedUnasked     = TaskCause_TASK_CAUSE_CRASHED_UNASKED
	TaskProbed             = TaskCause_TASK_CAUSE_PROBED
	TaskRestored           = TaskCause_TASK_CAUSE_RESTORED
	TaskTooLate            = TaskCause_TASK_CAUSE_TOO_LATE
	TaskNotAllowed         = TaskCause_TASK_CAUSE_NOT_ALLOWED
	TaskCancelledUnarrived = TaskCause_TASK_CAUSE_CANCELLED_UNARRIVED
	TaskCancelledUnstarted = TaskCause_TASK_CAUSE_CANCELLED_UNSTARTED
	TaskCancelledBetween   = TaskCause_TASK_CAUSE_CANCELLED_BETWEEN
	TaskCancelledRunning   = TaskCause_TASK_CAUSE_CANCELLED_RUNNING
	TaskSucceededBefore    = TaskCause_TASK_CAUSE_SUCCEEDED_BEFORE
	TaskResultLost         = TaskCause_TASK_CAUSE_RESULT_LOST
	TaskResultLostAtHome   = TaskCause_TASK_CAUSE_RESULT_LOST_AT_HOME
	TaskResultUnsealed     = TaskCause_TASK_CAUSE_RESULT_UNSEALED
	TaskAttemptsUsed       = TaskCause_TASK_CAUSE_ATTEMPTS_USED
	TaskAbandonedOften     = TaskCause_TASK_CAUSE_ABANDONED_OFTEN
	TaskAbandonedOnce      = TaskCause_TASK_CAUSE_ABANDONED_ONCE
	TaskOwnerLost          = TaskCause_TASK_CAUSE_OWNER_LOST
	TaskOwnerLostOnce      = TaskCause_TASK_CAUSE_OWNER_LOST_ONCE
	TaskHomeRestoredOnce   = TaskCause_TASK_CAUSE_HOME_RESTORED_ONCE
	TaskCancelledLost      = TaskCause_TASK_CAUSE_CANCELLED_LOST
	TaskMoved              = TaskCause_TASK_CAUSE_MOVED
	TaskRecordDamaged      = TaskCause_TASK_CAUSE_RECORD_DAMAGED
	TaskResultDamaged      = TaskCause_TASK_CAUSE_RESULT_DAMAGED
)

// The types of a Message: see [MessageType].
const (
	TypePing          = MessageType_PING
	TypePong          = MessageType_PONG
	TypeData          = MessageType_DATA
	TypeAck           = MessageType_ACK
	TypeHello         = MessageType_HELLO
	TypeResult        = MessageType_RESULT
	TypeCancel        = MessageType_CANCEL
	TypeMark          = MessageType_MARK
	TypeStarted       = MessageType_STARTED
	TypeJoin          = MessageType_JOIN
	TypeJoined        = MessageType_JOINED
	TypeOffer         = MessageType_OFFER
	TypeOffered       = MessageType_OFFERED
	TypeChunk         = MessageType_CHUNK
	TypeChunked       = MessageType_CHUNKED
	TypeProbe         = MessageType_PROBE
	TypeProbed        = MessageType_PROBED
	TypeSync          = MessageType_SYNC
	TypeSynced        = MessageType_SYNCED
	TypeGrant         = MessageType_GRANT
	TypeGranted       = MessageType_GRANTED
	TypeStart         = MessageType_START
	TypePermit        = MessageType_PERMIT
	TypeRenew         = MessageType_RENEW
	TypeRenewed       = MessageType_RENEWED
	TypeRelease       = MessageType_RELEASE
	TypeReleased      = MessageType_RELEASED
	TypeStatus        = MessageType_STATUS
	TypeStatusReply   = MessageType_STATUS_REPLY
	TypeHandoff       = MessageType_HANDOFF
	TypeHandedOff     = MessageType_HANDED_OFF
	TypeEnded         = MessageType_ENDED
	TypeCommitted     = MessageType_COMMITTED
	TypeQueues        = MessageType_QUEUES
	TypeWithdraw      = MessageType_WITHDRAW
	TypeSchedule      = MessageType_SCHEDULE
	TypeScheduled     = MessageType_SCHEDULED
	TypeTimeline      = MessageType_TIMELINE
	TypeTimelineReply = MessageType_TIMELINE_REPLY
	TypeReady         = MessageType_READY
	TypeLookup        = MessageType_LOOKUP
	TypeLookupReply   = MessageType_LOOKUP_REPLY
	TypeQueueAsk      = MessageType_QUEUE_ASK
	TypeQueueAnswer   = MessageType_QUEUE_ANSWER
	TypeBundle        = MessageType_BUNDLE
	TypeBundled       = MessageType_BUNDLED
	TypeOpen          = MessageType_OPEN
	TypeOpened        = MessageType_OPENED
	TypeDeliver       = MessageType_DELIVER
	TypeSettle        = MessageType_SETTLE
	TypeSettled       = MessageType_SETTLED
	TypeBoxPart       = MessageType_BOX_PART
	TypeBoxTaken      = MessageType_BOX_TAKEN
)

// How far the copy of a box is: see [CopyState].
const (
	CopyNone   = CopyState_COPY_STATE_UNSPECIFIED
	CopyParts  = CopyState_COPY_STATE_PARTS
	CopyWhole  = CopyState_COPY_STATE_WHOLE
	CopyServed = CopyState_COPY_STATE_SERVED
)

// The states that a node reports of itself: see [NodeState].
const (
	NodeUnspecified = NodeState_NODE_STATE_UNSPECIFIED
	NodeStarting    = NodeState_NODE_STATE_STARTING
	NodeRunning     = NodeState_NODE_STATE_RUNNING
	NodeStopping    = NodeState_NODE_STATE_STOPPING
	NodeStopped     = NodeState_NODE_STATE_STOPPED
	NodeDraining    = NodeState_NODE_STATE_DRAINING
)

// The liveness of a member in the view of others: see [Liveness].
const (
	LivenessUnspecified = Liveness_LIVENESS_UNSPECIFIED
	Alive               = Liveness_LIVENESS_ALIVE
	Suspect             = Liveness_LIVENESS_SUSPECT
	Dead                = Liveness_LIVENESS_DEAD
)

// Why a lease was released: see [ReleaseCause].
const (
	CauseUnspecified = ReleaseCause_RELEASE_CAUSE_UNSPECIFIED
	Unstarted        = ReleaseCause_RELEASE_CAUSE_UNSTARTED
	CauseStopped     = ReleaseCause_RELEASE_CAUSE_STOPPED
	CauseFailed      = ReleaseCause_RELEASE_CAUSE_FAILED
	CauseTimeout     = ReleaseCause_RELEASE_CAUSE_TIMEOUT
	CauseCrashed     = ReleaseCause_RELEASE_CAUSE_CRASHED
	CauseParked      = ReleaseCause_RELEASE_CAUSE_PARKED
	CauseExpired     = ReleaseCause_RELEASE_CAUSE_EXPIRED
	CauseUnknown     = ReleaseCause_RELEASE_CAUSE_UNKNOWN
)

// How far a lease has come at its owner: see [LeasePhase].
const (
	LeaseUnspecified = LeasePhase_LEASE_PHASE_UNSPECIFIED
	LeaseReceived    = LeasePhase_LEASE_PHASE_RECEIVED
	LeaseStarted     = LeasePhase_LEASE_PHASE_STARTED
	LeaseFinished    = LeasePhase_LEASE_PHASE_FINISHED
	LeaseReleased    = LeasePhase_LEASE_PHASE_RELEASED
	LeaseClosed      = LeasePhase_LEASE_PHASE_CLOSED
)

// What a name is the name of: see [TitleKind].
const (
	TitleQueue   = TitleKind_TITLE_KIND_UNSPECIFIED
	TitleMailbox = TitleKind_TITLE_KIND_MAILBOX
	TitleTopic   = TitleKind_TITLE_KIND_TOPIC
	TitleGroup   = TitleKind_TITLE_KIND_GROUP
)

// How missed runs of a schedule are handled: see [MissedRuns].
const (
	MissedUnspecified = MissedRuns_MISSED_RUNS_UNSPECIFIED
	MissedSkip        = MissedRuns_MISSED_RUNS_SKIP
	MissedOnce        = MissedRuns_MISSED_RUNS_ONCE
	MissedAll         = MissedRuns_MISSED_RUNS_ALL
)

// How a session ends: see [ReadEnd].
const (
	ReadGoesOn  = ReadEnd_READ_END_UNSPECIFIED
	ReadReturn  = ReadEnd_READ_END_RETURN
	ReadAbandon = ReadEnd_READ_END_ABANDON
	ReadLeave   = ReadEnd_READ_END_LEAVE
)

// What a reader does with a delivery: see [SettleVerb].
const (
	SettleUnspecified = SettleVerb_SETTLE_VERB_UNSPECIFIED
	SettleAck         = SettleVerb_SETTLE_VERB_ACK
	SettleNack        = SettleVerb_SETTLE_VERB_NACK
	SettleFinal       = SettleVerb_SETTLE_VERB_FINAL
	SettleExtend      = SettleVerb_SETTLE_VERB_EXTEND
	SettleDefer       = SettleVerb_SETTLE_VERB_DEFER
	SettleBounce      = SettleVerb_SETTLE_VERB_BOUNCE
	SettleReturn      = SettleVerb_SETTLE_VERB_RETURN
)
