package node

import "context"

type callerKey struct{}

// WithCaller returns a context for calls that caller makes: "uid:1000" for a user of this
// machine. The audit log names it as the actor of what it did.
func WithCaller(ctx context.Context, caller string) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// callerOf returns who makes a call, [actorLocal] if nobody said so.
func callerOf(ctx context.Context) string {
	if caller, ok := ctx.Value(callerKey{}).(string); ok {
		return caller
	}
	return actorLocal
}
