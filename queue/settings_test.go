package queue

import (
	"errors"
	"strings"
	"testing"

	"github.com/balefire/balefire/wire"
)

// A queue cannot have a name that reads as a mailbox, a topic or a group.
func TestQueueNames(t *testing.T) {
	for name, want := range map[string]string{
		"build": "", "go1.26": "", "agent": "",
		"agent:codex": "agent: is not for queues", "topic:orders": "topic: is not for queues", "group:a": "group: is not for queues",
		"": "use 1-63", "Build": "use 1-63", "queue:build": "use 1-63", "other:x": "use 1-63",
	} {
		err := checkName(name)
		if want == "" && err != nil || want != "" && (!errors.Is(err, wire.ErrInvalid) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}
