package view

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A task that has not run has no exit code and no result, also in the API.
func TestExitCodeNeedsARun(t *testing.T) {
	for want, r := range map[string]*proto.Record{
		`{}`:                                       {State: proto.Pending},
		`{"reason":"exit code 3","exit_code":3}`:   {State: proto.Retrying, Attempts: 1, ExitCode: 3, Reason: "exit code 3"},
		`{"exit_code":0,"result_size":5}`:          {State: proto.Success, Attempts: 1, ResultSize: 5},
		`{"reason":"its time is over"}`:            {State: proto.Expired, Reason: "its time is over"},
		`{"reason":"killed","exit_code":-1}`:       {State: proto.Timeout, Attempts: 2, ExitCode: -1, Reason: "killed"},
		`{"reason":"exit code 65","exit_code":65}`: {State: proto.Failed, Attempts: 1, ExitCode: 65, Reason: "exit code 65"},
		`{"reason":"it was denied","exit_code":0}`: {State: proto.Cancelled, Attempts: 1, Reason: "it was denied"},
	} {
		if got, err := json.Marshal(ending(r)); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v", want, got, err)
		}
	}
}

// An event reported by both sides is shown once.
func TestEventsOfBothSidesMerge(t *testing.T) {
	at := func(ms int, e wire.Event) wire.Event { e.Time = time.UnixMilli(int64(ms)); return e }
	accepted, running := wire.Event{Node: "b", State: "ACCEPTED"}, wire.Event{Node: "b", State: "RUNNING", Attempt: 1}
	for _, tt := range []struct {
		name   string
		before []wire.Event
		e      wire.Event
		want   bool
	}{
		{"the first", nil, at(1, accepted), false},
		{"the same by another clock", []wire.Event{at(2, accepted)}, at(1, accepted), true},
		{"the same, and one between", []wire.Event{at(2, accepted), at(3, running)}, at(1, accepted), true},
		{"once more after a failure", []wire.Event{at(2, running), {Node: "b", State: "RETRYING", Cause: "exit 1"}}, at(4, running), false},
		{"another state", []wire.Event{at(1, accepted)}, at(1, running), false},
		{"another attempt", []wire.Event{at(1, running)}, at(1, wire.Event{Node: "b", State: "RUNNING", Attempt: 2}), false},
		{"another node", []wire.Event{at(1, accepted)}, at(1, wire.Event{Node: "c", State: "ACCEPTED"}), false},
		{"with a cause", []wire.Event{{Node: "b", State: "RETRYING", Cause: "exit 1"}}, wire.Event{Node: "b", State: "RETRYING", Cause: "exit 1"}, false},
		{"entries that were left out", []wire.Event{{Folded: 3}}, wire.Event{Folded: 3}, false},
	} {
		if got := repeats(tt.e, tt.before); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
