package ownership

import (
	"fmt"

	"github.com/balefire/balefire/proto"
)

// checkForm returns proto.ErrMalformed for a message that no node sends, whatever it
// knows: parts of a wrong size, epochs that would use up the numbers, a handoff of
// nothing. What of it would be stored is bounded here, so that the store takes each
// record that is made of it. Everything else is decided by who knows the tasks.
func checkForm(body proto.Body) error {
	f := form{body: body}
	switch m := body.(type) {
	case *proto.Grant:
		f.claim(m.GetClaim())
		f.boot(m.GetSettledBoot())
	case *proto.Granted:
		for _, t := range m.GetTaken() {
			f.claim(t.GetClaim())
			f.boot(t.GetSeenBoot())
		}
	case *proto.Start:
		f.claims(m.GetClaims())
	case *proto.Renew:
		f.claims(m.GetClaims())
	case *proto.Status:
		f.claims(m.GetClaims())
	case *proto.Release:
		for _, r := range m.GetReleased() {
			f.claim(r.GetClaim())
		}
	case *proto.StatusReply:
		for _, h := range m.GetHeld() {
			f.claim(h.GetClaim())
		}
	case *proto.Permit:
		f.rulings(m.GetRulings())
	case *proto.Renewed:
		f.rulings(m.GetRulings())
		f.boot(m.GetSettledBoot())
	case *proto.ReleaseReply:
		f.rulings(m.GetRulings())
	case *proto.Committed:
		f.rulings(m.GetRulings())
	case *proto.Cancel:
		f.size("task", m.GetTask(), idSize)
	case *proto.Handoff:
		f.handoff(m)
	case *proto.HandedOff:
		for _, x := range m.GetMoved() {
			if x.GetQueue() == "" || len(x.GetTask()) > 0 {
				f.size("task", x.GetTask(), idSize)
			}
		}
		for _, x := range m.GetRefused() {
			f.size("task", x.GetTask(), idSize)
		}
	case *proto.QueueStates:
		for _, q := range m.GetQueues() {
			f.queue(q)
		}
	}
	return f.err
}

// A form notes the first thing that is wrong with a message.
type form struct {
	body proto.Body
	err  error
}

const (
	idSize   = len(proto.TaskID{}) // of a task, a token and a boot id
	peerSize = len(proto.PeerID{})
)

func (f *form) bad(format string, a ...any) {
	if f.err == nil {
		f.err = fmt.Errorf("%w: %s: %s", proto.ErrMalformed, f.body.ProtoReflect().Descriptor().Name(), fmt.Sprintf(format, a...))
	}
}

// size wants one of the sizes.
func (f *form) size(what string, b []byte, sizes ...int) {
	for _, n := range sizes {
		if len(b) == n {
			return
		}
	}
	f.bad("%s of %d bytes", what, len(b))
}

func (f *form) boot(n uint64) {
	if n > maxBoot {
		f.bad("%d is the number of no start", n)
	}
}

func (f *form) claim(m *proto.Claim) {
	f.size("task", m.GetTask(), idSize)
	f.size("token", m.GetToken(), idSize)
	f.size("boot id", m.GetBootId(), 0, idSize)
	f.boot(m.GetEpochBoot())
}

func (f *form) claims(all []*proto.Claim) {
	for _, m := range all {
		f.claim(m)
	}
}

func (f *form) rulings(all []*proto.Ruling) {
	for _, m := range all {
		f.size("task", m.GetTask(), idSize)
		f.size("token", m.GetToken(), idSize)
		f.size("boot id", m.GetBootId(), idSize)
		f.boot(m.GetEpochBoot())
		if m.GetCode() == proto.CodeMoved {
			f.size("new home", m.GetHome(), peerSize)
		}
	}
}

func (f *form) queue(q *proto.QueueState) {
	if q.GetName() == "" {
		f.bad("a queue without a name")
	}
	f.size("home", q.GetHome(), peerSize)
	if q.GetGeneration() > proto.MaxGeneration {
		f.bad("%d is no generation of a queue", q.GetGeneration())
	}
	f.atMost("the state of a queue", q, proto.MaxQueueState)
	for _, x := range q.GetDeeds() {
		f.deed(x)
	}
	for _, x := range q.GetVotes() {
		f.deed(x)
	}
	f.deed(q.GetAppointed())
}

func (f *form) deed(x *proto.Signed) {
	if len(x.GetDetails()) > proto.MaxDeed || len(x.GetIssuer().GetDetails()) > proto.MaxDeed {
		f.bad("a deed of %d bytes with a certificate of %d, the limit is %d", len(x.GetDetails()), len(x.GetIssuer().GetDetails()), proto.MaxDeed)
	}
}

// atMost wants an encoding of no more than max bytes.
func (f *form) atMost(what string, m proto.Body, max int) {
	if n := proto.Size(m); n > max {
		f.bad("%s of %d bytes, the limit is %d", what, n, max)
	}
}

func (f *form) handoff(m *proto.Handoff) {
	if m.GetQueue() != nil {
		f.queue(m.GetQueue())
	}
	for _, b := range m.GetBlocks() {
		f.size("origin", b.GetOrigin(), 0, peerSize)
	}
	l := m.GetLease()
	switch {
	case l != nil:
		f.size("task", l.GetTask(), idSize)
		f.size("owner", l.GetOwner(), 0, peerSize)
		f.size("token", l.GetToken(), 0, idSize)
		f.size("boot id", l.GetBootId(), 0, idSize)
		f.boot(l.GetEpochBoot())
		f.atMost("a lease", l, proto.MaxLease)
		if l.GetState().Terminal() {
			f.bad("the task has ended")
		}
		if l.GetGeneration() < 2 {
			f.bad("generation %d is of no home that was handed anything", l.GetGeneration())
		}
	case m.GetQueue() == nil:
		f.bad("nothing is handed over")
	}
	f.size("predecessor", m.GetBehind(), 0, idSize)
	for _, b := range m.GetBlocks() {
		f.size("task", b.GetTask(), 0, idSize)
	}
}
