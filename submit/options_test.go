package submit

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Every option of a request gets into its task, and back into the request of a redrive.
func TestOptionsSurviveARedrive(t *testing.T) {
	full := new(proto.TaskOptions)
	for v, i := reflect.ValueOf(full).Elem(), 0; i < v.NumField(); i++ {
		switch f := v.Field(i); {
		case !v.Type().Field(i).IsExported():
		case f.CanUint():
			f.SetUint(7)
		case f.Kind() == reflect.Slice:
			f.Set(reflect.ValueOf([]string{"gpu=yes"}))
		default:
			t.Fatalf("no value for %s", v.Type().Field(i).Name)
		}
		var r wire.Request
		SetOptions(&r, full)
		if got := options(&r); v.Type().Field(i).IsExported() && !reflect.DeepEqual(got, full) {
			t.Errorf("with %s: %v, want %v", v.Type().Field(i).Name, got, full)
		}
	}
	if options(new(wire.Request)) != nil {
		t.Error("a request without options has some")
	}
}

// TestTasksStartBeforeTheirEnd checks that a task which could not start before its time to
// live ends is refused.
func TestTasksStartBeforeTheirEnd(t *testing.T) {
	c := clock.Runtime()
	s := &Submitter{Parts: Parts{Clock: c}}
	day, hour := wire.Duration(24*time.Hour), wire.Duration(time.Hour)
	for _, tt := range []struct {
		name string
		with wire.Request
		ok   bool
	}{
		{"a delay", wire.Request{Delay: 6 * day}, true},
		{"a delay beyond the default", wire.Request{Delay: 8 * day}, false},
		{"a delay as long as the ttl", wire.Request{Delay: hour, TTL: hour}, false},
		{"a time", wire.Request{At: c.Now().Add(time.Minute), TTL: hour}, true},
		{"a time beyond the ttl", wire.Request{At: c.Now().Add(2 * time.Hour), TTL: hour}, false},
		{"a time beyond the default", wire.Request{At: c.Now().Add(8 * 24 * time.Hour)}, false},
		{"a time that has passed", wire.Request{At: c.Now().Add(-time.Hour)}, true},
	} {
		tt.with.Target, tt.with.Kind = "laptop", "backup"
		if err := s.CheckRequest(&tt.with); (err == nil) != tt.ok || err != nil && !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestLargestRequest checks how many arguments and labels a task may have, and how many bytes.
func TestLargestRequest(t *testing.T) {
	s := &Submitter{Parts: Parts{Clock: clock.Runtime()}}
	labels := func(n int) map[string]string {
		all := map[string]string{}
		for i := range n {
			all[fmt.Sprint("label", i)] = "x"
		}
		return all
	}
	for _, tt := range []struct {
		name string
		with wire.Request
		ok   bool
	}{
		{"256 arguments", wire.Request{Args: make([]string, 256)}, true},
		{"257 arguments", wire.Request{Args: make([]string, 257)}, false},
		{"64 KiB of arguments", wire.Request{Args: []string{strings.Repeat("x", 64<<10)}}, true},
		{"a byte more", wire.Request{Args: []string{strings.Repeat("x", 64<<10), "x"}}, false},
		{"32 labels", wire.Request{Labels: labels(32)}, true},
		{"33 labels", wire.Request{Labels: labels(33)}, false},
	} {
		tt.with.Target, tt.with.Kind = "laptop", "backup"
		if err := s.CheckRequest(&tt.with); (err == nil) != tt.ok || err != nil && !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
