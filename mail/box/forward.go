package box

import (
	"time"

	"github.com/balefire/balefire/proto"
)

// Forward decides, by the rule of an acknowledgment, whether a delivery may end with another
// mail that came of it. If it counts, the caller makes the FORWARD record, and until that is
// applied, or [State.Unforward] is called, nobody is given the mail. CodeOK that does not count:
// it is DONE already.
func (s *State) Forward(box BoxID, sub SubID, h Handle, out *Output) (code proto.Code, counts bool) {
	u := s.find(box, sub)
	if u == nil {
		return proto.CodeNoHandler, false
	}
	r, counts := u.judge(s, &Settlement{Handle: h, Op: Ack})
	if counts {
		u.close(h, acked)
		u.wake(out)
	}
	return r.Code, counts
}

// Unforward gives a mail back whose FORWARD record was refused, or was not written: a dead
// letter if that is for good, otherwise to be delivered again after delay, and nothing is spent.
func (s *State) Unforward(now Now, box BoxID, sub SubID, h Handle, forGood bool, delay time.Duration, reason string, out *Output) {
	u := s.find(box, sub)
	if u == nil || !u.pending(h.Seq) {
		return
	}
	d := u.deliveries[h.Seq]
	if d == nil || d.n != h.N || d.state != acked {
		return
	}
	reason = reason[:min(len(reason), MaxReason)]
	if forGood {
		u.end(now, h.Seq, Dead, CauseFinal, reason, out)
	} else {
		u.fail(now, h.Seq, CauseDeferred, delay, reason, "", out)
	}
	u.releaseBehind(h.Seq)
	u.wake(out)
}

// ForwardAll is Forward for a mail that ends for all subscriptions, whoever has it. It reports whether
// that may be: the mail has not ended, and is not about to. Until the FORWARD record that the caller makes
// is applied, or [State.UnforwardAll] is called, no settlement of it counts either.
func (s *State) ForwardAll(id BoxID, seq uint64) bool {
	b := s.boxes[id]
	if b == nil || b.mails.get(seq) == nil || b.ending[seq] {
		return false
	}
	b.end(seq)
	return true
}

// UnforwardAll lets a mail be whose FORWARD record was refused, or was not written.
func (s *State) UnforwardAll(id BoxID, seq uint64, out *Output) {
	b := s.boxes[id]
	if b == nil {
		return
	}
	delete(b.ending, seq)
	for _, u := range b.subs {
		u.offer(seq)
	}
	b.wake(out)
}

// applyForward ends a mail and takes what came of it. If one of the two cannot be, neither is.
// Without a subscription, the mail of a topic ends for all.
func (s *State) applyForward(p Place, rec []byte, out *Output) error {
	h, seq, m, err := parseForward(rec)
	if err != nil {
		return err
	}
	b, u := s.boxes[h.box], s.find(h.box, h.sub)
	all := b != nil && b.settings.Kind == Topic && h.sub == 0 && b.mails.get(seq) != nil
	if seq > 0 && !all && (u == nil || !u.pending(seq)) {
		out.Results = append(out.Results, Result{Code: proto.CodeStale, Box: m.Box, Detail: "the mail that it came of has ended"})
		return nil
	}
	switch r := s.arrive(p, len(rec), &m, true, out); {
	case r.Code != proto.CodeOK || seq == 0:
	case all:
		s.remove(b, seq, ending{state: Done}, out)
		b.wake(out)
	default:
		s.finish(u, seq, ending{state: Done, goesOn: asksToTell(m.Letter)}, out) // the mail itself, on its way to another home
		u.wake(out)
	}
	return nil
}
