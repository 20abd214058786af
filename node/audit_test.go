package node

import (
	"testing"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// While the audit log cannot be written no command is started (I19), and that spends
// no attempt: a full disk makes no dead letters (I13).
func TestUnwritableAuditSpendsNoAttempt(t *testing.T) {
	a, b := pair(t, nil)
	if err := b.Handlers.Add(t.Context(), shell(func(s *wire.HandlerSpec) { s.MaxAttempts = 1 })); err != nil {
		t.Fatal(err)
	}
	b.storage.Audit.Close()
	id, err := proto.ParseTaskID(a.submit(t, wire.Request{Target: "b", Kind: "run", Args: []string{"true"}}))
	if err != nil {
		t.Fatal(err)
	}
	var state string
	eventually(t, func() bool {
		rec, err := b.inbox.Get(id)
		if err != nil {
			return false
		}
		state = rec.GetState().Name()
		return state != "ACCEPTED" && state != "RUNNING"
	}, func() string { return "it is still " + state })
	if rec, err := b.inbox.Get(id); err != nil || state != "RETRYING" || rec.GetAttempts() != 0 {
		t.Errorf("the task is %s with %d attempts spent, %v", state, rec.GetAttempts(), err)
	}
}

// The end of the command stop is written before the node stops, which closes the audit: the
// command does not fail because it has succeeded.
func TestStopWritesItsEndFirst(t *testing.T) {
	stopped := false
	a, _ := pair(t, nil)
	a.Node.cfg.Stop = func() {
		stopped = true
		a.storage.Audit.Close()
	}
	act, end, err := a.Audit.StartCommand(t.Context(), "node.stop", "/v1/stop")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Node.Stop(act, false); err != nil || stopped {
		t.Errorf("stop = %v, the node has stopped before the end is written: %v", err, stopped)
	}
	if err := end("ok"); err != nil || !stopped {
		t.Errorf("end = %v, stopped = %v", err, stopped)
	}
}
