package transport

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/balefire/balefire/proto"
)

// A certificate names a member and its mesh, so a node that dials an unknown peer, for
// example one seen on the LAN, does not send it first. It asks for a proof that only a
// member can give, and that reveals nothing to others:
//
//	dialer                                   dialed
//	challenge: 32 random bytes      ──▶
//	                                ◀──      proof: HMAC(mesh, dialer, dialed, challenge)
//	hello                           ──▶      checks the certificate
//	checks the certificate          ◀──      hello

// proofSize is the size of a challenge and of a proof, in bytes.
const proofSize = sha256.Size

// reasonNoProof is the refusal of an unknown node without a proof.
const reasonNoProof = "it did not prove that it knows this mesh"

// prove answers a dialer's challenge as the dialed node. The key is the mesh id, which
// only members know; the ids are those authenticated by the connection, so that an answer
// is useless elsewhere.
func prove(tag string, dialer, dialed proto.PeerID, challenge []byte) []byte {
	key := sha256.Sum256([]byte("balefire mesh proof " + tag))
	h := hmac.New(sha256.New, key[:])
	h.Write(dialer[:])
	h.Write(dialed[:])
	h.Write(challenge)
	return h.Sum(nil)
}

// challenge asks the other side to prove that it belongs to this mesh.
func (g *greeter) challenge(s *stream) error {
	nonce := make([]byte, proofSize)
	rand.Read(nonce)
	if err := g.writeHello(s, &proto.Hello{Challenge: nonce}); err != nil {
		return err
	}
	h, err := readHello(s)
	switch {
	case err != nil:
		return err
	case h.GetRefusal() != "":
		return g.refusalFrom(s.conn, h)
	case hmac.Equal(h.GetProof(), prove(g.cfg.MeshTag, g.self, s.conn.peer, nonce)):
		return nil
	}
	return g.refuse(s, &RefusedError{Peer: s.conn.peer, Reason: reasonNoProof})
}

// answerChallenge proves that this node belongs to the mesh, and returns the hello that
// follows.
func (g *greeter) answerChallenge(s *stream, h *proto.Hello) (*proto.Hello, error) {
	if reason := g.precheckHello(s.conn, h); reason != nil {
		return nil, g.refuse(s, reason)
	}
	if len(h.GetChallenge()) != proofSize {
		return nil, fmt.Errorf("%w: challenge of %d bytes", ErrProtocol, len(h.GetChallenge()))
	}
	proof := prove(g.cfg.MeshTag, s.conn.peer, g.self, h.GetChallenge())
	if err := g.writeHello(s, &proto.Hello{Proof: proof}); err != nil {
		return nil, err
	}
	h, err := readHello(s)
	if err == nil && len(h.GetChallenge()) > 0 {
		err = fmt.Errorf("%w: a second challenge", ErrProtocol)
	}
	return h, err
}

// refuse sends the other side the reason for a refusal, and returns it.
func (g *greeter) refuse(s *stream, reason error) error {
	if r, ok := errors.AsType[*RefusedError](reason); ok && r.Theirs {
		return reason // the other side knows
	}
	err := g.sendHello(s, reason)
	if err == nil {
		// the other side closes after reading the reason
		s.CloseWrite()
		s.rd.NextRaw()
	}
	return reason
}
