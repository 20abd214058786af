package audit

import (
	"context"
	"fmt"
	"strings"
	"sync"
)

// Actors in the audit log.
const (
	ActorLocal  = "local"  // a program of this machine that did not say who it is
	ActorSystem = "system" // the node itself, by a rule
)

type (
	callerKey  struct{}
	requestKey struct{}
)

// WithCaller returns a context for calls that caller makes: "uid:1000" for a user of this
// machine. The audit log names it as the actor of what it did.
func WithCaller(ctx context.Context, caller string) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// callerOf returns who makes a call, [ActorLocal] if nobody said so.
func callerOf(ctx context.Context) string {
	if caller, ok := ctx.Value(callerKey{}).(string); ok {
		return caller
	}
	return ActorLocal
}

// A request is a command that a caller gave the node.
type request struct {
	action string
	mu     sync.Mutex
	did    []string // what its end states
	last   func()   // what is done once its end is written; nil: nothing
}

// Lastly does f once the end of the command that ctx belongs to is in the audit log, or at
// once if it belongs to none.
func Lastly(ctx context.Context, f func()) {
	c, ok := ctx.Value(requestKey{}).(*request)
	if !ok {
		f()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = f
}

// A RecordFunc writes that an action was done to something: see [Recorder.Record] and
// [Recorder.RecordSystem].
type RecordFunc func(ctx context.Context, action, what string) error

// A Recorder writes to a journal what callers do.
type Recorder struct {
	Journal *Journal
	Boot    func() uint64 // number of this start of the node
}

// StartCommand writes the start of a command to the audit log (I19); nothing may be done
// if that fails. The command is done with the returned context: what would be audited
// under the same action is stated by its end, which end writes. The result is "ok" or a
// code.
func (r Recorder) StartCommand(ctx context.Context, action, subject string) (act context.Context, end func(result string) error, err error) {
	detail := map[string]string{"subject": subject, "step": "start"}
	if err := r.append(ctx, callerOf(ctx), action, detail); err != nil {
		return nil, nil, err
	}
	c := &request{action: action}
	end = func(result string) error {
		detail := map[string]string{"subject": subject, "step": "end", "result": result}
		c.mu.Lock()
		if len(c.did) > 0 {
			detail["did"] = strings.Join(c.did, "; ")
		}
		last := c.last
		c.mu.Unlock()
		err := r.append(context.WithoutCancel(ctx), callerOf(ctx), action, detail)
		if err == nil && last != nil {
			last()
		}
		return err
	}
	return context.WithValue(ctx, requestKey{}, c), end, nil
}

// Record writes an action of the caller.
func (r Recorder) Record(ctx context.Context, action, what string) error {
	return r.recordAs(ctx, callerOf(ctx), action, what)
}

// RecordSystem writes an action of the node itself.
func (r Recorder) RecordSystem(ctx context.Context, action, what string) error {
	return r.recordAs(ctx, ActorSystem, action, what)
}

func (r Recorder) recordAs(ctx context.Context, actor, action, what string) error {
	if c, ok := ctx.Value(requestKey{}).(*request); ok && c.action == action {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.did = append(c.did, what)
		return nil
	}
	return r.append(ctx, actor, action, map[string]string{"subject": what})
}

func (r Recorder) append(ctx context.Context, actor, action string, detail map[string]string) error {
	for name, text := range detail {
		detail[name] = cut(text, maxText)
	}
	_, err := r.Journal.Append(ctx, Entry{Boot: r.Boot(), Actor: actor, Action: action, Detail: detail})
	if err != nil {
		return fmt.Errorf("audit %s: %w", action, err)
	}
	return nil
}
