package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A MailStatement is what the home of a box signs about a mail that it has taken: its letter is
// durable there. Its layout is, big endian:
//
//	version 1 | class 1 | length of the box 2 | mesh 16 | mail 16 | home 32 | origin 32 |
//	time 8 | boot 8 | number 8 | digest 32 | box
type MailStatement struct {
	Mesh   MeshID
	Mail   MailID
	Home   PeerID   // who states and signs it
	Origin PeerID   // who sent the letter
	Time   int64    // when it was stated, Unix milliseconds of the clock of the home
	Class  Class    // of the chain of the mail; 0: none, its origin is its home
	Number Seq      // in that chain
	Digest [32]byte // SHA-256 of the letter
	Box    string   // its name, as in a Bundle
}

const (
	mailStatementFixed = 4 + 16 + 16 + 32 + 32 + 8 + 8 + 8 + 32
	mailProofFixed     = 2 + 1 + maxSignature

	// MaxMailReceipt is the most bytes of an encoded [MailReceipt].
	MaxMailReceipt = mailStatementFixed + MaxTarget + mailProofFixed + maxPath
)

// ErrBadMailReceipt is returned for bytes that are no receipt of a mail.
var ErrBadMailReceipt = errors.New("proto: bad receipt of a mail")

// Append encodes s, whose box has a valid name, behind dst.
func (s *MailStatement) Append(dst []byte) []byte {
	dst = append(dst, Version, byte(s.Class))
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(s.Box)))
	dst = append(append(dst, s.Mesh[:]...), s.Mail[:]...)
	dst = append(append(dst, s.Home[:]...), s.Origin[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.Time))
	dst = binary.BigEndian.AppendUint64(dst, s.Number.Boot)
	dst = binary.BigEndian.AppendUint64(dst, s.Number.Counter)
	return append(append(dst, s.Digest[:]...), s.Box...)
}

// A MailReceipt is a signed statement about one mail: the home signs the root of a tree of
// statements, of which this is one. Behind the statement its encoding has, big endian:
//
//	index 2 | steps of the path 1 | path, 32 bytes a step | signature 64
type MailReceipt struct {
	Statement MailStatement
	Index     uint16 // of the statement in the tree
	Path      []byte // the hashes on the way to the root
	Signature [maxSignature]byte
}

// Append encodes r behind dst. Its path has at most 10 steps.
func (r *MailReceipt) Append(dst []byte) []byte {
	dst = r.Statement.Append(dst)
	dst = append(binary.BigEndian.AppendUint16(dst, r.Index), byte(len(r.Path)/32))
	return append(append(dst, r.Path...), r.Signature[:]...)
}

// ParseMailReceipt reads the bytes that Append wrote, and nothing else. The path is a view of b. It
// does not verify anything.
func ParseMailReceipt(b []byte) (r MailReceipt, err error) {
	if len(b) < mailStatementFixed+mailProofFixed || b[0] != Version {
		return r, fmt.Errorf("%w: %d bytes", ErrBadMailReceipt, len(b))
	}
	s := &r.Statement
	s.Class = Class(b[1])
	box := int(binary.BigEndian.Uint16(b[2:]))
	s.Mesh, s.Mail, s.Home, s.Origin = MeshID(b[4:]), MailID(b[20:]), PeerID(b[36:]), PeerID(b[68:])
	s.Time = int64(binary.BigEndian.Uint64(b[100:]))
	s.Number = Seq{binary.BigEndian.Uint64(b[108:]), binary.BigEndian.Uint64(b[116:])}
	s.Digest = [32]byte(b[124:])
	if b = b[mailStatementFixed:]; box > MaxTarget || len(b) < box+mailProofFixed {
		return r, fmt.Errorf("%w: a box of %d bytes", ErrBadMailReceipt, box)
	}
	s.Box, b = string(b[:box]), b[box:]
	r.Index = binary.BigEndian.Uint16(b)
	path := int(b[2]) * 32
	numbered := s.Number.Boot > 0 && s.Number.Counter > 0
	switch b = b[3:]; {
	case path > maxPath || len(b) != path+maxSignature:
		return r, fmt.Errorf("%w: a path of %d bytes", ErrBadMailReceipt, path)
	case !validBox(s.Box) || s.Mail.IsZero() || s.Home.IsZero() || s.Origin.IsZero() || s.Time < 0:
		return r, fmt.Errorf("%w: mail %s in box %.40q", ErrBadMailReceipt, s.Mail, s.Box)
	case s.Class > Low || numbered != (s.Class != ClassUnspecified) || !numbered && s.Number != (Seq{}):
		return r, fmt.Errorf("%w: number %s in a chain of class %d", ErrBadMailReceipt, s.Number, s.Class)
	}
	r.Path, r.Signature = b[:path:path], [maxSignature]byte(b[path:])
	return r, nil
}
