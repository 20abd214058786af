package transport

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// A certificate names a member and its mesh, so who dials somebody of whom it knows
// nothing, a node seen on the LAN, does not begin with it. It asks for a proof that
// only a member can give, and that tells nothing to others:
//
//	dialler                                  dialled
//	challenge: 32 random bytes      ──▶
//	                                ◀──      proof: HMAC(mesh, dialler, dialled, challenge)
//	hello                           ──▶      checks the certificate
//	checks the certificate          ◀──      hello

// proofSize is that of a challenge and of a proof, in bytes.
const proofSize = sha256.Size

// reasonNoProof is why the hello with an unknown node ends.
const reasonNoProof = "it does not prove that it knows this mesh"

// prove answers the challenge of dialler as the node that was dialled. The key is
// the mesh's id, which members alone know; the ids are those that the connection
// vouches for, so that an answer serves nobody else.
func prove(tag string, dialler, dialled proto.PeerID, challenge []byte) []byte {
	key := sha256.Sum256([]byte("balefire mesh proof " + tag))
	h := hmac.New(sha256.New, key[:])
	h.Write(dialler[:])
	h.Write(dialled[:])
	h.Write(challenge)
	return h.Sum(nil)
}

// isKnown reports whether p is a member as far as is known here, or somebody named it.
func (t *Transport) isKnown(p proto.PeerID) bool {
	return t.isMember(p) || t.knownPeers()[p]
}

// challenge has the other side prove that it is of this mesh.
func (t *Transport) challenge(s *stream) error {
	nonce := make([]byte, proofSize)
	rand.Read(nonce)
	if err := t.writeHello(s, &proto.Hello{Challenge: nonce}); err != nil {
		return err
	}
	h, err := readHello(s)
	switch {
	case err != nil:
		return err
	case h.GetRefusal() != "":
		return t.refusalFrom(s.conn, h)
	case hmac.Equal(h.GetProof(), prove(t.cfg.MeshTag, t.self, s.conn.peer, nonce)):
		return nil
	}
	return t.refuse(s, &RefusedError{s.conn.peer, reasonNoProof, false})
}

// answerChallenge proves that this node is of the mesh, whoever asks, and returns
// the hello that follows.
func (t *Transport) answerChallenge(s *stream, h *proto.Hello) (*proto.Hello, error) {
	if reason := t.precheckHello(s.conn, h); reason != nil {
		return nil, t.refuse(s, reason)
	}
	if len(h.GetChallenge()) != proofSize {
		return nil, fmt.Errorf("%w: a challenge of %d bytes", ErrProtocol, len(h.GetChallenge()))
	}
	proof := prove(t.cfg.MeshTag, s.conn.peer, t.self, h.GetChallenge())
	if err := t.writeHello(s, &proto.Hello{Proof: proof}); err != nil {
		return nil, err
	}
	h, err := readHello(s)
	if err == nil && len(h.GetChallenge()) > 0 {
		err = fmt.Errorf("%w: a second challenge", ErrProtocol)
	}
	return h, err
}

// refuse tells the other side why it is not welcome and returns the same.
func (t *Transport) refuse(s *stream, reason error) error {
	if r, ok := errors.AsType[*RefusedError](reason); ok && r.Theirs {
		return reason // it knows
	}
	err := t.sendHello(s, reason)
	if err == nil {
		// the other side closes as soon as it has read the reason
		s.CloseWrite()
		s.rd.NextRaw()
	}
	return reason
}
