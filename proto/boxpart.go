package proto

import "fmt"

// HandoverSize is the size of the name of a handover.
const HandoverSize = 16

// Check checks a BoxPart without what is in its records. The error is ErrBadMail.
func (p *BoxPart) Check() error {
	size := len(p.GetSettings())
	for _, r := range p.GetRecords() {
		size += len(r)
	}
	for _, o := range p.GetOrigins() {
		if len(o) != maxKeyBytes {
			return fmt.Errorf("%w: an origin of %d bytes", ErrBadMail, len(o))
		}
	}
	records, number := len(p.GetRecords()), p.GetNumber()
	switch {
	case !validBox(p.GetBox()) || len(p.GetHandover()) != HandoverSize || p.GetGeneration() == 0 || p.GetGeneration() > MaxGeneration:
		return fmt.Errorf("%w: a part of %.40q in a handover of %d bytes and generation %d", ErrBadMail, p.GetBox(), len(p.GetHandover()), p.GetGeneration())
	case number == 0 && (size > 0 || p.GetLast()) || number > 0 && p.GetDropped():
		return fmt.Errorf("%w: part %d of %d bytes", ErrBadMail, number, size)
	case number == 1 && (records > 0 || p.GetLast()) || (number == 1) != (len(p.GetSettings()) > 0):
		return fmt.Errorf("%w: part %d has %d records", ErrBadMail, number, records)
	case number > 1 && records == 0 && !p.GetLast() || len(p.GetOrigins()) > records:
		return fmt.Errorf("%w: %d records of %d bytes in part %d", ErrBadMail, records, size, number)
	}
	return nil
}

// Check checks a BoxTaken. The error is ErrBadMail.
func (t *BoxTaken) Check() error {
	if !validBox(t.GetBox()) || len(t.GetHandover()) != HandoverSize || t.GetState() < CopyNone || t.GetState() > CopyServed {
		return fmt.Errorf("%w: an answer to part %d of %.40q", ErrBadMail, t.GetNumber(), t.GetBox())
	}
	return nil
}
