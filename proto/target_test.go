package proto

import (
	"errors"
	"strings"
	"testing"
)

func TestParseTarget(t *testing.T) {
	long := strings.Repeat("n", 63)
	good := map[string]Target{
		"laptop":                       {Name: "laptop"},
		"Laptop.2":                     {Name: "Laptop.2"},
		PeerID{1}.String():             {Name: PeerID{1}.String()},
		"queue:build":                  {Kind: TargetQueue, Name: "build"},
		"queue:" + long:                {Kind: TargetQueue, Name: long},
		"queue:all":                    {Kind: TargetQueue, Name: "all"},
		"agent:codex":                  {Kind: TargetAgent, Name: "codex"},
		"agent:codex@laptop":           {Kind: TargetAgent, Name: "codex", Node: "laptop"},
		"agent:a@" + PeerID{}.String(): {Kind: TargetAgent, Name: "a", Node: PeerID{}.String()},
		"topic:orders.eu":              {Kind: TargetTopic, Name: "orders.eu"},
		"all":                          {Kind: TargetAll},
	}
	for s, want := range good {
		if got, err := ParseTarget(s); err != nil || got != want || got.String() != s {
			t.Errorf("ParseTarget(%q) = %+v, %v; want %+v", s, got, err, want)
		}
	}
	bad := []string{
		"", " ", "a b", "a\n", "\xff", strings.Repeat("n", MaxTarget+1), "a@b",
		"queue:", "queue:Build", "queue:-a", "queue:a b", "queue:a@b", "queue:queue:a", "queue:" + long + "n",
		"agent:", "agent:@laptop", "agent:codex@", "agent:codex@a@b", "agent:codex@a:b", "agent:Codex", "agent:codex@a b",
		"topic:", "topic:Orders", "topic:a@b", "group:a", "Queue:a", "other:a", ":", ":a", "all:a",
	}
	for _, s := range bad {
		if got, err := ParseTarget(s); !errors.Is(err, ErrBadTarget) || got != (Target{}) {
			t.Errorf("ParseTarget(%q) = %+v, %v", s, got, err)
		}
	}
}

func TestQueueOf(t *testing.T) {
	for s, want := range map[string]string{"queue:build": "build", QueueTarget("x"): "x", "queue:": "", "queue:Old name": "Old name"} {
		if got, ok := QueueOf(s); !ok || got != want {
			t.Errorf("QueueOf(%q) = %q, %v", s, got, ok)
		}
	}
	for _, s := range []string{"", "build", "agent:build", "queue", "xqueue:build", "all"} {
		if got, ok := QueueOf(s); ok || got != "" {
			t.Errorf("QueueOf(%q) = %q, %v", s, got, ok)
		}
	}
}

func TestReservedPrefix(t *testing.T) {
	for s, want := range map[string]string{
		"agent:a": "agent:", "topic:": "topic:", "group:x": "group:", "agent": "", "agents:a": "", "queue:a": "", "build": "", "": "",
	} {
		if got := ReservedPrefix(s); got != want {
			t.Errorf("ReservedPrefix(%q) = %q, want %q", s, got, want)
		}
		if want != "" && ValidQueue(s) {
			t.Errorf("ValidQueue(%q) = true", s)
		}
	}
}

func TestValidQueue(t *testing.T) {
	for _, good := range []string{"a", "7", "build", "go1.26", "a_b-c.", strings.Repeat("q", MaxQueueName)} {
		if !ValidQueue(good) {
			t.Errorf("ValidQueue(%q) = false", good)
		}
	}
	for _, bad := range []string{"", "-a", ".a", "_a", "A", "aB", "a b", "a:b", "a/b", "ä", "a\n", "a\x00", strings.Repeat("q", MaxQueueName+1)} {
		if ValidQueue(bad) {
			t.Errorf("ValidQueue(%q) = true", bad)
		}
	}
}

func FuzzTarget(f *testing.F) {
	for _, s := range []string{"laptop", "queue:build", "agent:codex@laptop", "agent:codex", "topic:orders", "all", "other:x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		target, err := ParseTarget(s)
		if err != nil {
			if !errors.Is(err, ErrBadTarget) {
				t.Errorf("%v is not an error of the package", err)
			}
			return
		}
		if target.String() != s {
			t.Errorf("%q is written as %q", s, target)
		}
		if name, ok := QueueOf(s); ok != (target.Kind == TargetQueue) || ok && name != target.Name {
			t.Errorf("QueueOf(%q) = %q, %v; parsed as %+v", s, name, ok, target)
		}
	})
}
