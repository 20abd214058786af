package identity

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/balefire/balefire/proto"
)

// MaxKeyLife is how long a sealing key may be used: a record with a longer period is
// refused.
const MaxKeyLife = MaxMemberLife

// Errors of records signed by peers.
var (
	// ErrBadRecord is returned for a malformed record.
	ErrBadRecord = errors.New("identity: bad record")
	// ErrExpired is returned for an expired record, along with its content.
	ErrExpired = errors.New("identity: the record has expired")
	// ErrClocks is wrapped by an error that a wrong clock explains.
	ErrClocks = errors.New("compare the clocks")
	// ErrNotYet is returned for a record that becomes valid more than EarlyGrace from now. It
	// wraps [ErrClocks].
	ErrNotYet = fmt.Errorf("identity: the record is not valid yet: %w", ErrClocks)
)

// maxDetails bounds what is decoded of a record, in bytes.
const maxDetails = 4 << 10

// A KeyRecord states the key that content for a peer is sealed to.
type KeyRecord struct {
	Peer      proto.PeerID
	Suite     byte
	Public    []byte
	ID        [8]byte // derived from Suite and Public
	Seq       uint64  // increases with every new key of the peer
	NotBefore time.Time
	NotAfter  time.Time
}

// keyID derives the id of a sealing key.
func keyID(suite byte, public []byte) (id [8]byte) {
	b := append([]byte(domainKeyID), suite)
	sum := sha256.Sum256(append(b, public...))
	copy(id[:], sum[:])
	return id
}

// details returns the bytes of r that are signed.
func (r *KeyRecord) details() []byte {
	b, err := proto.Encode(nil, &proto.KeyDetails{
		Peer: r.Peer[:], Suite: uint32(r.Suite), Public: r.Public, KeyId: r.ID[:], Seq: r.Seq,
		NotBeforeMs: r.NotBefore.UnixMilli(), NotAfterMs: r.NotAfter.UnixMilli(),
	})
	if err != nil {
		panic("identity: " + err.Error()) // cannot fail: this package set every field
	}
	return b
}

// VerifyKeyRecord returns the sealing key that peer itself signed. With ErrExpired it
// also returns the record: its owner keeps old keys, so sealing to a peer that has been
// away is still possible.
func VerifyKeyRecord(s *proto.Signed, peer proto.PeerID, now time.Time) (KeyRecord, error) {
	if s == nil || len(s.GetDetails()) > maxDetails || s.GetIssuer() != nil {
		return KeyRecord{}, fmt.Errorf("%w: not a key record", ErrBadRecord)
	}
	if err := verifyDetails(s, peer, domainKey); err != nil {
		return KeyRecord{}, fmt.Errorf("key record of %s: %w", peer.Short(), err)
	}
	var d proto.KeyDetails
	if err := proto.DecodeKnown(s.GetDetails(), &d); err != nil {
		return KeyRecord{}, fmt.Errorf("%w: key record of %s: %w", ErrBadRecord, peer.Short(), err)
	}
	r, err := keyRecordOf(&d, peer)
	if err != nil {
		return KeyRecord{}, fmt.Errorf("key record of %s: %w", peer.Short(), err)
	}
	if err := checkTime(r.NotBefore, r.NotAfter, now); err != nil {
		return r, fmt.Errorf("key record of %s: %w", peer.Short(), err)
	}
	return r, nil
}

// keyRecordOf validates d.
func keyRecordOf(d *proto.KeyDetails, peer proto.PeerID) (KeyRecord, error) {
	if !bytes.Equal(d.GetPeer(), peer[:]) {
		return KeyRecord{}, fmt.Errorf("%w: it is of another peer", ErrBadRecord)
	}
	if d.GetSuite() > math.MaxUint8 {
		return KeyRecord{}, fmt.Errorf("%w %d", ErrSuite, d.GetSuite())
	}
	suite, err := suiteOf(byte(d.GetSuite()))
	if err != nil {
		return KeyRecord{}, err
	}
	if err := suite.checkPublic(d.GetPublic()); err != nil {
		return KeyRecord{}, err
	}
	r := KeyRecord{Peer: peer, Suite: byte(d.GetSuite()), Public: d.GetPublic(), Seq: d.GetSeq()}
	r.ID = keyID(r.Suite, r.Public)
	if !bytes.Equal(d.GetKeyId(), r.ID[:]) {
		return KeyRecord{}, fmt.Errorf("%w: the key id does not match the key", ErrBadRecord)
	}
	if r.Seq == 0 {
		return KeyRecord{}, fmt.Errorf("%w: no sequence number", ErrBadRecord)
	}
	r.NotBefore, r.NotAfter, err = period(d.GetNotBeforeMs(), d.GetNotAfterMs(), MaxKeyLife)
	return r, err
}

// period checks that a record begins before it ends and is valid for at most life.
func period(fromMs, toMs int64, life time.Duration) (from, to time.Time, err error) {
	if fromMs < 0 || toMs <= fromMs {
		return from, to, fmt.Errorf("%w: it ends before it begins", ErrBadRecord)
	}
	if toMs-fromMs > (life + 2*proto.Skew).Milliseconds() {
		return from, to, fmt.Errorf("%w: valid for more than %d days", ErrBadRecord, int(life.Hours()/24))
	}
	return time.UnixMilli(fromMs), time.UnixMilli(toMs), nil
}

// checkTime compares the validity period of a record with now. Its beginning grants
// nothing that its issuer could not grant at once, so it only refuses what some clock is
// very wrong about: differing clocks must not reject a fresh record.
func checkTime(from, to, now time.Time) error {
	switch {
	case now.Add(EarlyGrace).Before(from):
		return fmt.Errorf("%w: it begins %s", ErrNotYet, from.UTC().Format(time.RFC3339))
	case now.After(to):
		return fmt.Errorf("%w: it ended %s", ErrExpired, to.UTC().Format(time.RFC3339))
	}
	return nil
}
