package proto

import (
	"fmt"
	"math"
)

// Check checks an Open. The error is ErrBadMail.
func (o *Open) Check() error {
	switch {
	case o.GetSession() == 0:
		return fmt.Errorf("%w: a session without a number", ErrBadMail)
	case o.GetEnd():
		return nil
	case !validBox(o.GetBox()):
		return fmt.Errorf("%w: a session at %.40q", ErrBadMail, o.GetBox())
	case o.GetMode() < ReadUnspecified || o.GetMode() > ReadFailover:
		return fmt.Errorf("%w: mode %d", ErrBadMail, o.GetMode())
	case o.GetCredit() > MaxCredit:
		return fmt.Errorf("%w: credit for %d deliveries, the limit is %d", ErrBadMail, o.GetCredit(), MaxCredit)
	}
	return nil
}

// Check checks an Opened. The error is ErrBadMail.
func (o *Opened) Check() error {
	if o.GetSession() == 0 {
		return fmt.Errorf("%w: a session without a number", ErrBadMail)
	}
	return checkMoved(o.GetCode(), o.GetHome())
}

// Check checks everything about d but the letters themselves: there is one for each delivery.
// The error is ErrBadMail, ErrBadLetter or, for a letter of a later version, ErrNewLetter.
func (d *Deliver) Check() error {
	n := len(d.GetDeliveries())
	switch {
	case d.GetSession() == 0 || d.GetBoot() == 0 || d.GetFirst() == 0:
		return fmt.Errorf("%w: delivery %d.%d of session %d", ErrBadMail, d.GetBoot(), d.GetFirst(), d.GetSession())
	case n == 0:
		return fmt.Errorf("%w: no deliveries", ErrBadMail)
	case d.GetFirst() > math.MaxUint64-uint64(n):
		return fmt.Errorf("%w: %d deliveries from %d", ErrBadMail, n, d.GetFirst())
	}
	for _, x := range d.GetDeliveries() {
		if x.GetSeq() == 0 || x.GetAttempt() == 0 {
			return fmt.Errorf("%w: attempt %d of mail %d", ErrBadMail, x.GetAttempt(), x.GetSeq())
		}
	}
	return checkLetters(d.GetLetters(), n)
}

// Check checks a Settle. The error is ErrBadMail.
func (s *Settle) Check() error {
	if s.GetSession() == 0 || s.GetRef() == 0 || len(s.GetSettlements()) == 0 {
		return fmt.Errorf("%w: %d settlements of session %d", ErrBadMail, len(s.GetSettlements()), s.GetSession())
	}
	for _, x := range s.GetSettlements() {
		switch {
		case x.GetSeq() == 0 || x.GetBoot() == 0 || x.GetDelivery() == 0:
			return fmt.Errorf("%w: handle %d.%d.%d", ErrBadMail, x.GetSeq(), x.GetBoot(), x.GetDelivery())
		case x.GetVerb() <= SettleUnspecified || x.GetVerb() > SettleBounce:
			return fmt.Errorf("%w: verb %d", ErrBadMail, x.GetVerb())
		case x.GetDelayMs() > uint64(MaxTTL.Milliseconds()):
			return fmt.Errorf("%w: a delay of %d ms", ErrBadMail, x.GetDelayMs())
		}
	}
	return nil
}

// Check checks the answer to a Settle of n settlements. The error is ErrBadMail.
func (s *Settled) Check(n int) error {
	if s.GetSession() == 0 || s.GetRef() == 0 {
		return fmt.Errorf("%w: an answer to %d of session %d", ErrBadMail, s.GetRef(), s.GetSession())
	}
	before := -1
	for _, x := range s.GetUnsettled() {
		if i := int(x.GetIndex()); x.GetCode() == CodeOK || i <= before || i >= n {
			return fmt.Errorf("%w: settlement %d of %d: %s", ErrBadMail, i, n, x.GetCode().Name())
		}
		before = int(x.GetIndex())
	}
	return nil
}
