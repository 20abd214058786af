package executor

import (
	"reflect"
	"slices"
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

// Each type accepts the options that have an effect for it, and refuses each other one with its
// name, that of the type, and the types that have it.
func TestTypesTakeTheirOptions(t *testing.T) {
	const all = "command discard echo function sha256"
	wants := map[string]string{
		"kind": all, "type": all, "allow": all, "profile": all, "timeout": all, "concurrency": all, "max_attempts": all, "max_retries": all,
		"lanes": all, "on_crash": all, "max_body": all, "max_output": "command echo function", "on_overflow": "command echo",
		"exec": "command", "args": "command", "allow_flags": "command", "body": "command", "env": "command", "run_as": "command", "dir": "command",
	}
	texts := map[string]string{"body": "file", "profile": "read-only", "timeout": "1s", "lanes": "shared", "on_crash": "retry", "on_overflow": "cut", "run_as": "nobody", "dir": "/"}
	for name, typ := range handlerTypes {
		for field := range reflect.TypeFor[wire.HandlerSpec]().Fields() {
			option := optionName(field)
			want, known := wants[option]
			if !known {
				t.Errorf("the test does not know which types take %s", option)
			}
			s := wire.HandlerSpec{Kind: "x", Type: name, Allow: []string{"peer:laptop"}}
			if typ.program() {
				s.Exec, s.Args = []string{"true"}, option == "allow_flags"
			}
			switch v := reflect.ValueOf(&s).Elem().FieldByIndex(field.Index); {
			case !v.IsZero():
			case v.Kind() == reflect.String:
				v.SetString(texts[option])
			case v.Kind() == reflect.Bool:
				v.SetBool(true)
			case v.CanInt():
				v.SetInt(3)
			default:
				v.Set(reflect.ValueOf([]string{"A=b"}))
			}
			err := Validate(s)
			if slices.Contains(strings.Fields(want), name) {
				if err != nil {
					t.Errorf("%s of type %s: %v", option, name, err)
				}
				continue
			}
			have := strings.ReplaceAll(strings.TrimSuffix(want, " function"), " ", " and ")
			if text := option + " has no effect for type " + name + ", only for " + have + ": drop " + option; err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s of type %s: %v, want %q", option, name, err, text)
			}
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
	doc := func(field string) string {
		f, _ := reflect.TypeFor[wire.HandlerSpec]().FieldByName(field)
		return f.Tag.Get("doc")
	}
	for _, name := range Types() {
		if !strings.Contains(doc("Type"), name) || (handlerTypes[name].onCrash != "") != strings.Contains(doc("OnCrash"), name) {
			t.Errorf("the descriptions of type and on_crash do not fit the type %s", name)
		}
	}
}
