package schedule

import (
	"reflect"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A schedule is shown, and its task is submitted, with every field as it was defined.
func TestAScheduleKeepsItsDefinition(t *testing.T) {
	s := &Scheduler{parts: Parts{Tasks: new(lonelyNode), Name: func(proto.PeerID) string { return "" }}, cfg: Config{Clock: clock.Runtime()}}
	spec := wire.ScheduleSpec{
		Queue: "build", Name: "nightly", Cron: "0 3 * * *", Zone: "Europe/Berlin", Missed: "run-all", MissedCap: 3,
		ScheduledTask: wire.ScheduledTask{
			Kind: "build", Class: "high", TTL: wire.Duration(time.Hour), Order: "key", OnDead: "block", Args: []string{"-v"}, Body: []byte("x"), Type: "text/plain",
			Labels: map[string]string{"team": "a"}, Require: []string{"gpu"}, Prefer: []string{"ssd"}, Retries: 4,
		},
	}
	m, err := s.parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.view(m).ScheduleSpec; !reflect.DeepEqual(got, spec) {
		t.Errorf("it is shown as %+v, want %+v", got, spec)
	}
	request, task := reflect.ValueOf(request(m)), reflect.ValueOf(spec.ScheduledTask)
	for i := range task.NumField() {
		name := task.Type().Field(i).Name
		if task.Field(i).IsZero() {
			t.Errorf("the test sets no %s", name)
		}
		if got, want := request.FieldByName(name).Interface(), task.Field(i).Interface(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is submitted as %v, want %v", name, got, want)
		}
	}
	for i := range reflect.TypeFor[wire.ScheduleSpec]().NumField() {
		if f := reflect.ValueOf(spec).Field(i); f.IsZero() {
			t.Errorf("the test sets no %s", reflect.TypeFor[wire.ScheduleSpec]().Field(i).Name)
		}
	}
}
