package proto

// TitleKindOf returns what a name is the name of, by its prefix, and whether what follows is
// valid: NAME of a queue, agent:NAME of a mailbox of the mesh, topic:NAME of a topic,
// group:NAME of a group. Names of different kinds are different names.
func TitleKindOf(name string) (kind TitleKind, valid bool) {
	prefix := ReservedPrefix(name)
	switch prefix {
	case AgentPrefix:
		kind = TitleMailbox
	case TopicPrefix:
		kind = TitleTopic
	case groupPrefix:
		kind = TitleGroup
	}
	return kind, ValidQueue(name[len(prefix):])
}

// NamesQueue reports whether a name with a home is that of a queue.
func NamesQueue(name string) bool { return ReservedPrefix(name) == "" }

// TitleText returns a name as errors state it: of a queue with the word, of any other as it
// is.
func TitleText(name string) string {
	if NamesQueue(name) {
		return "queue " + name
	}
	return name
}
