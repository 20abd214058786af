package identity

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/balefire/balefire/proto"
)

// sealPlain returns an envelope with plain as its body, without packing.
func sealPlain(tb testing.TB, p *sealFixture, plain []byte) *proto.Envelope {
	tb.Helper()
	key, h := [32]byte{1}, p.header()
	to := p.target.SealingKey()
	h.Suite, h.Commitment, h.SealedLen = to.Suite, commitment(&key), uint32(len(plain)+tagSize)
	env := &proto.Envelope{Header: h.Append(nil)}
	bodyKey := derive(domainBody, &key)
	env.Body = suites[to.Suite].aead(bodyKey[:]).Seal(nil, zeroNonce[:], plain, env.GetHeader())
	var err error
	if env.Slot, err = p.sealer.WrapKey(env.GetHeader(), to, key); err != nil {
		tb.Fatal(err)
	}
	sign(p.origin, env)
	return env
}

// S54: a badly packed body, or a decompression bomb, is refused permanently and costs no
// memory.
func TestBadPackingIsRefused(t *testing.T) {
	p := newSealFixture(t, SuiteX25519AES)
	bomb, ok := proto.Compress([]byte{packedZstd}, make([]byte, 16<<20))
	if !ok {
		t.Fatal("zeros do not compress")
	}
	whole, ok := proto.Compress([]byte{packedZstd}, bytes.Repeat([]byte("fits. "), 1000))
	if !ok {
		t.Fatal("text does not compress")
	}
	if got, err := p.checks().Check(sealPlain(t, p, whole)); err != nil || len(got.Content) != 6000 {
		t.Fatalf("a valid body: %v", err)
	}
	for name, plain := range map[string][]byte{
		"an unknown packing":        {2, 1, 2, 3},
		"a bomb":                    bomb,
		"compressed and truncated":  whole[:len(whole)-5],
		"compressed with a trailer": append(bytes.Clone(whole), 0),
		"compressed nothing":        {packedZstd},
		"noise as compressed":       append([]byte{packedZstd}, randomBytes(100)...),
		"two frames":                append(bytes.Clone(whole), whole[1:]...),
	} {
		env, c := sealPlain(t, p, plain), p.checks()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := c.Check(env)
		runtime.ReadMemStats(&after)
		if err == nil || codeOf(t, err) != proto.CodeBadForm || !errors.Is(err, ErrOpen) {
			t.Errorf("%s: %v, want BAD_FORM", name, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20+8*uint64(len(plain)) {
			t.Errorf("%s: %d bytes were allocated", name, n)
		}
	}
	if _, err := unpack(nil); !errors.Is(err, ErrOpen) {
		t.Errorf("an empty body: %v", err)
	}
}

// An unverified record does not harm the sealer.
func TestSealRefusesBadRecords(t *testing.T) {
	p := newSealFixture(t, SuiteX25519AES)
	good := p.target.SealingKey()
	for name, tt := range map[string]struct {
		suite  byte
		public []byte
		want   error
	}{
		"suite 0":        {0, good.Public, ErrSuite},
		"suite 200":      {200, good.Public, ErrSuite},
		"no key":         {SuiteX25519AES, nil, ErrBadRecord},
		"a key of zeros": {SuiteX25519AES, make([]byte, 32), ErrBadRecord},
		"a wrong size":   {SuiteHybridAES, good.Public, ErrBadRecord},
	} {
		to := good
		to.Suite, to.Public = tt.suite, tt.public
		if _, _, err := p.sealer.Seal(p.header(), to, nil); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
	}
	h := p.header()
	h.TLVs = []proto.TLV{{Tag: 9, Value: make([]byte, proto.MaxHeader)}}
	if _, _, err := p.sealer.Seal(h, good, nil); !errors.Is(err, ErrTooLarge) {
		t.Errorf("a header over the limit: %v", err)
	}
}

// Sealing, checking and rotating may happen at the same time.
func TestSealAndCheckConcurrently(t *testing.T) {
	p := newSealFixture(t, SuiteX25519AES)
	c := p.checks()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				h := p.header()
				env, _, err := p.sealer.Seal(h, p.target.SealingKey(), []byte("at once"))
				if err != nil {
					t.Error(err)
					return
				}
				sign(p.origin, env)
				if got, err := c.Check(env); err != nil || got.Header.ID != h.ID {
					t.Errorf("check: %v", err)
				}
			}
		})
	}
	for range 10 {
		if err := p.target.Rotate(0, today); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}
