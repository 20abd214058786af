package wire

// A TimelineQuery selects either a task or a queue.
type TimelineQuery struct {
	Task  string `query:"task" maxLength:"36" doc:"id, or the beginning of one that the node knows; alternative to queue"`
	Queue string `query:"queue" maxLength:"128"`
}

// A Timeline merges the lease events of a task or a queue as seen by several nodes.
type Timeline struct {
	Items  []TimelineEvent `json:"items" doc:"sorted by the clocks of the nodes; events of the same node are in the order in which they happened"`
	Asked  []string        `json:"asked" doc:"nodes that answered, this one first"`
	Silent []string        `json:"silent" doc:"nodes that did not answer or could not be asked"`
	More   bool            `json:"more,omitempty" doc:"a node omitted older events"`
}

// A TimelineEvent is one event in the timeline of a node.
type TimelineEvent struct {
	Node string `json:"node" doc:"node that recorded it"`
	OwnershipEvent
}
