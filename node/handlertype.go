package node

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
)

// Types of handlers.
const (
	TypeCommand  = "command"  // runs a program
	TypeDiscard  = "discard"  // reads the body and succeeds
	TypeEcho     = "echo"     // answers with the body
	TypeSHA256   = "sha256"   // answers with the body's digest
	TypeFunction = "function" // calls a function of the program that embeds the node: see [Config.Handle]
)

// A handlerType knows how to make the handlers of one type. All that differs between
// types is here.
type handlerType struct {
	program bool          // runs a program: exec, run_as and on_crash probe have a meaning
	files   bool          // a run needs a folder
	audited bool          // a run has effects outside the node
	onCrash inbox.OnCrash // default
	make    func(n *Node, s HandlerSpec) (handler.Handler, error)
}

var handlerTypes = map[string]handlerType{
	TypeCommand: {program: true, files: true, audited: true, make: makeCommand},
	TypeDiscard: {onCrash: inbox.OnCrashRetry, make: func(*Node, HandlerSpec) (handler.Handler, error) { return agent.Discard{}, nil }},
	TypeSHA256:  {onCrash: inbox.OnCrashRetry, make: func(*Node, HandlerSpec) (handler.Handler, error) { return agent.Hash{}, nil }},
	TypeEcho: {files: true, onCrash: inbox.OnCrashRetry, make: func(_ *Node, s HandlerSpec) (handler.Handler, error) {
		return agent.Echo{MaxOutput: s.MaxOutput, CutOutput: s.OnOverflow == overflowCut}, nil
	}},
	TypeFunction: {files: true, audited: true, make: func(_ *Node, s HandlerSpec) (handler.Handler, error) { return s.Function, nil }},
}

// typ returns the type of s, a command unless it states another.
func (s HandlerSpec) typ() (handlerType, error) {
	t, ok := handlerTypes[cmp.Or(s.Type, TypeCommand)]
	if !ok {
		return t, fmt.Errorf("type %.40q: use one of %s", s.Type, strings.Join(slices.Sorted(maps.Keys(handlerTypes)), ", "))
	}
	return t, nil
}

func makeCommand(n *Node, s HandlerSpec) (handler.Handler, error) {
	cfg := command.Config{
		Exec: s.Exec, AllowArgs: s.Args, AllowFlags: s.AllowFlags, Env: s.Env, Dir: s.Dir, RunAs: s.RunAs,
		Timeout: -1, MaxOutput: s.MaxOutput, CutOutput: s.OnOverflow == overflowCut, Node: n.keys.Peer().String(),
	}
	if s.Body == "file" {
		cfg.PassBody = command.PassFile
	}
	return command.New(cfg)
}

// spec turns a handler's description into what the inbox registers.
func (n *Node) spec(s HandlerSpec) (inbox.Spec, error) {
	if err := s.Validate(); err != nil {
		return inbox.Spec{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	timeout, err := s.timeout()
	if err != nil {
		return inbox.Spec{}, err
	}
	if timeout == 0 {
		timeout = -1
	}
	typ, err := s.typ()
	if err != nil {
		return inbox.Spec{}, err
	}
	h, err := typ.make(n, s)
	if err != nil {
		return inbox.Spec{}, fmt.Errorf("%w: handler %s: %w", ErrInvalid, s.Kind, err)
	}
	w := worker{node: n, spec: s, typ: typ, handler: h}
	out := inbox.Spec{
		Kind: s.Kind, Handler: w, Allow: allowed(s.Allow), Profile: inbox.Profile(s.Profile), Concurrency: s.Concurrency,
		MaxAttempts: s.MaxAttempts, MaxRetries: s.MaxRetries, SharedLanes: s.Lanes == LanesShared, Timeout: timeout, MaxBody: uint64(s.MaxBody),
		OnCrash: cmp.Or(inbox.OnCrash(s.OnCrash), typ.onCrash),
	}
	if p, ok := h.(handler.Prober); ok && out.OnCrash == inbox.OnCrashProbe {
		out.Handler = prober{w, p}
	}
	return out, nil
}

// Handle registers h, of the program that embeds the node, for tasks of a kind. allow
// lists who may send them: peer:NAME, peer:ID or role:ROLE. Other settings can be changed
// in the entry that is added to c.Handlers.
func (c *Config) Handle(kind string, h handler.Handler, allow ...string) {
	c.Handlers = append(c.Handlers, HandlerSpec{Kind: kind, Type: TypeFunction, Function: h, Allow: allow})
}
