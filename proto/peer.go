package proto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
)

// A PeerID is the 32 bytes of a node's Ed25519 public key. Its text form is
// that of libp2p: base58 of an identity multihash over the key's protobuf, which
// begins with 12D3KooW.
type PeerID [32]byte

// ErrBadPeerID is returned for text that is not the id of an Ed25519 key.
var ErrBadPeerID = errors.New("proto: not a peer id")

// peerPrefix: identity multihash (0x00), 36 bytes, then a PublicKey message of
// type 1 (Ed25519) with 32 bytes of data (libp2p specs, peer-ids).
var peerPrefix = [6]byte{0x00, 0x24, 0x08, 0x01, 0x12, 0x20}

const base58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

// IsZero reports whether p was never set.
func (p PeerID) IsZero() bool { return p == PeerID{} }

// Compare orders ids bytewise.
func (p PeerID) Compare(o PeerID) int { return bytes.Compare(p[:], o[:]) }

// Short returns the last six characters of the text form, for logs.
func (p PeerID) Short() string { s := p.String(); return s[len(s)-6:] }

// Bytes returns libp2p's binary form of the id, 38 bytes.
func (p PeerID) Bytes() []byte { return append(peerPrefix[:len(peerPrefix):len(peerPrefix)], p[:]...) }

// LogValue returns the whole id, so that logs can be searched for it.
func (p PeerID) LogValue() slog.Value { return slog.StringValue(p.String()) }

// String returns the text form, 52 characters.
func (p PeerID) String() string {
	var limbs [10]uint32 // the 38 bytes as one number, the highest limb first
	var raw [40]byte
	copy(raw[2:], peerPrefix[:])
	copy(raw[8:], p[:])
	for i := range limbs {
		limbs[i] = binary.BigEndian.Uint32(raw[4*i:])
	}
	var text [55]byte
	for at := len(text); at > 0; at -= 5 { // five digits at a time, the lowest first
		rest := uint64(0)
		for i, limb := range limbs {
			rest = rest<<32 | uint64(limb)
			limbs[i], rest = uint32(rest/radix5), rest%radix5
		}
		for i := 1; i <= 5; i++ {
			text[at-i], rest = base58[rest%58], rest/58
		}
	}
	return string(text[len(text)-52:])
}

const radix5 = 58 * 58 * 58 * 58 * 58

// MarshalText writes the text form, for logs and JSON.
func (p PeerID) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// ParsePeerID reads the form that String writes.
func ParsePeerID(s string) (PeerID, error) {
	var p PeerID
	if len(s) != 52 {
		return p, fmt.Errorf("%w: %.64q", ErrBadPeerID, s)
	}
	n, radix := new(big.Int), big.NewInt(58)
	for _, c := range []byte(s) {
		d := strings.IndexByte(base58, c)
		if d < 0 {
			return p, fmt.Errorf("%w: %.64q", ErrBadPeerID, s)
		}
		n.Add(n.Mul(n, radix), big.NewInt(int64(d)))
	}
	want := len(peerPrefix) + len(p)
	if n.BitLen() > want*8 {
		return p, fmt.Errorf("%w: %.64q", ErrBadPeerID, s)
	}
	raw := n.FillBytes(make([]byte, want))
	if [6]byte(raw[:6]) != peerPrefix {
		return p, fmt.Errorf("%w: %.64q is not of an Ed25519 key", ErrBadPeerID, s)
	}
	copy(p[:], raw[6:])
	if p.String() != s {
		return PeerID{}, fmt.Errorf("%w: %.64q", ErrBadPeerID, s)
	}
	return p, nil
}

// PeerIDFrom reads the 32 bytes of a key.
func PeerIDFrom(b []byte) (PeerID, error) {
	var p PeerID
	if len(b) != len(p) {
		return p, fmt.Errorf("%w: %d bytes", ErrBadPeerID, len(b))
	}
	copy(p[:], b)
	return p, nil
}
