package wire

// Values of QueueRules.Lanes: which tasks with the same ordering key run one after the
// other.
const (
	LanesOrigin = "origin" // tasks of the same origin
	LanesShared = "shared" // tasks of all origins
)
