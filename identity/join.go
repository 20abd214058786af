package identity

import (
	"crypto/hmac"
	"crypto/sha256"

	"github.com/balefire/balefire/proto"
)

// JoinProof proves to inviter that joiner holds the ticket with secret, without
// revealing it. It is bound to both peers, so it cannot be forwarded.
func JoinProof(secret [16]byte, joiner, inviter proto.PeerID) []byte {
	mac := hmac.New(sha256.New, secret[:])
	mac.Write([]byte(domainJoin))
	mac.Write(joiner[:])
	mac.Write(inviter[:])
	return mac.Sum(nil)
}

// CheckJoinProof reports whether proof is a valid JoinProof, in constant time.
// The inviter must check that the ticket was not used before and has not expired.
func CheckJoinProof(secret [16]byte, joiner, inviter proto.PeerID, proof []byte) bool {
	return hmac.Equal(proof, JoinProof(secret, joiner, inviter))
}
