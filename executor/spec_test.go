package executor

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// An allow list that cannot match any peer is reported as a mistake.
func TestAllowListMustNameSomeone(t *testing.T) {
	for allow, good := range map[string]bool{
		"peer:laptop": true, "role:work": true, "peer:12D3KooWAULqkVkhpk1K2bYTnPmYT4iRayo7JPcfbMPhQ3hWdxRc": true,
		"peer:*": false, "peer:Laptop": false, "peer:": false, "laptop": true, "*": false, "peer:a b": false,
	} {
		if err := Validate(wire.HandlerSpec{Kind: "x", Type: wire.TypeEcho, Allow: []string{allow}}); (err == nil) != good {
			t.Errorf("allow %q: %v", allow, err)
		}
	}
}

// A negative limit is named.
func TestNegativeLimitsAreNamed(t *testing.T) {
	for name, s := range map[string]wire.HandlerSpec{
		"concurrency": {Concurrency: -3}, "max_attempts": {MaxAttempts: -3}, "max_retries": {MaxRetries: -3}, "max_body": {MaxBody: -3}, "max_output": {MaxOutput: -3},
	} {
		s.Kind, s.Type, s.Allow = "x", wire.TypeEcho, []string{"peer:laptop"}
		if err := Validate(s); err == nil || !strings.Contains(err.Error(), name+" is -3") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The limit of a run is a duration as everywhere else: it may have days.
func TestRunLimits(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"": 10 * time.Minute, "0": 0, "90s": 90 * time.Second, "1d": 24 * time.Hour, "1d12h": 36 * time.Hour, "-1h": -1, "soon": -1,
	} {
		got, err := runLimit(wire.HandlerSpec{Timeout: text})
		if got != max(want, 0) || (err == nil) != (want >= 0) {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
}

// An unknown type is refused with the types that a command or a configuration may name.
func TestOfferedTypes(t *testing.T) {
	if _, err := typeOf(wire.HandlerSpec{Kind: "x", Type: "bar"}); err == nil || strings.Contains(err.Error(), wire.TypeFunction) {
		t.Errorf("%v", err)
	}
	for _, doc := range []reflect.Type{reflect.TypeFor[wire.HandlerSpec](), reflect.TypeFor[wire.Handler]()} {
		f, _ := doc.FieldByName("Type")
		if got := f.Tag.Get("enum"); got != strings.Join(Types(), ",") {
			t.Errorf("the API describes the types %s of %s, want %s", got, doc.Name(), Types())
		}
	}
}
