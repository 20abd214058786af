package executor

import (
	"context"
	"time"

	"github.com/balefire/balefire/agent/command"
	"github.com/balefire/balefire/wire"
)

// programsEvery is the interval between checks whether the programs of the handlers
// exist.
const programsEvery = 10 * time.Second

// problem returns the reason why the program of a handler cannot be started now, or "".
func (x *Executor) problem(s wire.HandlerSpec) string {
	if len(s.Exec) == 0 {
		return ""
	}
	if err := command.Find(s.Exec[0]); err != nil {
		return err.Error()
	}
	if err := x.mayRunAs(s); err != nil {
		return err.Error()
	}
	return ""
}

// Run withdraws the kinds whose programs are missing from the kinds that this
// node offers, and restores them when the programs are back, until ctx ends.
func (x *Executor) Run(ctx context.Context) error {
	tick := time.NewTicker(programsEvery)
	defer tick.Stop()
	for {
		x.Check()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Check looks now for the programs of the handlers.
func (x *Executor) Check() {
	back := false
	x.mu.Lock()
	for kind, s := range x.specs {
		why := x.problem(s)
		if !x.parts.Inbox.Suspend(kind, why) {
			continue
		}
		if why != "" {
			x.cfg.Logger.Warn("a handler cannot be started; its kind is not offered until then", "kind", kind, "err", why)
			continue
		}
		x.cfg.Logger.Info("a handler can be started again", "kind", kind)
		back = true
	}
	x.mu.Unlock()
	if back {
		x.parts.Changed(true)
	}
}
