package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// A Fact is the event that a receipt states about a task.
type Fact byte

// The facts.
const (
	FactStored   Fact = 1 // fsynced at its origin; the task's own signature states it
	FactAccepted Fact = 2 // durable at the home of the target
	FactStarted  Fact = 3 // the handler was started
	FactDone     Fact = 4 // the handler's run ended; the digest is that of the result
	FactOrphan   Fact = 5 // a result that came too late was seen
)

// String returns the fact's name as people read it.
func (f Fact) String() string {
	switch f {
	case FactStored:
		return "stored"
	case FactAccepted:
		return "accepted"
	case FactStarted:
		return "started"
	case FactDone:
		return "done"
	case FactOrphan:
		return "orphan"
	}
	return fmt.Sprintf("fact %d", byte(f))
}

// A Statement is what a node signs in a receipt. Its layout is fixed, big endian:
//
//	version 1 | fact 1 | state 1 | digest algorithm 1 | mesh 16 | task 16 |
//	node 32 | time 8 | epoch boot 8 | epoch counter 8 | attempt 4 | digest 32
type Statement struct {
	Fact      Fact
	State     TaskState // of a done
	Algorithm byte      // of the digest: 0 none, 1 SHA-256
	Mesh      MeshID
	Task      TaskID
	Node      PeerID // who states and signs it
	Time      int64  // Unix milliseconds of the node's clock
	Epoch     Seq
	Attempt   uint32
	Digest    [32]byte // of the result, of a done
}

// StatementSize is the length of an encoded statement.
const StatementSize = 4 + 16 + 16 + 32 + 8*3 + 4 + 32

// ErrBadStatement is returned for bytes that are no statement.
var ErrBadStatement = errors.New("proto: bad statement")

// Append encodes s behind dst.
func (s *Statement) Append(dst []byte) []byte {
	dst = append(dst, Version, byte(s.Fact), byte(s.State), s.Algorithm)
	dst = append(dst, s.Mesh[:]...)
	dst = append(dst, s.Task[:]...)
	dst = append(dst, s.Node[:]...)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.Time))
	dst = binary.BigEndian.AppendUint64(dst, s.Epoch.Boot)
	dst = binary.BigEndian.AppendUint64(dst, s.Epoch.Counter)
	dst = binary.BigEndian.AppendUint32(dst, s.Attempt)
	return append(dst, s.Digest[:]...)
}

// ParseStatement reads the bytes that Append wrote, and nothing else.
func ParseStatement(b []byte) (Statement, error) {
	var s Statement
	if len(b) != StatementSize || b[0] != Version {
		return s, fmt.Errorf("%w: %d bytes", ErrBadStatement, len(b))
	}
	s.Fact, s.State, s.Algorithm = Fact(b[1]), TaskState(b[2]), b[3]
	if s.Fact < FactStored || s.Fact > FactOrphan || s.Algorithm > 1 {
		return s, fmt.Errorf("%w: fact %d, algorithm %d", ErrBadStatement, b[1], b[3])
	}
	copy(s.Mesh[:], b[4:])
	copy(s.Task[:], b[20:])
	copy(s.Node[:], b[36:])
	s.Time = int64(binary.BigEndian.Uint64(b[68:]))
	s.Epoch = Seq{binary.BigEndian.Uint64(b[76:]), binary.BigEndian.Uint64(b[84:])}
	s.Attempt = binary.BigEndian.Uint32(b[92:])
	copy(s.Digest[:], b[96:])
	return s, nil
}
