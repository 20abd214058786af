package executor

import (
	"context"
	"errors"
	"os/exec"
	"time"

	"github.com/balefire/balefire/agent/command"
	"github.com/balefire/balefire/wire"
)

// programsEvery is the interval between checks whether the programs of the handlers
// exist.
const programsEvery = 10 * time.Second

// problem returns why the program of a handler cannot be started now, nil if it can, and the same
// as a text for those who sent tasks.
func (x *Executor) problem(s wire.HandlerSpec) (why *wire.Note, text string) {
	if len(s.Exec) == 0 {
		return nil, ""
	}
	if err := command.Find(s.Exec[0]); err != nil {
		detail := err.Error()
		if e, ok := errors.AsType[*exec.Error](err); ok {
			detail = e.Error()
		}
		return problem(wire.ProblemProgram, detail), err.Error()
	}
	if err := x.mayRunAs(s); err != nil {
		return problem(wire.ProblemRunAs, err.Error()), err.Error()
	}
	return nil, ""
}

func problem(code wire.NoteCode, detail string) *wire.Note {
	return &wire.Note{Code: code, NoteArgs: wire.NoteArgs{Detail: detail}}
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
		_, why := x.problem(s)
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
