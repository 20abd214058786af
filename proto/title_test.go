package proto

import (
	"strings"
	"testing"
)

func TestTitleKindOf(t *testing.T) {
	long := strings.Repeat("n", MaxQueueName)
	for name, want := range map[string]struct {
		kind  TitleKind
		valid bool
		text  string
	}{
		"build": {TitleQueue, true, "queue build"}, "agent": {TitleQueue, true, "queue agent"}, "": {TitleQueue, false, "queue "},
		"queue:build": {TitleQueue, false, "queue queue:build"}, "other:x": {TitleQueue, false, "queue other:x"}, "Build": {TitleQueue, false, "queue Build"},
		"agent:ceo": {TitleMailbox, true, "agent:ceo"}, "agent:" + long: {TitleMailbox, true, "agent:" + long}, "agent:" + long + "n": {TitleMailbox, false, "agent:" + long + "n"},
		"agent:": {TitleMailbox, false, "agent:"}, "agent:ceo@alpha": {TitleMailbox, false, "agent:ceo@alpha"}, "agent:topic:a": {TitleMailbox, false, "agent:topic:a"},
		"topic:orders.eu": {TitleTopic, true, "topic:orders.eu"}, "topic:Orders": {TitleTopic, false, "topic:Orders"},
		"group:a": {TitleGroup, true, "group:a"},
	} {
		if kind, valid := TitleKindOf(name); kind != want.kind || valid != want.valid || NamesQueue(name) != (kind == TitleQueue) {
			t.Errorf("TitleKindOf(%q) = %v, %v", name, kind, valid)
		}
		if got := TitleText(name); got != want.text {
			t.Errorf("TitleText(%q) = %q", name, got)
		}
	}
}
