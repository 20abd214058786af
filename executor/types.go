package executor

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/balefire/balefire/agent"
	"github.com/balefire/balefire/agent/command"
	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/wire"
)

// A handlerType knows how to make the handlers of one type. All that differs between
// types is here.
type handlerType struct {
	options  []string      // that have an effect, in addition to commonOptions
	probed   bool          // can say whether an interrupted run had its effect: on_crash probe has a meaning
	embedded bool          // for a program that embeds a node alone: nobody else can name it
	files    bool          // a run needs a folder
	audited  bool          // a run has effects outside the node
	onCrash  inbox.OnCrash // default
	make     func(x *Executor, s wire.HandlerSpec) (handler.Handler, error)
}

// commonOptions are the options of every type, by their names in the configuration.
var commonOptions = []string{"kind", "type", "allow", "profile", "timeout", "concurrency", "max_attempts", "max_retries", "lanes", "on_crash", "max_body"}

var handlerTypes = map[string]handlerType{
	wire.TypeCommand: {
		options: []string{execOption, "args", "allow_flags", "body", "max_output", "on_overflow", "env", "run_as", "dir"},
		probed:  true, files: true, audited: true, make: makeCommand,
	},
	wire.TypeDiscard: {onCrash: inbox.OnCrashRetry, make: func(*Executor, wire.HandlerSpec) (handler.Handler, error) { return agent.Discard{}, nil }},
	wire.TypeSHA256:  {onCrash: inbox.OnCrashRetry, make: func(*Executor, wire.HandlerSpec) (handler.Handler, error) { return agent.Hash{}, nil }},
	wire.TypeEcho: {options: []string{"max_output", "on_overflow"}, files: true, onCrash: inbox.OnCrashRetry, make: func(_ *Executor, s wire.HandlerSpec) (handler.Handler, error) {
		return agent.Echo{MaxOutput: s.MaxOutput, CutOutput: s.OnOverflow == overflowCut}, nil
	}},
	wire.TypeFunction: {options: []string{"max_output"}, probed: true, embedded: true, files: true, audited: true, make: makeFunction},
}

// execOption is the option that only types which run a program have.
const execOption = "exec"

// takes reports whether an option has an effect for handlers of this type.
func (t handlerType) takes(option string) bool {
	return slices.Contains(commonOptions, option) || slices.Contains(t.options, option)
}

// program reports whether handlers of this type run a program.
func (t handlerType) program() bool { return t.takes(execOption) }

// OptionTypes returns the types for which an option of a handler has an effect; nil: all of
// them.
func OptionTypes(option string) []string {
	if slices.Contains(commonOptions, option) {
		return nil
	}
	return slices.DeleteFunc(Types(), func(name string) bool { return !handlerTypes[name].takes(option) })
}

// unusedOption returns the first option of s that has no effect for its type; empty: none.
func (t handlerType) unusedOption(s wire.HandlerSpec) string {
	v := reflect.ValueOf(s)
	for f, value := range v.Fields() {
		if name := optionName(f); !value.IsZero() && !t.takes(name) {
			return name
		}
	}
	return ""
}

// optionName returns the name of a field of a handler in the configuration.
func optionName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

// Types returns the names of the types that a handler can have.
func Types() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(handlerTypes)), func(name string) bool { return handlerTypes[name].embedded })
}

// typeName returns the name of the type of s, a command unless it states another.
func typeName(s wire.HandlerSpec) string { return cmp.Or(s.Type, wire.TypeCommand) }

// typeOf returns the type of s.
func typeOf(s wire.HandlerSpec) (handlerType, error) {
	t, ok := handlerTypes[typeName(s)]
	if !ok {
		return t, fmt.Errorf("type %.40q: use one of %s", s.Type, strings.Join(Types(), ", "))
	}
	return t, nil
}

func makeFunction(x *Executor, s wire.HandlerSpec) (handler.Handler, error) {
	if h := x.cfg.Functions[s.Kind]; h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("type %s is for a program that embeds a node: it registers a function with Config.Handle", wire.TypeFunction)
}

func makeCommand(x *Executor, s wire.HandlerSpec) (handler.Handler, error) {
	cfg := command.Config{
		Exec: s.Exec, AllowArgs: s.Args, AllowFlags: s.AllowFlags, Env: s.Env, Dir: s.Dir, RunAs: s.RunAs,
		Timeout: -1, MaxOutput: s.MaxOutput, CutOutput: s.OnOverflow == overflowCut, Node: x.cfg.Node.String(),
	}
	if s.Body == "file" {
		cfg.PassBody = command.PassFile
	}
	return command.New(cfg)
}

// compile turns a handler's description into what the inbox registers.
func (x *Executor) compile(s wire.HandlerSpec) (inbox.Spec, error) {
	if err := Validate(s); err != nil {
		return inbox.Spec{}, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	timeout, err := runLimit(s)
	if err != nil {
		return inbox.Spec{}, err
	}
	if timeout == 0 {
		timeout = -1
	}
	typ, err := typeOf(s)
	if err != nil {
		return inbox.Spec{}, err
	}
	h, err := typ.make(x, s)
	if err != nil {
		return inbox.Spec{}, fmt.Errorf("%w: handler %s: %w", wire.ErrInvalid, s.Kind, err)
	}
	w := worker{exec: x, spec: s, typ: typ, handler: h}
	out := inbox.Spec{
		Kind: s.Kind, Handler: w, Allow: allowed(s.Allow), Profile: inbox.Profile(s.Profile), Concurrency: s.Concurrency,
		MaxAttempts: s.MaxAttempts, MaxRetries: s.MaxRetries, SharedLanes: s.Lanes == wire.LanesShared, Timeout: timeout, MaxBody: uint64(s.MaxBody),
		OnCrash: cmp.Or(inbox.OnCrash(s.OnCrash), typ.onCrash),
	}
	if p, ok := h.(handler.Prober); ok && out.OnCrash == inbox.OnCrashProbe {
		out.Handler = prober{w, p}
	}
	return out, nil
}
