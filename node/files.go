package node

// The parts of a node's folder.
const (
	identityDir    = "identity"
	storeDir       = "store"
	blobDir        = "blob"
	runDir         = "run"
	membershipFile = "membership.json"
	engineFile     = "ENGINE"
)
