package executor

import (
	"cmp"
	"fmt"
	"maps"
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
	program  bool          // runs a program: exec and run_as have a meaning
	probed   bool          // can say whether an interrupted run had its effect: on_crash probe has a meaning
	embedded bool          // for a program that embeds a node alone: nobody else can name it
	files    bool          // a run needs a folder
	audited  bool          // a run has effects outside the node
	onCrash  inbox.OnCrash // default
	make     func(x *Executor, s wire.HandlerSpec) (handler.Handler, error)
}

var handlerTypes = map[string]handlerType{
	wire.TypeCommand: {program: true, probed: true, files: true, audited: true, make: makeCommand},
	wire.TypeDiscard: {onCrash: inbox.OnCrashRetry, make: func(*Executor, wire.HandlerSpec) (handler.Handler, error) { return agent.Discard{}, nil }},
	wire.TypeSHA256:  {onCrash: inbox.OnCrashRetry, make: func(*Executor, wire.HandlerSpec) (handler.Handler, error) { return agent.Hash{}, nil }},
	wire.TypeEcho: {files: true, onCrash: inbox.OnCrashRetry, make: func(_ *Executor, s wire.HandlerSpec) (handler.Handler, error) {
		return agent.Echo{MaxOutput: s.MaxOutput, CutOutput: s.OnOverflow == overflowCut}, nil
	}},
	wire.TypeFunction: {probed: true, embedded: true, files: true, audited: true, make: makeFunction},
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
