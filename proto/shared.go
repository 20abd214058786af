package proto

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	pb "google.golang.org/protobuf/proto"
)

// DecodeShared is [DecodeKnown] for a message that may keep b: the large fields of an
// Envelope, a Content and an Outcome are not copied but share the memory of b, so b must not
// be changed while m is in use. Other messages and fields are copied.
func DecodeShared(b []byte, m pb.Message) error {
	s, err := checked(b, m)
	if err != nil {
		return err
	}
	pb.Reset(m)
	if err := share(b, m); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrMalformed, s.name, err)
	}
	return nil
}

// share decodes b, which was checked, into the empty m.
func share(b []byte, m pb.Message) error {
	o := pb.UnmarshalOptions{DiscardUnknown: true, Merge: true}
	from := 0 // of what is not decoded yet
	for at := 0; at < len(b); {
		num, _, value, n := consume(b[at:])
		field := sharedField(m, num)
		outcome, _ := m.(*Outcome)
		inReceipt := outcome != nil && num == numOutcomeReceipts
		if field != nil || inReceipt {
			if err := o.Unmarshal(b[from:at], m); err != nil {
				return err
			}
			from = at + n
		}
		if field != nil && len(value) > 0 {
			*field = value[:len(value):len(value)]
		}
		if inReceipt {
			r := new(Receipt)
			if err := share(value, r); err != nil {
				return err
			}
			outcome.Receipts = append(outcome.Receipts, r)
		}
		at += n
	}
	return o.Unmarshal(b[from:], m)
}

// Numbers of shared fields.
const (
	numContentBody      = 21
	numOutcomeBody      = 8
	numOutcomeReceipts  = 15
	numReceiptStatement = 1
	numReceiptPath      = 2
	numReceiptSignature = 4
)

// sharedField returns the field of m that shares memory, nil if the one with this number does
// not.
func sharedField(m pb.Message, num protowire.Number) *[]byte {
	switch m := m.(type) {
	case *Envelope:
		switch num {
		case numEnvelopeHeader:
			return &m.Header
		case numEnvelopeBody:
			return &m.Body
		case numEnvelopeSlot:
			return &m.Slot
		case numEnvelopePath:
			return &m.Path
		}
	case *Content:
		if num == numContentBody {
			return &m.Body
		}
	case *Outcome:
		if num == numOutcomeBody {
			return &m.Body
		}
	case *Receipt:
		switch num {
		case numReceiptStatement:
			return &m.Statement
		case numReceiptPath:
			return &m.Path
		case numReceiptSignature:
			return &m.Signature
		}
	}
	return nil
}
