package proto

import (
	"errors"
	"fmt"
	"strings"
)

// A TargetKind says what a target names.
type TargetKind uint8

// The kinds of targets.
const (
	TargetPeer  TargetKind = iota // a node, by its name or id
	TargetQueue                   // a shared queue
	TargetAgent                   // the mailbox of an agent: of one node, or of the mesh
	TargetTopic                   // a topic
	TargetAll                     // every member
)

// The prefixes of targets that are not nodes. No name of a queue begins with one, and none
// with group:, which is kept for groups of nodes that share a ledger.
const (
	QueuePrefix = "queue:"
	AgentPrefix = "agent:"
	TopicPrefix = "topic:"
	groupPrefix = "group:"
	targetAll   = "all"
)

// ErrBadTarget is returned for text that is not a target.
var ErrBadTarget = errors.New("proto: not a target")

// A targetError is an ErrBadTarget that says what is wrong, in words for people.
type targetError string

func (e targetError) Error() string        { return string(e) }
func (e targetError) Is(target error) bool { return target == ErrBadTarget }

func badTarget(format string, a ...any) error { return targetError(fmt.Sprintf(format, a...)) }

// A Target is whom a task or a mail is for, as people write it:
//
//	laptop  12D3KooW…    a node
//	queue:build          a shared queue
//	agent:codex@laptop   the mailbox of an agent on that node
//	agent:codex          a mailbox of the mesh
//	topic:orders         a topic
//	all                  every member
type Target struct {
	Kind TargetKind
	Name string // of the node, queue, agent or topic
	Node string // of an agent: the name or id of its node; empty for one of the mesh
}

// ParseTarget reads what [Target.String] writes. The error is ErrBadTarget and says what a
// target of that kind looks like; whether there is such a one is for others to say.
func ParseTarget(s string) (Target, error) {
	prefix, name := cutTarget(s)
	switch {
	case len(s) > MaxTarget:
		return Target{}, badTarget("target of %d bytes, the limit is %d", len(s), MaxTarget)
	case prefix == QueuePrefix && ValidQueue(name):
		return Target{Kind: TargetQueue, Name: name}, nil
	case prefix == TopicPrefix && ValidQueue(name):
		return Target{Kind: TargetTopic, Name: name}, nil
	case prefix == QueuePrefix || prefix == TopicPrefix:
		return Target{}, badTarget("%s %.80q: use 1-63 of a-z 0-9 . _ -", prefix[:len(prefix)-1], name)
	case prefix == AgentPrefix:
		name, node, at := strings.Cut(name, "@")
		if !ValidQueue(name) || at && !validNode(node) {
			return Target{}, badTarget("target %.80q: use agent:NAME or agent:NAME@NODE, with a NAME of 1-63 of a-z 0-9 . _ -", s)
		}
		return Target{Kind: TargetAgent, Name: name, Node: node}, nil
	case prefix != "":
		return Target{}, badTarget("target %.80q: %s begins no target; use a node, queue:NAME, agent:NAME, agent:NAME@NODE or topic:NAME", s, prefix)
	case s == targetAll:
		return Target{Kind: TargetAll}, nil
	case !validNode(s):
		return Target{}, badTarget("target %.80q: use the name or id of a node", s)
	}
	return Target{Name: s}, nil
}

// String returns the target as people write it.
func (t Target) String() string {
	switch {
	case t.Kind == TargetQueue:
		return QueuePrefix + t.Name
	case t.Kind == TargetTopic:
		return TopicPrefix + t.Name
	case t.Kind == TargetAgent && t.Node != "":
		return AgentPrefix + t.Name + "@" + t.Node
	case t.Kind == TargetAgent:
		return AgentPrefix + t.Name
	case t.Kind == TargetAll:
		return targetAll
	}
	return t.Name
}

// QueueTarget returns the target of a queue.
func QueueTarget(name string) string { return QueuePrefix + name }

// QueueOf returns the name of the queue that a target names, and false for any other target.
// It is for targets that were parsed before, as those in records, and for what is looked up:
// it does not check the name.
func QueueOf(target string) (name string, ok bool) {
	prefix, name := cutTarget(target)
	if prefix != QueuePrefix {
		return "", false
	}
	return name, true
}

// cutTarget splits a target behind the colon of its prefix; a node has none.
func cutTarget(s string) (prefix, name string) {
	if at := strings.IndexByte(s, ':'); at >= 0 {
		return s[:at+1], s[at+1:]
	}
	return "", s
}

// validNode reports whether s can be the name or id of a node: text without spaces, colons
// and at signs.
func validNode(s string) bool {
	return validWord([]byte(s), MaxTarget) && !strings.ContainsAny(s, ":@")
}

// ReservedPrefix returns the prefix of targets of another kind with which s begins; empty if
// there is none. Such a name is refused for a queue.
func ReservedPrefix(s string) string {
	switch prefix, _ := cutTarget(s); prefix {
	case AgentPrefix, TopicPrefix, groupPrefix:
		return prefix
	}
	return ""
}
