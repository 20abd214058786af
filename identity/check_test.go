package identity

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
)

// An inbound is an envelope with the expected answer.
type inbound struct {
	name string
	env  *proto.Envelope
	code proto.Code
}

// badEnvelopes returns the named cases of the bad-input family "envelope" (S54): each has
// exactly one defect.
func badEnvelopes(tb testing.TB, p *sealFixture) []inbound {
	stranger, malicious := NewKeys(nil, today), NewKeys(nil, today)
	p.admit(tb, malicious, "malicious")
	worker, plain := NewKeys(nil, today), NewKeys(nil, today)
	p.admit(tb, worker, "worker", RoleWork)
	p.admit(tb, plain, "plain", RoleRelay)
	expired := NewKeys(nil, today)
	p.admit(tb, expired, "expired")
	old := p.members[expired.Peer()]
	old.NotAfter = today.Add(-time.Second)
	p.members[expired.Peer()] = old

	// by seals and signs an edited header as k.
	by := func(k *Keys, edit func(*proto.Header)) *proto.Envelope {
		h := p.header()
		h.Origin = k.Peer()
		edit(h)
		to := p.target.SealingKey()
		to.Peer = h.Target
		env, _, err := p.sealer.Seal(h, to, []byte("run tests"))
		if err != nil {
			tb.Fatal(err)
		}
		sign(k, env)
		return env
	}
	as := func(edit func(*proto.Header)) *proto.Envelope { return by(p.origin, edit) }
	none := func(*proto.Header) {}
	ms := func(d time.Duration) int64 { return today.Add(d).UnixMilli() }
	denied, form, expiredCode := proto.CodeDenied, proto.CodeBadForm, proto.CodeExpired
	badSignature, badKey, busy, clock := proto.CodeBadSignature, proto.CodeBadKey, proto.CodeBusy, proto.CodeClock
	unknown, large := proto.CodeUnknownVersion, proto.CodeTooLarge

	all := []inbound{
		{"none", nil, form},
		{"an empty one", &proto.Envelope{}, form},
		{"of another mesh", as(func(h *proto.Header) { h.Mesh[0]++ }), denied},
		{"for another node", as(func(h *proto.Header) { h.Target[0]++ }), denied},
		{"of a stranger", by(stranger, none), denied},
		{"of a member that may not send", by(plain, none), denied},
		{"of a worker that may not send", by(worker, none), denied},
		{"a result of a member that may not work", by(plain, func(h *proto.Header) { h.What = proto.WhatResult }), denied},
		{"of a member whose certificate has ended", by(expired, none), busy},
		{"without an id", as(func(h *proto.Header) { h.ID = proto.TaskID{} }), form},
		{"ended", as(func(h *proto.Header) { h.Created, h.NotAfter = ms(-time.Hour), ms(-proto.Skew) }), expiredCode},
		{"expired long ago", as(func(h *proto.Header) { h.Created, h.NotAfter = 0, 1 }), expiredCode},
		{"lives too long", as(func(h *proto.Header) { h.NotAfter = h.Created + proto.MaxTTL.Milliseconds() + 1 }), form},
		{"lives forever", as(func(h *proto.Header) { h.NotAfter = 1<<63 - 1 }), form},
		{"from tomorrow", as(func(h *proto.Header) { h.Created, h.NotAfter = ms(24*time.Hour), ms(25*time.Hour) }), clock},
		{"a second from the future", as(func(h *proto.Header) { h.Created = ms(proto.Skew + time.Second) }), clock},
		{"with an unknown critical entry", as(func(h *proto.Header) { h.TLVs = []proto.TLV{{Tag: proto.TagCritical | 99}} }), unknown},
		{"with a stream of no size", as(func(h *proto.Header) { h.SetObject([32]byte{1}, 0) }), form},
		{"with a stream of an impossible size", as(func(h *proto.Header) { h.SetObject([32]byte{1}, proto.SealedSize(proto.ChunkSize)+1) }), form},
		{"with a stream of maximum size", as(func(h *proto.Header) { h.SetObject([32]byte{1}, 1<<63-1) }), form},
		{"with a stream of a negative size", as(func(h *proto.Header) { h.SetObject([32]byte{1}, -1) }), form},
	}
	edit := func(name string, code proto.Code, e func(*proto.Envelope)) {
		env := as(none)
		e(env)
		all = append(all, inbound{name, env, code})
	}
	edit("of a later version", unknown, func(e *proto.Envelope) { e.Header[0] = proto.Version + 1 })
	edit("of an unknown suite", unknown, func(e *proto.Envelope) { e.Header[2] = 9 })
	edit("of suite 0", unknown, func(e *proto.Envelope) { e.Header[2] = 0 })
	edit("of another suite", badSignature, func(e *proto.Envelope) { e.Header[2] = e.Header[2]%3 + 1 })
	edit("with a header of 5 KiB", large, func(e *proto.Envelope) { e.Header = make([]byte, 5<<10) })
	edit("with a body over the limit", large, func(e *proto.Envelope) { e.Body = make([]byte, proto.MaxSealed+1) })
	edit("without a signature", badSignature, func(e *proto.Envelope) { e.Signature = nil })
	edit("signed by another member", badSignature, func(e *proto.Envelope) { sign(malicious, e) })
	edit("read as a result", badSignature, func(e *proto.Envelope) {
		e.Header[1] = proto.WhatResult
		leaf := EnvelopeLeaf(e.GetHeader(), e.GetBody(), proto.WhatTask)
		e.Signature, _ = p.origin.SignGroup([][32]byte{leaf})
	})
	edit("signed in another domain", badSignature, func(e *proto.Envelope) {
		leaf := EnvelopeLeaf(e.GetHeader(), e.GetBody(), proto.WhatTask)
		e.Signature = signDetails(p.origin.private, domainKey, leaf[:]).Signature
	})
	edit("signed as a statement", badSignature, func(e *proto.Envelope) {
		leaf := StatementLeaf(e.GetHeader())
		e.Signature, _ = p.origin.SignGroup([][32]byte{leaf})
	})
	edit("in a group with its sibling's path", badSignature, func(e *proto.Envelope) {
		other := as(none)
		sign(p.origin, e, other)
		e.Path, e.Index = other.Path, other.Index
	})
	edit("re-signed by another member as its own", badKey, func(e *proto.Envelope) {
		id := malicious.Peer()
		copy(e.Header[36:], id[:])
		sign(malicious, e)
	})
	edit("forwarded by the target in the origin's name", badSignature, func(e *proto.Envelope) { sign(p.target, e) })
	edit("without a wrapped key", badKey, func(e *proto.Envelope) { e.Slot = nil })
	edit("with a wrapped key of an unknown suite", badKey, func(e *proto.Envelope) { e.Slot[0] = 77 })
	edit("wrapped for a key that is not here", badKey, func(e *proto.Envelope) { e.Slot[5]++ })
	edit("with a truncated wrapped key", badKey, func(e *proto.Envelope) { e.Slot = e.Slot[:len(e.Slot)-1] })
	edit("with the wrapped key of another task", badKey, func(e *proto.Envelope) { e.Slot = as(none).Slot })
	edit("with a key wrapped for another node", badKey, func(e *proto.Envelope) {
		e.Slot, _ = p.sealer.WrapKey(e.GetHeader(), p.origin.SealingKey(), [32]byte{})
	})
	edit("with another content key, correctly wrapped", badKey, func(e *proto.Envelope) {
		e.Slot, _ = p.sealer.WrapKey(e.GetHeader(), p.target.SealingKey(), [32]byte{1})
	})
	edit("with a body that the origin sealed incorrectly", form, func(e *proto.Envelope) {
		e.Body[0] ^= 1
		sign(p.origin, e)
	})
	return all
}

// I2, S54: an envelope with a single defect is refused, with the code that tells its sender
// what to do.
func TestBadEnvelopesAreRefused(t *testing.T) {
	for _, suite := range []byte{SuiteX25519AES, SuiteX25519ChaCha, SuiteHybridAES} {
		p := newSealFixture(t, suite)
		for _, tt := range badEnvelopes(t, p) {
			opened, err := p.checks().Check(tt.env)
			if err == nil {
				t.Errorf("suite %d, %s: accepted: %+v", suite, tt.name, opened.Header)
			} else if code := codeOf(t, err); code != tt.code {
				t.Errorf("suite %d, %s: %v: %v, want %v", suite, tt.name, code, err, tt.code)
			}
		}
	}
}

// Envelopes exactly at a limit are accepted.
func TestEnvelopesAtTheLimitAreAccepted(t *testing.T) {
	p := newSealFixture(t, SuiteX25519AES)
	worker := NewKeys(nil, today)
	p.admit(t, worker, "worker", RoleWork)
	ms := func(d time.Duration) int64 { return today.Add(d).UnixMilli() }
	for name, edit := range map[string]func(*proto.Header){
		"the longest lifetime":               func(h *proto.Header) { h.NotAfter = h.Created + proto.MaxTTL.Milliseconds() },
		"expired, but within skew":           func(h *proto.Header) { h.Created, h.NotAfter = ms(-time.Hour), ms(-proto.Skew)+1 },
		"created in the future, within skew": func(h *proto.Header) { h.Created = ms(proto.Skew) },
		"an unknown entry":                   func(h *proto.Header) { h.TLVs = []proto.TLV{{Tag: 99, Value: []byte("later")}} },
		"an empty stream":                    func(h *proto.Header) { h.SetObject([32]byte{1}, proto.SealedSize(0)) },
		"a stream of 256 GiB":                func(h *proto.Header) { h.SetObject([32]byte{1}, proto.SealedSize(256<<30)) },
	} {
		h := p.header()
		edit(h)
		env := p.seal(t, h, []byte("run tests"))
		sign(p.origin, env)
		if got, err := p.checks().Check(env); err != nil || string(got.Content) != "run tests" {
			t.Errorf("%s: %v", name, err)
		}
	}
	h := p.header()
	h.What, h.Origin = proto.WhatResult, worker.Peer()
	env := p.seal(t, h, []byte("done"))
	sign(worker, env)
	if got, err := p.checks().Check(env); err != nil || got.Header.What != proto.WhatResult {
		t.Errorf("a result of a worker: %v", err)
	}
}

// I14: a result is accepted whatever the clocks say: the commit rule decides about it.
func TestResultsAreAcceptedUnderAnyClock(t *testing.T) {
	p := newSealFixture(t, SuiteX25519AES)
	worker := NewKeys(nil, today)
	p.admit(t, worker, "worker", RoleWork)
	for _, off := range []time.Duration{3 * time.Minute, time.Hour, -time.Hour, 960 * time.Hour, -960 * time.Hour, -20 * 365 * 24 * time.Hour} {
		h := p.header()
		h.What, h.Origin, h.Created, h.NotAfter = proto.WhatResult, worker.Peer(), today.Add(off).UnixMilli(), today.Add(off+proto.MaxTTL).UnixMilli()
		env := p.seal(t, h, []byte("done"))
		sign(worker, env)
		if _, err := p.checks().Check(env); err != nil {
			t.Errorf("a result made %v off: %v", off, err)
		}
	}
}

// I14: a doubted clock refuses no task permanently.
func TestDoubtedClockRefusesNothingPermanently(t *testing.T) {
	p := newSealFixture(t, SuiteX25519AES)
	h := p.header()
	h.Created, h.NotAfter = today.Add(-240*time.Hour).UnixMilli(), today.Add(-72*time.Hour).UnixMilli()
	env := p.seal(t, h, []byte("x"))
	sign(p.origin, env)
	c := p.checks()
	for doubted, want := range map[bool]proto.Code{true: proto.CodeBusy, false: proto.CodeExpired} {
		c.Doubted = doubted
		if _, err := c.Check(env); err == nil || codeOf(t, err) != want {
			t.Errorf("doubted %v: %v, want %v", doubted, err, want)
		}
	}
}

// I14: an envelope is judged by the clock of its origin, where that is known, and its
// origin's membership by this node's.
func TestTimesAreOfTheOriginsClock(t *testing.T) {
	p := newSealFixture(t, SuiteX25519AES)
	env := p.good(t, []byte("x"), 1)
	for _, off := range []time.Duration{10 * time.Minute, -10 * time.Minute, 240 * time.Hour, -240 * time.Hour, -20 * 365 * 24 * time.Hour} {
		c := p.checks()
		c.Now = c.Now.Add(off)
		p.members[p.origin.Peer()] = Member{Roles: DefaultRoles(), NotBefore: today.AddDate(-30, 0, 0), NotAfter: today.AddDate(30, 0, 0)}
		if _, err := c.Check(env); err == nil && off != 10*time.Minute { // within its hour
			t.Errorf("accepted with a clock that is %v off", off)
		}
		c.Signers = today
		if _, err := c.Check(env); err != nil {
			t.Errorf("with a clock that is %v off and knows it: %v", off, err)
		}
		p.members[p.origin.Peer()] = Member{Roles: DefaultRoles(), NotBefore: c.Now.AddDate(0, 0, -2), NotAfter: c.Now.AddDate(0, 0, -1)}
		if _, err := c.Check(env); err == nil || codeOf(t, err) != proto.CodeBusy {
			t.Errorf("of a member whose certificate has ended here: %v", err)
		}
	}
}

// Cheap checks come first: a stranger costs no hash and a forger no decryption.
func TestChecksAreInOrder(t *testing.T) {
	p := newSealFixture(t, SuiteX25519AES)
	env := p.good(t, []byte("x"), 1)
	env.Slot[0], env.Signature[0] = 77, env.Signature[0]^1 // key and signature wrong
	h, err := proto.ParseHeader(env.GetHeader())
	if err != nil {
		t.Fatal(err)
	}
	c := p.checks()
	steps := []struct {
		code  proto.Code
		spoil func()
	}{
		{proto.CodeBadSignature, func() {}},
		{proto.CodeExpired, func() { c.Signers = time.UnixMilli(h.NotAfter).Add(proto.Skew) }},
		{proto.CodeDenied, func() { c.Member = func(proto.PeerID) (Member, bool) { return Member{}, false } }},
		{proto.CodeDenied, func() { c.Self[0]++; c.Member = nil }},
		{proto.CodeDenied, func() { c.Mesh.ID[0]++ }},
		{proto.CodeBadForm, func() { env.Body = nil }},
	}
	for i, step := range steps { // each breaks something that is checked earlier than in the step before
		step.spoil()
		if _, err := c.Check(env); err == nil || codeOf(t, err) != step.code {
			t.Errorf("step %d: %v, want %v", i, err, step.code)
		}
	}
	if _, err := c.Check(env); errors.Is(err, ErrSignature) {
		t.Error("the signature was checked first")
	}
}

// parts returns the fields of an envelope that an attacker can modify.
func parts(e *proto.Envelope) []*[]byte {
	return []*[]byte{&e.Header, &e.Body, &e.Slot, &e.Path, &e.Signature}
}

func cloneEnvelope(e *proto.Envelope) *proto.Envelope {
	return &proto.Envelope{
		Header: slices.Clone(e.GetHeader()), Body: slices.Clone(e.GetBody()), Slot: slices.Clone(e.GetSlot()),
		Path: slices.Clone(e.GetPath()), Signature: slices.Clone(e.GetSignature()), Index: e.GetIndex(),
	}
}

const wrappedKeyPart = 2

// damages calls try with damaged versions of good: every bit flipped, every truncation,
// trailers on each part, all positions in the group, and random damage up to the given
// number of cases. slotOnly reports that only the wrapped key was changed.
func damages(good *proto.Envelope, cases int, try func(bad func() *proto.Envelope, slotOnly bool)) int {
	n := 0
	one := func(part int, change func([]byte) []byte) {
		n++
		try(func() *proto.Envelope {
			e := cloneEnvelope(good)
			f := parts(e)[part]
			*f = change(*f)
			return e
		}, part == wrappedKeyPart)
	}
	for part, f := range parts(good) {
		for bit := range len(*f) * 8 {
			one(part, func(b []byte) []byte { b[bit/8] ^= 1 << (bit % 8); return b })
		}
		for cut := range len(*f) {
			one(part, func(b []byte) []byte { return b[:cut] })
		}
		for extra := range 64 {
			one(part, func(b []byte) []byte { return append(b, make([]byte, extra+1)...) })
		}
	}
	for bit := range 32 {
		n++
		try(func() *proto.Envelope { e := cloneEnvelope(good); e.Index ^= 1 << bit; return e }, false)
	}
	for seed := uint64(0); n < cases; seed++ {
		n++
		try(func() *proto.Envelope { return randomDamage(good, seed) }, false)
	}
	return n
}

// randomDamage changes one to eight bytes, anywhere.
func randomDamage(good *proto.Envelope, seed uint64) *proto.Envelope {
	rnd := rand.New(rand.NewPCG(seed, 99))
	for {
		e := cloneEnvelope(good)
		for range 1 + rnd.IntN(8) {
			f := *parts(e)[rnd.IntN(5)]
			f[rnd.IntN(len(f))] = byte(rnd.Uint32())
		}
		if !sameEnvelope(e, good) {
			return e
		}
	}
}

func sameEnvelope(a, b *proto.Envelope) bool {
	for i, f := range parts(a) {
		if !bytes.Equal(*f, *parts(b)[i]) {
			return false
		}
	}
	return a.GetIndex() == b.GetIndex()
}

// The bad-input family "envelope" (S54, I2, I9): 12 203 damaged envelopes a suite, 202
// 203 with BALEFIRE_LONG=1, none of which may pass. Each is refused with a typed error;
// damage to the wrapped key alone never ends a task, because any node on the path may
// have caused it.
func TestDamagedEnvelopesAreRefused(t *testing.T) {
	cases := 12_203
	if os.Getenv("BALEFIRE_LONG") != "" {
		cases = 202_203
	}
	for name, suite := range map[string]byte{"AES": SuiteX25519AES, "ChaCha": SuiteX25519ChaCha} {
		t.Run(name, func(t *testing.T) {
			p := newSealFixture(t, suite)
			bad := badEnvelopes(t, p)
			good := p.good(t, []byte("\x07run tests"), 8)
			c := p.checks()
			if _, err := c.Check(good); err != nil {
				t.Fatal(err)
			}
			type job struct {
				make     func() *proto.Envelope
				slotOnly bool
			}
			jobs := make(chan job, 1024)
			var wg sync.WaitGroup
			var accepted atomic.Int64
			for range runtime.GOMAXPROCS(0) {
				wg.Go(func() {
					for j := range jobs {
						env := j.make()
						_, err := c.Check(env)
						refused, typed := errors.AsType[*CheckError](err)
						if !typed || j.slotOnly && refused.Code != proto.CodeBadKey {
							accepted.Add(1)
							t.Errorf("slot only %v: %v, of %v", j.slotOnly, err, env)
						}
					}
				})
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for _, b := range bad {
				jobs <- job{func() *proto.Envelope { return b.env }, false}
			}
			n := len(bad) + damages(good, cases-len(bad), func(bad func() *proto.Envelope, slotOnly bool) { jobs <- job{bad, slotOnly} })
			close(jobs)
			wg.Wait()
			runtime.ReadMemStats(&after)
			t.Logf("counted: %d damaged envelopes", n)
			if n != cases || accepted.Load() != 0 {
				t.Errorf("%d cases, %d accepted or refused with the wrong error; want %d and none", n, accepted.Load(), cases)
			}
			if each := (after.TotalAlloc - before.TotalAlloc) / uint64(cases); each > 16<<10 {
				t.Errorf("a refusal allocates %d bytes", each)
			}
			if _, err := c.Check(good); err != nil {
				t.Errorf("the undamaged envelope, at the end: %v", err)
			}
		})
	}
}

func BenchmarkSeal(b *testing.B) {
	p := newSealFixture(b, SuiteX25519AES)
	content, to := randomBytes(1024), p.target.SealingKey()
	b.ReportAllocs()
	for b.Loop() {
		h := p.header()
		env, _, err := p.sealer.Seal(h, to, content)
		if err != nil {
			b.Fatal(err)
		}
		EnvelopeLeaf(env.GetHeader(), env.GetBody(), h.What)
	}
}

// BenchmarkCheck checks one of 64 envelopes of a cached group.
func BenchmarkCheck(b *testing.B) {
	p := newSealFixture(b, SuiteX25519AES)
	env, c := p.good(b, randomBytes(1024), 64), p.checks()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Check(env); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCheckForged(b *testing.B) {
	p := newSealFixture(b, SuiteX25519AES)
	env, c := p.good(b, randomBytes(1024), 64), p.checks()
	env.Signature[3] ^= 1
	for b.Loop() {
		if _, err := c.Check(env); err == nil {
			b.Fatal("accepted")
		}
	}
}

func BenchmarkCheckStranger(b *testing.B) {
	p := newSealFixture(b, SuiteX25519AES)
	env, c := p.good(b, randomBytes(1024), 64), p.checks()
	c.Member = func(proto.PeerID) (Member, bool) { return Member{}, false }
	for b.Loop() {
		if _, err := c.Check(env); err == nil {
			b.Fatal("accepted")
		}
	}
}

// An envelope that is checked in place has the same content, in the memory of its body.
func TestCheckInPlace(t *testing.T) {
	p := newSealFixture(t, SuiteX25519AES)
	for _, content := range [][]byte{[]byte("run tests"), bytes.Repeat([]byte("a"), 4<<10)} {
		env := p.seal(t, p.header(), content)
		sign(p.origin, env)
		want, err := p.checks().Check(env)
		if err != nil || !bytes.Equal(want.Content, content) {
			t.Fatalf("%q: %v", want.Content, err)
		}
		body := bytes.Clone(env.Body)
		got, err := p.checks().CheckInPlace(env)
		if err != nil || !bytes.Equal(got.Content, content) || got.Key != want.Key {
			t.Errorf("in place: %q, %v", got.Content, err)
		}
		if bytes.Equal(env.Body, body) {
			t.Error("the sealed body is still there")
		}
		if _, err := p.checks().CheckInPlace(env); err == nil {
			t.Error("an open body was checked again")
		}
	}
}
