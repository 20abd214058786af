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

// The settings of a queue are checked before anything changes.
func TestSettingsAreChecked(t *testing.T) {
	labels := make([]string, 33)
	for i := range labels {
		labels[i] = "x"
	}
	kinds := func(k ...wire.KindLimit) *[]wire.KindLimit { return &k }
	for _, tt := range []struct {
		name string
		s    wire.QueueSettings
		says string // "": it is valid
	}{
		{"nothing", wire.QueueSettings{}, ""},
		{"the defaults", wire.QueueSettings{OnLostLease: new(""), LeaseMs: new(0), Concurrency: new(0), Labels: &[]string{}, Allow: &[]string{}, Kinds: kinds()}, ""},
		{"all of it", wire.QueueSettings{
			OnLostLease: new("stop"), Lanes: new(wire.LanesShared), Concurrency: new(wire.MaxQueueLimit), NodeConcurrency: new(1), LeaseMs: new(5000), Strategy: new("least_loaded"),
			Labels: &[]string{"gpu"}, Allow: &[]string{"role:send"}, Kinds: kinds(wire.KindLimit{Kind: "build", Concurrency: 1}),
		}, ""},
		{"the longest lease", wire.QueueSettings{LeaseMs: new(3_600_000)}, ""},
		{"a lost lease", wire.QueueSettings{OnLostLease: new("restart")}, "on_lost_lease \"restart\": must be continue or stop"},
		{"lanes", wire.QueueSettings{Lanes: new("")}, "lanes \"\": must be origin or shared"},
		{"a negative limit", wire.QueueSettings{Concurrency: new(-1)}, "concurrency and node_concurrency must be"},
		{"a limit that is too large", wire.QueueSettings{NodeConcurrency: new(wire.MaxQueueLimit + 1)}, "concurrency and node_concurrency must be"},
		{"a short lease", wire.QueueSettings{LeaseMs: new(4999)}, "from 5 seconds to an hour"},
		{"a long lease", wire.QueueSettings{LeaseMs: new(3_600_001)}, "from 5 seconds to an hour"},
		{"a strategy", wire.QueueSettings{Strategy: new("luck")}, "strategy \"luck\": must be one of"},
		{"too many labels", wire.QueueSettings{Labels: &labels}, "at most 32 entries"},
		{"an empty label", wire.QueueSettings{Labels: &[]string{""}}, "1 to 128 bytes"},
		{"a rule for nobody", wire.QueueSettings{Allow: &[]string{"anybody at all"}}, "anybody at all"},
		{"a kind without a name", wire.QueueSettings{Kinds: kinds(wire.KindLimit{})}, "each with a valid kind"},
		{"a limit of a kind", wire.QueueSettings{Kinds: kinds(wire.KindLimit{Kind: "build", NodeConcurrency: -1})}, "numbers from 0"},
	} {
		err := checkSettings(tt.s)
		if tt.says == "" && err != nil || tt.says != "" && (!errors.Is(err, wire.ErrInvalid) || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.says)
		}
	}
}
