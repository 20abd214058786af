package queue

import (
	"errors"
	"strings"
	"testing"

	"github.com/balefire/balefire/wire"
)

// An admin signs the names of queues, mailboxes and topics, and nothing else.
func TestNamesThatAnAdminSigns(t *testing.T) {
	for name, want := range map[string]bool{
		"build": true, "agent:codex": true, "topic:orders": true,
		"": false, "Build": false, "queue:build": false, "agent:": false, "agent:codex@laptop": false, "topic:a b": false, "group:a": false, "other:x": false,
	} {
		if got := validTitle(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}

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
