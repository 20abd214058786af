package identity

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hpke"
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/cpu"
)

// A suite defines how a body is sealed and how its key is wrapped.
const (
	SuiteX25519AES    byte = 1 // X25519 and AES-256-GCM
	SuiteX25519ChaCha byte = 2 // X25519 and ChaCha20-Poly1305, for machines without AES in hardware
	SuiteHybridAES    byte = 3 // MLKEM768X25519 and AES-256-GCM: safe against a later quantum computer
)

// ErrSuite is returned for a suite that this version does not know.
var ErrSuite = errors.New("identity: unknown suite")

const (
	keySize   = 32
	nonceSize = 12
	tagSize   = 16
)

// A suite holds the algorithms and sizes of one suite number.
type suite struct {
	kem     hpke.KEM
	public  int // length of a public key
	private int // length of a private key on disk
	enc     int // length of an encapsulated key
	chacha  bool
}

var suites = [...]suite{
	SuiteX25519AES:    {hpke.DHKEM(ecdh.X25519()), 32, 32, 32, false},
	SuiteX25519ChaCha: {hpke.DHKEM(ecdh.X25519()), 32, 32, 32, true},
	SuiteHybridAES:    {hpke.MLKEM768X25519(), 1216, 32, 1120, false},
}

// suiteOf returns the suite with number id.
func suiteOf(id byte) (suite, error) {
	if id == 0 || int(id) >= len(suites) {
		return suite{}, fmt.Errorf("%w %d", ErrSuite, id)
	}
	return suites[id], nil
}

// aead returns the suite's cipher for key, which must have 32 bytes.
func (s suite) aead(key []byte) cipher.AEAD {
	if s.chacha {
		a, err := chacha20poly1305.New(key)
		if err != nil {
			panic("identity: " + err.Error()) // a key of another length
		}
		return a
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		panic("identity: " + err.Error()) // a key of another length
	}
	a, err := cipher.NewGCM(block)
	if err != nil {
		panic("identity: " + err.Error()) // cannot fail: AES has the right block size
	}
	return a
}

// checkPublic refuses invalid public keys of the suite, and X25519 points of small order,
// which would make the shared secret public.
func (s suite) checkPublic(public []byte) error {
	if len(public) != s.public {
		return fmt.Errorf("%w: a sealing key of %d bytes", ErrBadRecord, len(public))
	}
	if _, err := s.kem.NewPublicKey(public); err != nil {
		return fmt.Errorf("%w: %w", ErrBadRecord, err)
	}
	curve := ecdh.X25519()
	point, err := curve.NewPublicKey(public[len(public)-32:])
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadRecord, err)
	}
	probe, err := curve.NewPrivateKey([]byte("balefire probes a point's order "))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadRecord, err)
	}
	if _, err := probe.ECDH(point); err != nil {
		return ErrWeakKey
	}
	return nil
}

// defaultSuite returns the suite for new keys on this machine.
func defaultSuite() byte {
	fast := cpu.X86.HasAES && cpu.X86.HasPCLMULQDQ ||
		cpu.ARM64.HasAES && cpu.ARM64.HasPMULL ||
		cpu.S390X.HasAES && cpu.S390X.HasAESGCM ||
		runtime.GOARCH == "arm64" && runtime.GOOS == "darwin"
	if fast {
		return SuiteX25519AES
	}
	return SuiteX25519ChaCha
}
