package proto

import (
	"fmt"
	"slices"
)

// Check checks an Open. The error is ErrBadMail.
func (o *Open) Check() error {
	switch {
	case o.GetSession() == 0:
		return fmt.Errorf("%w: a session without a number", ErrBadMail)
	case o.GetEnd() < ReadGoesOn || o.GetEnd() > ReadLeave:
		return fmt.Errorf("%w: end %d of a session", ErrBadMail, o.GetEnd())
	case !validBox(o.GetBox()):
		return fmt.Errorf("%w: a session at %.40q", ErrBadMail, o.GetBox())
	case o.GetCredit() == 0 || o.GetCredit() > MaxCredit:
		return fmt.Errorf("%w: credit for %d deliveries: must be from 1 to %d", ErrBadMail, o.GetCredit(), MaxCredit)
	}
	return nil
}

// Check checks an Opened. The error is ErrBadMail.
func (o *Opened) Check() error {
	if o.GetSession() == 0 || o.GetCode() != CodeOK && (o.GetEnded() || o.GetResumed()) {
		return fmt.Errorf("%w: %s to session %d", ErrBadMail, o.GetCode().Name(), o.GetSession())
	}
	return checkMoved(o.GetCode(), o.GetHome())
}

// Check checks everything about d but the letters themselves: there is one for each delivery.
// The error is ErrBadMail, ErrBadLetter or, for a letter of a later version, ErrNewLetter.
func (d *Deliver) Check() error {
	n, before := len(d.GetDeliveries()), uint64(0)
	switch {
	case d.GetSession() == 0 || d.GetBoot() == 0:
		return fmt.Errorf("%w: deliveries of start %d in session %d", ErrBadMail, d.GetBoot(), d.GetSession())
	case n == 0:
		return fmt.Errorf("%w: no deliveries", ErrBadMail)
	}
	for _, x := range d.GetDeliveries() {
		switch origin := len(x.GetOrigin()); {
		case x.GetSeq() == 0 || x.GetAttempt() == 0:
			return fmt.Errorf("%w: attempt %d of mail %d", ErrBadMail, x.GetAttempt(), x.GetSeq())
		case x.GetNumber() <= before:
			return fmt.Errorf("%w: delivery %d after %d", ErrBadMail, x.GetNumber(), before)
		case origin != 0 && origin != maxKeyBytes:
			return fmt.Errorf("%w: an origin of %d bytes", ErrBadMail, origin)
		}
		before = x.GetNumber()
	}
	return checkLetters(d.GetLetters(), n)
}

// Check checks a Settle. The error is ErrBadMail.
func (s *Settle) Check() error {
	if s.GetRef() == 0 || len(s.GetSettlements()) == 0 || !validBox(s.GetBox()) {
		return fmt.Errorf("%w: %d settlements at %.40q", ErrBadMail, len(s.GetSettlements()), s.GetBox())
	}
	for _, x := range s.GetSettlements() {
		switch {
		case x.GetSeq() == 0 || x.GetBoot() == 0 || x.GetDelivery() == 0:
			return fmt.Errorf("%w: handle %d.%d.%d", ErrBadMail, x.GetSeq(), x.GetBoot(), x.GetDelivery())
		case x.GetVerb() <= SettleUnspecified || x.GetVerb() > SettleReturn:
			return fmt.Errorf("%w: verb %d", ErrBadMail, x.GetVerb())
		case x.GetDelayMs() > uint64(MaxTTL.Milliseconds()):
			return fmt.Errorf("%w: a delay of %d ms", ErrBadMail, x.GetDelayMs())
		}
	}
	return nil
}

// Check checks the answer to a Settle of n settlements. The error is ErrBadMail.
func (s *Settled) Check(n int) error {
	if s.GetRef() == 0 || s.GetCode() != CodeOK && len(s.GetUnsettled())+len(s.GetExtended()) > 0 {
		return fmt.Errorf("%w: %s to %d settlements", ErrBadMail, s.GetCode().Name(), n)
	}
	before := -1
	for _, x := range s.GetExtended() {
		if i := int(x.GetIndex()); i <= before || i >= n {
			return fmt.Errorf("%w: settlement %d of %d: extended", ErrBadMail, i, n)
		}
		before = int(x.GetIndex())
	}
	before = -1
	for _, x := range s.GetUnsettled() {
		settles := slices.Contains([]Code{CodeStale, CodeBusy, CodeBadForm, CodeNoHandler}, x.GetCode())
		if i := int(x.GetIndex()); !settles || i <= before || i >= n {
			return fmt.Errorf("%w: settlement %d of %d: %s", ErrBadMail, i, n, x.GetCode().Name())
		}
		before = int(x.GetIndex())
	}
	return nil
}
