package inbox

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
)

// members is a table of peers.
type members map[proto.PeerID]testMember

type testMember struct {
	name  string
	roles []string
}

func (m members) Member(p proto.PeerID) (string, []string, bool) {
	v, ok := m[p]
	return v.name, v.roles, ok
}

// a handlerFunc is a function as a handler.
type handlerFunc func(context.Context, *handler.Run) *handler.Result

func (f handlerFunc) Run(ctx context.Context, r *handler.Run) *handler.Result { return f(ctx, r) }

func succeed(context.Context, *handler.Run) *handler.Result {
	return &handler.Result{Outcome: handler.Success}
}

// TestAllows checks the default deny and the three kinds of rules (I17).
func TestAllows(t *testing.T) {
	laptop, phone, stranger := proto.PeerID{1}, proto.PeerID{2}, proto.PeerID{3}
	who := members{laptop: {"laptop", []string{"send", "work"}}, phone: {"phone", []string{"send"}}}
	tests := []struct {
		name                    string
		allow                   []string
		laptop, phone, stranger bool
	}{
		{"no peer by default", nil, false, false, false},
		{"by name", []string{"peer:laptop"}, true, false, false},
		{"by id", []string{"peer:" + phone.String()}, false, true, false},
		{"by role", []string{"role:work"}, true, false, false},
		{"any of several", []string{"role:admin", "peer:phone"}, false, true, false},
		{"every member", []string{"*"}, true, true, false},
		{"an id is not a membership", []string{"peer:" + stranger.String()}, false, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h, err := newRegistry(nil).compile(Spec{Kind: "k", Handler: handlerFunc(succeed), Allow: tt.allow})
			if err != nil {
				t.Fatal(err)
			}
			for p, want := range map[proto.PeerID]bool{laptop: tt.laptop, phone: tt.phone, stranger: tt.stranger} {
				if got := h.allows(p, who); got != want {
					t.Errorf("allows %s = %v, want %v", who[p].name, got, want)
				}
			}
		})
	}
}

func TestCompileRefuses(t *testing.T) {
	run := handlerFunc(succeed)
	tests := []struct {
		name string
		spec Spec
		says string
	}{
		{"no kind", Spec{Handler: run}, "1 to 128"},
		{"a long kind", Spec{Kind: strings.Repeat("k", 129), Handler: run}, "1 to 128"},
		{"no handler", Spec{Kind: "k"}, "no handler"},
		{"fewer retries than attempts", Spec{Kind: "k", Handler: run, MaxRetries: 2}, "3 without asking"},
		{"negative attempts", Spec{Kind: "k", Handler: run, MaxAttempts: -1}, "negative"},
		{"unknown policy", Spec{Kind: "k", Handler: run, OnCrash: "pray"}, "retry, probe or park"},
		{"a probe that cannot be asked", Spec{Kind: "k", Handler: run, OnCrash: OnCrashProbe}, "cannot be asked"},
		{"unknown profile", Spec{Kind: "k", Handler: run, Profile: "yolo"}, "read-only"},
		{"dangerous, unnamed", Spec{Kind: "k", Handler: run, Profile: Dangerous}, "configuration"},
		{"dangerous by role", Spec{Kind: "shell", Handler: run, Profile: Dangerous, Allow: []string{"role:work"}}, "by name or id"},
		{"dangerous for all", Spec{Kind: "shell", Handler: run, Profile: Dangerous, Allow: []string{"*"}}, "by name or id"},
		{"a rule without a type", Spec{Kind: "k", Handler: run, Allow: []string{"laptop"}}, "write peer:laptop"},
		{"an empty peer", Spec{Kind: "k", Handler: run, Allow: []string{"peer:"}}, "must be peer:NAME"},
		{"an empty role", Spec{Kind: "k", Handler: run, Allow: []string{"role:"}}, "must be peer:NAME"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := newRegistry([]string{"shell"}).compile(tt.spec)
			if !errors.Is(err, ErrSpec) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %v does not say %q", err, tt.says)
			}
		})
	}
}

func TestCompileDefaults(t *testing.T) {
	h, err := newRegistry(nil).compile(Spec{Kind: "k", Handler: handlerFunc(succeed)})
	if err != nil {
		t.Fatal(err)
	}
	if h.MaxAttempts != 3 || h.OnCrash != OnCrashPark || h.Timeout != 10*time.Minute || h.Profile != DevWrite {
		t.Errorf("defaults are %+v", h.Spec)
	}
	if h.maxAttempts(0) != 3 || h.maxAttempts(2) != 2 || h.maxAttempts(7) != 3 || h.maxAttempts(math.MaxUint32) != 3 {
		t.Error("a task has the attempts that it asks for, up to those of its handler")
	}
	h, err = newRegistry(nil).compile(Spec{Kind: "k", Handler: handlerFunc(succeed), MaxRetries: 5})
	if err != nil {
		t.Fatal(err)
	}
	if h.maxAttempts(0) != 3 || h.maxAttempts(5) != 5 || h.maxAttempts(math.MaxUint32) != 5 {
		t.Error("a handler that allows more attempts than it makes by itself gives them to a task that asks")
	}
}
