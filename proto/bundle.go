package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrBadMail is returned for a message about mail that no node sends.
var ErrBadMail = errors.New("proto: bad message about mail")

// CutLetter returns the first of several letters and what is behind it. It reads only the
// lengths: see [ParseLetter]. The error is ErrBadLetter or ErrNewLetter.
func CutLetter(b []byte) (letter, rest []byte, err error) {
	if len(b) > 0 && b[0] > Version {
		return nil, nil, fmt.Errorf("%w: version %d", ErrNewLetter, b[0])
	}
	if len(b) < LetterFixed {
		return nil, nil, fmt.Errorf("%w: %d bytes", ErrBadLetter, len(b))
	}
	tlvs, body := int64(binary.BigEndian.Uint16(b[tlvsAt:])), int64(binary.BigEndian.Uint32(b[48:]))
	size := LetterFixed + tlvs + body
	if tlvs > MaxLetterTLVs || body > MaxInlineBody || size > int64(len(b)) {
		return nil, nil, fmt.Errorf("%w: %d of %d bytes", ErrBadLetter, size, len(b))
	}
	return b[:size:size], b[size:], nil
}

// checkLetters checks that b is n letters, without what is in them.
func checkLetters(b []byte, n int) error {
	for i := range n {
		var err error
		if _, b, err = CutLetter(b); err != nil {
			return fmt.Errorf("letter %d of %d: %w", i, n, err)
		}
	}
	if len(b) > 0 {
		return fmt.Errorf("%w: %d bytes after the last letter", ErrBadMail, len(b))
	}
	return nil
}

// Prev returns the number of the mail before the first; zero: none.
func (b *Bundle) Prev() Seq { return Seq{b.GetPrevBoot(), b.GetPrevNumber()} }

// Check checks everything about b but the letters themselves: there are as many as numbers.
// The error is ErrBadMail, ErrBadLetter or, for a letter of a later version, ErrNewLetter.
func (b *Bundle) Check() error {
	switch prev := b.Prev(); {
	case b.GetNumber() == 0:
		return fmt.Errorf("%w: a bundle without a number", ErrBadMail)
	case !validBox(b.GetBox()):
		return fmt.Errorf("%w: a bundle for %.40q", ErrBadMail, b.GetBox())
	case b.GetChain() < Critical || b.GetChain() > Low:
		return fmt.Errorf("%w: a chain of class %d", ErrBadMail, b.GetChain())
	case (prev.Boot == 0) != (prev.Counter == 0):
		return fmt.Errorf("%w: the mail before the bundle is %s", ErrBadMail, prev)
	}
	n, err := checkRuns(b.Prev(), b.GetRuns())
	if err != nil {
		return err
	}
	return checkLetters(b.GetLetters(), n)
}

// checkRuns returns how many mails the runs have, which must rise above prev.
func checkRuns(prev Seq, runs []*Run) (int, error) {
	n := 0
	for _, r := range runs {
		first, count := Seq{r.GetBoot(), r.GetFirst()}, uint64(r.GetCount())
		switch {
		case first.Boot == 0 || first.Counter == 0 || count == 0:
			return 0, fmt.Errorf("%w: a run of %d mails from %s", ErrBadMail, count, first)
		case count > MaxBundle || n+int(count) > MaxBundle:
			return 0, fmt.Errorf("%w: more than %d mails", ErrBadMail, MaxBundle)
		case first.Counter > math.MaxUint64-count:
			return 0, fmt.Errorf("%w: a run of %d mails from %s", ErrBadMail, count, first)
		case first.Compare(prev) <= 0:
			return 0, fmt.Errorf("%w: %s comes after %s", ErrBadMail, first, prev)
		}
		n += int(count)
		prev = Seq{first.Boot, first.Counter + count - 1}
	}
	if n == 0 {
		return 0, fmt.Errorf("%w: a bundle without mail", ErrBadMail)
	}
	return n, nil
}

// UpTo returns the number of the last mail that is done; zero: none.
func (b *Bundled) UpTo() Seq { return Seq{b.GetBoot(), b.GetUpToNumber()} }

// IsUnsigned reports whether the home has signed nothing about mail i of the bundle, though it has
// it and signs others.
func (b *Bundled) IsUnsigned(i int) bool {
	return i/8 < len(b.GetUnsigned()) && b.GetUnsigned()[i/8]>>(i%8)&1 != 0
}

// LeaveUnsigned notes that of mail i of the bundle, which has less than MaxBundle.
func (b *Bundled) LeaveUnsigned(i int) {
	for len(b.Unsigned) <= i/8 {
		b.Unsigned = append(b.Unsigned, 0)
	}
	b.Unsigned[i/8] |= 1 << (i % 8)
}

// Check checks b by itself; whether its numbers are those of the bundle is for the origin.
// The error is ErrBadMail.
func (b *Bundled) Check() error {
	upTo, before := b.UpTo(), Seq{}
	switch {
	case b.GetNumber() == 0:
		return fmt.Errorf("%w: an answer to no bundle", ErrBadMail)
	case (upTo.Boot == 0) != (upTo.Counter == 0):
		return fmt.Errorf("%w: an answer up to %s", ErrBadMail, upTo)
	case b.GetCode() == CodeOK && upTo == Seq{}:
		return fmt.Errorf("%w: an answer without a code and a number", ErrBadMail)
	}
	if err := checkMoved(b.GetCode(), b.GetHome()); err != nil {
		return err
	}
	for _, s := range b.GetSkipped() {
		n := Seq{s.GetBoot(), s.GetNumber()}
		if _, ends := s.GetCode().Ends(); !ends || n.Boot == 0 || n.Counter == 0 || n.Compare(before) <= 0 || n.Compare(upTo) > 0 {
			return fmt.Errorf("%w: %s refused with %s", ErrBadMail, n, s.GetCode().Name())
		}
		before = n
	}
	return nil
}

// checkMoved checks that a MOVED, and nothing else, names a home.
func checkMoved(code Code, home []byte) error {
	if code == CodeMoved && len(home) != maxKeyBytes || code != CodeMoved && len(home) > 0 {
		return fmt.Errorf("%w: %s to a home of %d bytes", ErrBadMail, code.Name(), len(home))
	}
	return nil
}

// validBox reports whether s can be the name of a box: text without spaces.
func validBox(s string) bool { return validWord([]byte(s), MaxTarget) }
