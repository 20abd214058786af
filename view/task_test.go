package view

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A task that has not run has no exit code and no result, also in the API.
func TestExitCodeNeedsARun(t *testing.T) {
	for want, r := range map[string]*proto.Record{
		`{}`: {State: proto.Pending},
		`{"cause":"failed","reason":"exit code 3","exit_code":3}`: {State: proto.Retrying, Attempts: 1, ExitCode: 3, Cause: proto.TaskFailed, Reason: "exit code 3"},
		`{"cause":"cancelled_between","may_have_run":true}`:       {State: proto.Cancelled, Cause: proto.TaskCancelledBetween, MayHaveRun: true},
		`{"cause":"refused","reason":"not you","code":"DENIED"}`:  {State: proto.DeadLetter, Cause: proto.TaskRefused, Code: proto.CodeDenied, Reason: "not you"},
		`{"exit_code":0,"result_size":5}`:                         {State: proto.Success, Attempts: 1, ResultSize: 5},
		`{"reason":"its time is over"}`:                           {State: proto.Expired, Reason: "its time is over"},
		`{"reason":"killed","exit_code":-1}`:                      {State: proto.Timeout, Attempts: 2, ExitCode: -1, Reason: "killed"},
		`{"reason":"exit code 65","exit_code":65}`:                {State: proto.Failed, Attempts: 1, ExitCode: 65, Reason: "exit code 65"},
		`{"reason":"it was denied","exit_code":0}`:                {State: proto.Cancelled, Attempts: 1, Reason: "it was denied"},
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
	retrying, second := wire.Event{Node: "b", State: "RETRYING", Attempt: 1, Cause: "failed", Detail: "exit 1"}, wire.Event{Node: "b", State: "RUNNING", Attempt: 2}
	why := func(e wire.Event) wire.Event { e.Cause, e.Detail = "restarted", "why"; return e }
	for _, tt := range []struct {
		name         string
		events, want []wire.Event
	}{
		{"the first", []wire.Event{at(1, accepted)}, []wire.Event{at(1, accepted)}},
		{"the same by another clock", []wire.Event{at(2, accepted), at(1, accepted)}, []wire.Event{at(1, accepted)}},
		{"one between", []wire.Event{at(2, accepted), at(3, running), at(1, accepted)}, []wire.Event{at(3, running), at(1, accepted)}},
		{"with a cause", []wire.Event{at(2, running), at(1, why(running))}, []wire.Event{at(1, why(running))}},
		{"with a cause first", []wire.Event{at(2, why(running)), at(1, running)}, []wire.Event{at(1, why(running))}},
		{"reported before the failure that led to it", []wire.Event{running, at(5, second), retrying, at(4, second)}, []wire.Event{running, retrying, at(4, second)}},
		{"once more after a failure", []wire.Event{at(2, running), retrying, at(4, running)}, []wire.Event{at(2, running), retrying, at(4, running)}},
		{"another attempt", []wire.Event{running, second}, []wire.Event{running, second}},
		{"another node", []wire.Event{accepted, {Node: "c", State: "ACCEPTED"}}, []wire.Event{accepted, {Node: "c", State: "ACCEPTED"}}},
		{"other states", []wire.Event{retrying, retrying}, []wire.Event{retrying, retrying}},
		{"entries that were left out", []wire.Event{{Folded: 3}, {Folded: 3}}, []wire.Event{{Folded: 3}, {Folded: 3}}},
	} {
		var got []wire.Event
		for _, e := range tt.events {
			got = addEvent(got, e)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// Events are shown by time, although what a peer did is heard of after what this node did
// next. Those of one moment stay as they were recorded.
func TestEventsAreInTheOrderOfTime(t *testing.T) {
	at := func(ms int64, state proto.TaskState) *proto.Event { return &proto.Event{TimeMs: ms, State: state} }
	v := &Views{Config: Config{Self: identity.Member{Name: "alpha"}}}
	task := v.View(proto.TaskID{}, wire.RoleHome, &proto.Record{Events: []*proto.Event{
		at(1, proto.Pending), at(2, proto.Sent), at(9, proto.Success), at(3, proto.Accepted), at(9, proto.Cancelled),
	}})
	var got []string
	for _, e := range task.Events {
		got = append(got, e.State)
	}
	if want := []string{"PENDING", "SENT", "ACCEPTED", "SUCCESS", "CANCELLED"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// The times that the owner of a task states, which may be any numbers, do not keep the task from
// being shown.
func TestTimesOfAnOwnerAreShown(t *testing.T) {
	v := &Views{Config: Config{Self: identity.Member{Name: "alpha"}}}
	r := &proto.Record{
		State: proto.Success, Events: []*proto.Event{{TimeMs: 1 << 62, State: proto.Running}}, History: []*proto.Attempt{{Number: 1, StartedMs: 1 << 62, FinishedMs: -1 << 62}},
	}
	if text, err := json.Marshal(v.View(proto.TaskID{1}, wire.RoleHome, r)); err != nil {
		t.Errorf("%s, %v", text, err)
	}
}
