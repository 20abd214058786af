package ownership

import (
	"fmt"
	"slices"

	"github.com/balefire/balefire/proto"
)

// validate returns proto.ErrMalformed for a message that no correct node sends whatever it
// knows: fields of a wrong size, epochs that would exhaust the numbers, an empty handoff.
// It also bounds what would be stored, so that the store accepts every record made from the
// message. Everything else is decided by the machine that knows the tasks.
func validate(body proto.Body) error {
	v := validator{body: body}
	switch m := body.(type) {
	case *proto.Grant:
		v.claim(m.GetClaim())
		v.boot(m.GetSettledBoot())
	case *proto.Granted:
		for _, t := range m.GetTaken() {
			v.claim(t.GetClaim())
			v.boot(t.GetSeenBoot())
		}
	case *proto.Start:
		v.claims(m.GetClaims())
	case *proto.Renew:
		v.claims(m.GetClaims())
	case *proto.Status:
		v.claims(m.GetClaims())
	case *proto.Release:
		for _, r := range m.GetReleased() {
			v.claim(r.GetClaim())
		}
	case *proto.StatusReply:
		for _, h := range m.GetHeld() {
			v.claim(h.GetClaim())
		}
	case *proto.Permit:
		v.rulings(m.GetRulings())
	case *proto.Renewed:
		v.rulings(m.GetRulings())
		v.boot(m.GetSettledBoot())
	case *proto.ReleaseReply:
		v.rulings(m.GetRulings())
	case *proto.Committed:
		v.rulings(m.GetRulings())
	case *proto.Cancel:
		v.size("task", m.GetTask(), idSize)
	case *proto.Handoff:
		v.handoff(m)
	case *proto.HandedOff:
		for _, x := range m.GetMoved() {
			if x.GetQueue() == "" || len(x.GetTask()) > 0 {
				v.size("task", x.GetTask(), idSize)
			}
		}
		for _, x := range m.GetRefused() {
			v.size("task", x.GetTask(), idSize)
		}
	case *proto.QueueStates:
		for _, q := range m.GetQueues() {
			v.queue(q)
		}
	}
	return v.err
}

// A validator records the first problem in a message.
type validator struct {
	body proto.Body
	err  error
}

const (
	idSize   = len(proto.TaskID{}) // of a task, a token and a boot id
	peerSize = len(proto.PeerID{})
)

func (v *validator) fail(format string, a ...any) {
	if v.err == nil {
		v.err = fmt.Errorf("%w: %s: %s", proto.ErrMalformed, v.body.ProtoReflect().Descriptor().Name(), fmt.Sprintf(format, a...))
	}
}

// size requires one of the sizes.
func (v *validator) size(what string, b []byte, sizes ...int) {
	if !slices.Contains(sizes, len(b)) {
		v.fail("%s of %d bytes", what, len(b))
	}
}

func (v *validator) boot(n uint64) {
	if n > maxBoot {
		v.fail("%d is not a boot number", n)
	}
}

func (v *validator) claim(m *proto.Claim) {
	v.size("task", m.GetTask(), idSize)
	v.size("token", m.GetToken(), idSize)
	v.size("boot id", m.GetBootId(), 0, idSize)
	v.boot(m.GetEpochBoot())
}

func (v *validator) claims(all []*proto.Claim) {
	for _, m := range all {
		v.claim(m)
	}
}

func (v *validator) rulings(all []*proto.Ruling) {
	for _, m := range all {
		v.size("task", m.GetTask(), idSize)
		v.size("token", m.GetToken(), idSize)
		v.size("boot id", m.GetBootId(), idSize)
		v.boot(m.GetEpochBoot())
		if m.GetCode() == proto.CodeMoved {
			v.size("new home", m.GetHome(), peerSize)
		}
	}
}

func (v *validator) queue(q *proto.QueueState) {
	if q.GetName() == "" {
		v.fail("a queue without a name")
	}
	if !validTitle(q) {
		v.fail("%.128q is not a name of kind %d with a group of %d bytes", q.GetName(), q.GetKind(), len(q.GetGroup()))
	}
	v.size("home", q.GetHome(), peerSize)
	if q.GetGeneration() > proto.MaxGeneration {
		v.fail("%d is not a generation of a queue", q.GetGeneration())
	}
	v.atMost("the state of a queue", q, proto.MaxQueueState)
	for _, x := range q.GetDeeds() {
		v.deed(x)
	}
}

func (v *validator) deed(x *proto.Signed) {
	if len(x.GetDetails()) > proto.MaxDeed || len(x.GetIssuer().GetDetails()) > proto.MaxDeed {
		v.fail("a statement of the home of a queue of %d bytes with a certificate of %d, the limit is %d", len(x.GetDetails()), len(x.GetIssuer().GetDetails()), proto.MaxDeed)
	}
}

// atMost requires an encoding of at most max bytes.
func (v *validator) atMost(what string, m proto.Body, max int) {
	if n := proto.Size(m); n > max {
		v.fail("%s of %d bytes, the limit is %d", what, n, max)
	}
}

func (v *validator) handoff(m *proto.Handoff) {
	if m.GetQueue() != nil {
		v.queue(m.GetQueue())
	}
	for _, b := range m.GetBlocks() {
		v.size("origin", b.GetOrigin(), 0, peerSize)
	}
	l := m.GetLease()
	switch {
	case l != nil:
		v.size("task", l.GetTask(), idSize)
		v.size("owner", l.GetOwner(), 0, peerSize)
		v.size("token", l.GetToken(), 0, idSize)
		v.size("boot id", l.GetBootId(), 0, idSize)
		v.boot(l.GetEpochBoot())
		v.atMost("a lease", l, proto.MaxLease)
		if l.GetState().Terminal() {
			v.fail("the task has ended")
		}
		if l.GetGeneration() < 2 {
			v.fail("generation %d is not one that a handoff begins", l.GetGeneration())
		}
	case m.GetQueue() == nil:
		v.fail("nothing is handed over")
	}
	v.size("predecessor", m.GetBehind(), 0, idSize)
	for _, b := range m.GetBlocks() {
		v.size("task", b.GetTask(), 0, idSize)
	}
}
