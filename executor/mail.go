package executor

import (
	"fmt"
	"slices"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// Program returns what runs the program of a mailbox: as that of a handler, with a folder and two
// records in the audit for each run. The name of the box is the kind in the audit. The error
// wraps [wire.ErrInvalid], or [wire.ErrDenied] if this node may not run it.
func (x *Executor) Program(box string, s wire.MailHandler) (handler.Handler, error) {
	spec := wire.HandlerSpec{Kind: box, Exec: s.Exec, Profile: s.Profile, Env: s.Env, RunAs: s.RunAs, Dir: s.Dir, MaxOutput: proto.MaxInlineBody}
	if s.Forward == "" { // nobody reads the output
		spec.MaxOutput, spec.OnOverflow = 1, overflowCut
	}
	switch {
	case !oneOf(s.Profile, "", "read-only", "dev-write", "dangerous"):
		return nil, fmt.Errorf("%w: profile %.40q: use read-only, dev-write or dangerous", wire.ErrInvalid, s.Profile)
	case s.Profile == "dangerous" && !slices.Contains(x.cfg.Dangerous, box):
		return nil, fmt.Errorf("%w: its program is dangerous: name %s under dangerous in this node's own configuration", wire.ErrDenied, box)
	}
	typ, err := typeOf(spec)
	if err != nil {
		return nil, err
	}
	h, err := typ.make(x, spec)
	if err == nil {
		err = checkFolder(s.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	if err := x.mayRunAs(spec); err != nil {
		return nil, fmt.Errorf("%w: %w", wire.ErrDenied, err)
	}
	return worker{exec: x, spec: spec, typ: typ, handler: h}, nil
}

// A cutRun is a run that the death of the process cut off.
type cutRun struct {
	kind string // of the task; of a mail its box, as people name it
	id   proto.TaskID
}

// Interrupted reports whether the death of the process cut off the run of a mail with an id in a
// box, once for each run: two nodes may have sent mails with one id.
func (x *Executor) Interrupted(box string, id proto.TaskID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	run := cutRun{box, id}
	left := x.interrupted[run]
	if left > 0 {
		x.interrupted[run] = left - 1
	}
	return left > 0
}
