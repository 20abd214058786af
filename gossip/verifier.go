package gossip

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"

	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
)

// Reasons to reject a rumor.
var (
	// errMalformed rejects a rumor that is not a single statement, or was not signed by
	// its author.
	errMalformed = errors.New("gossip: not a single statement by its author")
	// errStranger rejects a rumor by a node that is not known as a member.
	errStranger = errors.New("gossip: the signer is not a known member")
)

// A verifier checks the signatures of rumors. It caches verified statements, because the
// same statement arrives from many peers and verifying a signature costs as much as a
// hundred digests. It is safe for concurrent use.
type verifier struct {
	mesh identity.Mesh
	dir  Directory

	mu               sync.Mutex
	recent, previous map[[32]byte]*Update // keyed by fingerprint
}

// maxVerified bounds the cache: it holds at least this many statements, and at most twice
// as many.
const maxVerified = 2048

func newVerifier(mesh identity.Mesh, dir Directory) *verifier {
	return &verifier{mesh: mesh, dir: dir, recent: make(map[[32]byte]*Update)}
}

// update returns the verified statement of a rumor that is a record or an accusation.
// known decides whether its signer is a member, given the rumor's introduction. The cheap
// checks come first.
func (e *verifier) update(rumor *proto.Rumor, known func(p proto.PeerID, k *proto.KnownPeer) bool) (*Update, error) {
	record, accusation := rumor.GetRecord(), rumor.GetAccusation()
	if (record == nil) == (accusation == nil) || rumor.GetRevocation() != nil {
		return nil, errMalformed
	}
	s := record
	if s == nil {
		s = accusation
	}
	speaker, err := proto.PeerIDFrom(s.GetSigner())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if !known(speaker, rumor.GetIntroduction()) {
		return nil, errStranger
	}
	key := fingerprint(s)
	if n := e.get(key); n != nil && n.accuses() == (record == nil) {
		return n, nil
	}
	n, err := e.verify(record, accusation)
	if err == nil {
		e.put(key, n)
	}
	return n, err
}

// verify checks the signature of the one that is not nil.
func (e *verifier) verify(record, accusation *proto.Signed) (*Update, error) {
	if record != nil {
		r, err := e.mesh.VerifyNode(record)
		if err != nil {
			return nil, err
		}
		p := proto.PeerID(r.GetPeer())
		return &Update{Peer: p, By: p, Incarnation: r.GetIncarnation(), Record: r, Rumor: &proto.Rumor{Record: record}}, nil
	}
	a, err := e.mesh.VerifyAccusation(accusation)
	if err != nil {
		return nil, err
	}
	return &Update{
		Peer: proto.PeerID(a.GetPeer()), By: proto.PeerID(a.GetAccuser()), Incarnation: a.GetIncarnation(),
		Liveness: a.GetLiveness(), Rumor: &proto.Rumor{Accusation: accusation},
	}, nil
}

// fingerprint identifies a signed statement together with its signature.
func fingerprint(s *proto.Signed) [32]byte {
	h := sha256.New()
	inner := sha256.Sum256(s.GetDetails())
	h.Write(inner[:])
	inner = sha256.Sum256(s.GetSignature())
	h.Write(inner[:])
	h.Write(s.GetSigner())
	if s.GetIssuer() != nil {
		h.Write([]byte("issued")) // such a statement is always rejected
	}
	return [32]byte(h.Sum(nil))
}

func (e *verifier) get(key [32]byte) *Update {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := e.recent[key]; n != nil {
		return n
	}
	return e.previous[key]
}

func (e *verifier) put(key [32]byte, n *Update) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.recent) >= maxVerified {
		e.previous, e.recent = e.recent, make(map[[32]byte]*Update)
	}
	e.recent[key] = n
}

// member reports whether p is a member.
func (e *verifier) member(p proto.PeerID) bool {
	_, ok := e.dir.Member(p)
	return ok
}

// Valid reports whether author may publish a message on the topic: the message is
// well-formed, each rumor is a statement by the author with a valid signature, and the
// author is a member. It is safe for concurrent use, and changes no state but the
// signature cache. number is the message's number; 0: it has none.
func (r *Runner) Valid(author proto.PeerID, data []byte) (number uint64, ok bool) {
	h, err := r.readTopic(author, data, func(p proto.PeerID, k *proto.KnownPeer) bool {
		return p == author && (r.verifier.member(p) || r.validIntroduction(p, k))
	})
	if err != nil {
		r.met.refused.Inc()
		r.log.Debug("gossip message rejected", "author", author, "error", err)
		return 0, false
	}
	return h.number, true
}

// validIntroduction reports whether k is a valid, unrevoked certificate of p.
func (r *Runner) validIntroduction(p proto.PeerID, k *proto.KnownPeer) bool {
	m, err := r.mesh.VerifyMember(k.GetCertificate(), r.cfg.Clock.Now())
	return err == nil && m.Peer == p && !r.revoked.revokes(m)
}

// readTopic decodes and verifies a message of the topic.
func (r *Runner) readTopic(author proto.PeerID, data []byte, known func(proto.PeerID, *proto.KnownPeer) bool) (*topicMsg, error) {
	if len(data) > proto.MaxControl {
		return nil, fmt.Errorf("%w: %d bytes", errMalformed, len(data))
	}
	var m proto.Rumors
	if err := proto.DecodeKnown(data, &m); err != nil {
		return nil, err
	}
	if n := len(m.GetRoot()); n != 0 && n != 32 || n == 0 && len(m.GetRumors()) == 0 {
		return nil, fmt.Errorf("%w: root of %d bytes", errMalformed, n)
	}
	h := &topicMsg{number: m.GetNumber()}
	speaks := len(m.GetRumors()) > 0
	for _, rumor := range m.GetRumors() {
		if rumor.GetRevocation() != nil {
			ended, err := r.mesh.VerifyRevocation(rumor.GetRevocation())
			if err != nil {
				return nil, err
			}
			h.revocations = append(h.revocations, ended)
			speaks = speaks && r.verifier.member(author)
			continue
		}
		n, err := r.verifier.update(rumor, known)
		if err != nil {
			return nil, err
		}
		h.updates = append(h.updates, n)
	}
	if !speaks && !r.verifier.member(author) {
		return nil, errStranger
	}
	return h, nil
}

// A topicMsg is a decoded message of the topic.
type topicMsg struct {
	updates     []*Update
	revocations []identity.Revocation
	number      uint64
}

// verifyRumors returns the updates in rumors that can be verified here, in order. It
// learns the nodes that are introduced. missing: the signer or subject of a rumor is
// unknown here, so the sender knows more than this node.
func (r *Runner) verifyRumors(ctx context.Context, rumors []*proto.Rumor) (updates []*Update, missing bool) {
	for _, rumor := range rumors {
		if rumor.GetRevocation() != nil {
			r.receiveRevocation(ctx, rumor.GetRevocation())
			continue
		}
		n, err := r.verifier.update(rumor, func(p proto.PeerID, k *proto.KnownPeer) bool {
			if r.verifier.member(p) {
				return true
			}
			if !r.validIntroduction(p, k) || r.dir.Learn(ctx, k) != nil {
				return false
			}
			return r.verifier.member(p)
		})
		switch {
		case errors.Is(err, errStranger):
			missing = true
			r.met.strangers.Inc()
		case err != nil:
			r.met.refused.Inc()
		case n.accuses() && n.Peer != r.keys.Peer() && !r.verifier.member(n.Peer):
			missing = true
		default:
			r.met.accepted.Inc()
			r.met.recordAge(r.cfg.Clock.Now(), n)
			updates = append(updates, n)
		}
	}
	return updates, missing
}
