package identity

import (
	"bytes"
	"crypto/cipher"
	"crypto/hpke"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// A wrapped key is the content key of an envelope, encrypted for one recipient:
//
//	suite 1 | key id 8 | encapsulated key 32 or 1120 | nonce 12 | wrapped key 48
//
// The encapsulated key yields a wrapping key, known only to the sealer and the
// recipient (HPKE Base mode, RFC 9180, used to export a secret). It costs as much
// as a signature, so many wrapped keys share one; each still opens by itself.
const (
	wrappedKeyHead = 1 + 8
	wrappedKeyTail = nonceSize + keySize + tagSize
)

// ErrBadKey is returned for a wrapped key that opens with no key of this node, or
// differs from the key that the header commits to. Wrapped keys are not signed,
// so the sender is asked again: the task does not end.
var ErrBadKey = errors.New("identity: the wrapped key does not open")

const (
	encapsulationTTL     = time.Hour // how long one encapsulation is used
	maxEncapsulationUses = 1 << 20   // and for how many wrapped keys: the nonces are random
	sealerLimit          = 1024      // recipients remembered
)

// A Sealer seals for any recipient and caches encapsulations. It is safe for
// concurrent use.
type Sealer struct {
	clock          clock.Clock
	encapsulations *cache[recipient, *encapsulation]
}

// NewSealer returns a Sealer that measures the age of encapsulations with clk.
func NewSealer(clk clock.Clock) *Sealer {
	return &Sealer{clock: clk, encapsulations: newCache[recipient, *encapsulation](sealerLimit)}
}

type recipient struct {
	peer proto.PeerID
	key  [8]byte
}

// An encapsulation is a wrapping key for one recipient.
type encapsulation struct {
	head      []byte // suite, key id, encapsulated key
	public    []byte
	aead      cipher.AEAD
	createdAt time.Duration // of the sealer's Boot clock
	uses      atomic.Int64
}

// WrapKey encrypts key for a recipient, bound to the header of its envelope. With
// the header unchanged this makes an envelope readable for a new key of the
// target, or for a new owner, without a new signature.
func (s *Sealer) WrapKey(header []byte, to KeyRecord, key [32]byte) ([]byte, error) {
	w, err := s.encapsulation(to)
	if err != nil {
		return nil, fmt.Errorf("seal for %s: %w", to.Peer.Short(), err)
	}
	// The key is encrypted in place, and the nonce is read into its place.
	head := len(w.head)
	out := make([]byte, head+wrappedKeyTail)
	copy(out, w.head)
	nonce, wrapped := out[head:head+nonceSize], out[head+nonceSize:head+nonceSize+keySize]
	rand.Read(nonce)
	copy(wrapped, key[:])
	w.aead.Seal(wrapped[:0], nonce, wrapped, header)
	return out, nil
}

// encapsulation returns a recent enough encapsulation for to. Two callers may
// create one each at the same time; both are valid.
func (s *Sealer) encapsulation(to KeyRecord) (*encapsulation, error) {
	now, who := s.clock.Boot(), recipient{to.Peer, to.ID}
	if w, ok := s.encapsulations.get(who); ok && now-w.createdAt < encapsulationTTL &&
		bytes.Equal(w.public, to.Public) && w.uses.Add(1) <= maxEncapsulationUses {
		return w, nil
	}
	w, err := encapsulate(to)
	if err != nil {
		return nil, err
	}
	w.createdAt = now
	w.uses.Store(1)
	s.encapsulations.put(who, w)
	return w, nil
}

func encapsulate(to KeyRecord) (*encapsulation, error) {
	suite, err := suiteOf(to.Suite)
	if err != nil {
		return nil, err
	}
	public, err := suite.kem.NewPublicKey(to.Public)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRecord, err)
	}
	head := append([]byte{to.Suite}, to.ID[:]...)
	enc, sender, err := hpke.NewSender(public, hpke.HKDFSHA256(), hpke.ExportOnly(), wrapInfo(head))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRecord, err)
	}
	key, err := sender.Export(domainWrappedKey, keySize)
	if err != nil {
		return nil, err
	}
	return &encapsulation{head: append(head, enc...), public: to.Public, aead: suite.aead(key)}, nil
}

// wrapInfo binds the encapsulation to its suite and key.
func wrapInfo(head []byte) []byte { return append([]byte(domainWrappedKey), head[:wrappedKeyHead]...) }

// unwrapKey decrypts a wrapped key, or returns ErrBadKey.
func (k *Keys) unwrapKey(header, wrapped []byte) (key [keySize]byte, err error) {
	if len(wrapped) < wrappedKeyHead {
		return key, fmt.Errorf("%w: %d bytes", ErrBadKey, len(wrapped))
	}
	suite, err := suiteOf(wrapped[0])
	if err != nil {
		return key, fmt.Errorf("%w: %w", ErrBadKey, err)
	}
	if len(wrapped) != wrappedKeyHead+suite.enc+wrappedKeyTail {
		return key, fmt.Errorf("%w: %d bytes", ErrBadKey, len(wrapped))
	}
	head, tail := wrapped[:wrappedKeyHead+suite.enc], wrapped[wrappedKeyHead+suite.enc:]
	aead, err := k.unwrapAEAD(head)
	if err != nil {
		return key, err
	}
	if _, err := aead.Open(key[:0], tail[:nonceSize], tail[nonceSize:], header); err != nil {
		return [keySize]byte{}, fmt.Errorf("%w: it was changed or belongs to another header", ErrBadKey)
	}
	return key, nil
}

// unwrapAEAD returns the wrapping key for the head of a wrapped key.
func (k *Keys) unwrapAEAD(head []byte) (cipher.AEAD, error) {
	name := sha256.Sum256(head)
	if aead, ok := k.unwrapCache.get(name); ok {
		return aead, nil
	}
	own, ok := k.find([8]byte(head[1:wrappedKeyHead]))
	if !ok || own.record.Suite != head[0] {
		return nil, fmt.Errorf("%w: no key %x here", ErrBadKey, head[1:wrappedKeyHead])
	}
	suite := suites[own.record.Suite]
	r, err := hpke.NewRecipient(head[wrappedKeyHead:], own.private, hpke.HKDFSHA256(), hpke.ExportOnly(), wrapInfo(head))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadKey, err)
	}
	key, err := r.Export(domainWrappedKey, keySize)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadKey, err)
	}
	aead := suite.aead(key)
	k.unwrapCache.put(name, aead)
	return aead, nil
}
