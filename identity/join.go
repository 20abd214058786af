package identity

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/balefire/balefire/proto"
)

// JoinProof shows inviter that joiner holds the ticket with secret, without
// telling it. It is bound to both, so nobody can pass it on.
func JoinProof(secret [16]byte, joiner, inviter proto.PeerID) []byte {
	mac := hmac.New(sha256.New, secret[:])
	mac.Write([]byte(domainJoin))
	mac.Write(joiner[:])
	mac.Write(inviter[:])
	return mac.Sum(nil)
}

// CheckJoinProof reports whether proof is JoinProof's, in constant time. That
// the ticket was not used before, and is in its time, is for the inviter to
// check.
func CheckJoinProof(secret [16]byte, joiner, inviter proto.PeerID, proof []byte) bool {
	return hmac.Equal(proof, JoinProof(secret, joiner, inviter))
}
