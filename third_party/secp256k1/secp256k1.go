// Package secp256k1 takes the place of github.com/decred/dcrd/dcrec/secp256k1/v4 and has no
// keys: see third_party/README.md. libp2p links the original, with a table of 700 KB, to
// accept secp256k1 keys; every id in a mesh is an Ed25519 key, and a peer with another key
// is refused in any case. Here its key cannot be parsed, so its handshake fails.
package secp256k1

import "errors"

// ErrUnsupported is returned for each key.
var ErrUnsupported = errors.New("secp256k1 keys are not supported: a node has an Ed25519 key")

// PrivKeyBytesLen is the length of a private key in bytes.
const PrivKeyBytesLen = 32

// A PrivateKey never exists: [GeneratePrivateKey] returns none.
type PrivateKey struct{ _ [PrivKeyBytesLen]byte }

// A PublicKey never exists: [ParsePubKey] returns none.
type PublicKey struct{ _ [PrivKeyBytesLen]byte }

// GeneratePrivateKey returns [ErrUnsupported].
func GeneratePrivateKey() (*PrivateKey, error) { return nil, ErrUnsupported }

// PrivKeyFromBytes panics with [ErrUnsupported]: the original has no error to return, and
// libp2p turns a panic into one.
func PrivKeyFromBytes([]byte) *PrivateKey { panic(ErrUnsupported) }

// ParsePubKey returns [ErrUnsupported].
func ParsePubKey([]byte) (*PublicKey, error) { return nil, ErrUnsupported }

// Serialize panics: there is no key.
func (*PrivateKey) Serialize() []byte { panic(ErrUnsupported) }

// PubKey panics: there is no key.
func (*PrivateKey) PubKey() *PublicKey { panic(ErrUnsupported) }

// SerializeCompressed panics: there is no key.
func (*PublicKey) SerializeCompressed() []byte { panic(ErrUnsupported) }

// IsEqual reports false: there is no key.
func (*PublicKey) IsEqual(*PublicKey) bool { return false }
