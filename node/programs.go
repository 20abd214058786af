package node

import (
	"context"
	"time"

	"github.com/balefire/balefire/agent/command"
	"github.com/balefire/balefire/wire"
)

// programsEvery is the interval between checks whether the programs of the handlers
// exist.
const programsEvery = 10 * time.Second

// programProblem returns the reason why the program of a handler cannot be started now, or "".
func programProblem(s wire.HandlerSpec) string {
	if len(s.Exec) == 0 {
		return ""
	}
	if err := command.Find(s.Exec[0]); err != nil {
		return err.Error()
	}
	if s.RunAs != "" {
		if err := command.MayRunAs(s.RunAs, ""); err != nil {
			return err.Error()
		}
	}
	return ""
}

// watchPrograms withdraws the kinds whose programs are missing from the kinds that this
// node offers, and restores them when the programs are back.
func (n *Node) watchPrograms(ctx context.Context) error {
	tick := time.NewTicker(programsEvery)
	defer tick.Stop()
	for {
		n.checkPrograms()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (n *Node) checkPrograms() {
	back := false
	n.handlers.Lock()
	for kind, s := range n.handlers.specs {
		why := programProblem(s)
		if !n.inbox.Suspend(kind, why) {
			continue
		}
		if why != "" {
			n.log.Warn("a handler cannot be started; its kind is not offered until then", "kind", kind, "err", why)
			continue
		}
		n.log.Info("a handler can be started again", "kind", kind)
		back = true
	}
	n.handlers.Unlock()
	if back {
		n.announceHandlers()
	}
}
