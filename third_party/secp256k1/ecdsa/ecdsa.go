// Package ecdsa takes the place of the signatures of secp256k1 and makes none.
package ecdsa

import "github.com/decred/dcrd/dcrec/secp256k1/v4"

// A Signature never exists: [ParseDERSignature] returns none.
type Signature struct{}

// Sign panics: there is no key to sign with.
func Sign(*secp256k1.PrivateKey, []byte) *Signature { panic(secp256k1.ErrUnsupported) }

// ParseDERSignature returns [secp256k1.ErrUnsupported].
func ParseDERSignature([]byte) (*Signature, error) { return nil, secp256k1.ErrUnsupported }

// Serialize panics: there is no signature.
func (*Signature) Serialize() []byte { panic(secp256k1.ErrUnsupported) }

// Verify reports false: there is no signature.
func (*Signature) Verify([]byte, *secp256k1.PublicKey) bool { return false }
