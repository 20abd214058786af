package proto

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"

	pb "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Every decoder reads arbitrary bytes without a panic and fails only with one of its own
// errors; a decoded value encodes and decodes again to the same value.

func FuzzFrame(f *testing.F) {
	b, _ := frames(f, 3)
	f.Add(b)
	f.Add(b[:len(b)-1])
	f.Add([]byte{0})
	f.Add([]byte{0x80, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, used := NewReader(bytes.NewReader(b), 1<<10), 0
		for {
			got, err := r.NextRaw()
			if err != nil {
				if err == io.EOF != (used == len(b)) {
					t.Errorf("%v after %d of %d bytes", err, used, len(b))
				}
				if err != io.EOF && err != io.ErrUnexpectedEOF && !errors.Is(err, ErrBadFrame) && !errors.Is(err, ErrFrameTooLarge) {
					t.Errorf("%v is not an error of the package", err)
				}
				break
			}
			if again := raw(got); !bytes.Equal(again, b[used:used+len(again)]) {
				t.Errorf("%x differs from the frame %x", b[used:], again)
			}
			used += len(raw(got))
		}
		drain(NewReader(bytes.NewReader(b), 1<<10))
	})
}

func FuzzHeader(f *testing.F) {
	h := goldenHeader()
	plain := Header{What: WhatResult}
	f.Add(h.Append(nil))
	f.Add(plain.Append(nil))
	f.Add([]byte{2, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHeader(b)
		switch {
		case err == nil, errors.Is(err, ErrCritical):
			if again := h.Append(nil); !bytes.Equal(again, b) {
				t.Errorf("%x encodes as %x", b, again)
			}
			h.Object()
		case !errors.Is(err, ErrBadHeader) && !errors.Is(err, ErrVersion):
			t.Errorf("%v is not an error of the package", err)
		}
	})
}

func FuzzStatement(f *testing.F) {
	s := goldenStatement()
	f.Add(s.Append(nil))
	f.Add(make([]byte, StatementSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseStatement(b)
		if err == nil && !bytes.Equal(s.Append(nil), b) {
			t.Errorf("%x encodes as %x", b, s.Append(nil))
		}
		if err != nil && !errors.Is(err, ErrBadStatement) {
			t.Errorf("%v is not an error of the package", err)
		}
	})
}

// badSeeds returns the small bad inputs.
var badSeeds = sync.OnceValue(func() (seeds [][]byte) {
	for _, c := range slices.Concat(unknownFields(), damaged(), wrongTypes(), duplicates(), bombs()) {
		if len(c.b) < 1<<10 {
			seeds = append(seeds, c.b)
		}
	}
	return seeds
})

// fuzzMessage seeds f with the golden messages of m's type and with bombs, and
// decodes into m.
func fuzzMessage(f *testing.F, m pb.Message) {
	for _, g := range goldenMessages() {
		if g.ProtoReflect().Descriptor() == m.ProtoReflect().Descriptor() {
			f.Add(marshal(f, g))
		}
	}
	for _, b := range badSeeds() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := Decode(b, m); err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrTooMany) && !errors.Is(err, ErrTooLong) {
				t.Errorf("%v is not an error of the package", err)
			}
			return
		}
		out, err := Encode(nil, m)
		if err != nil {
			t.Fatalf("decoded but not encoded: %v", err)
		}
		back := m.ProtoReflect().New().Interface()
		if err := Decode(out, back); err != nil || !pb.Equal(m, back) {
			t.Errorf("%v became %v: %v", m, back, err)
		}
	})
}

func FuzzMessage(f *testing.F)  { fuzzMessage(f, new(Message)) }
func FuzzEnvelope(f *testing.F) { fuzzMessage(f, new(Envelope)) }
func FuzzAck(f *testing.F)      { fuzzMessage(f, new(Ack)) }
func FuzzHello(f *testing.F)    { fuzzMessage(f, new(Hello)) }
func FuzzContent(f *testing.F)  { fuzzMessage(f, new(Content)) }
func FuzzOutcome(f *testing.F)  { fuzzMessage(f, new(Outcome)) }
func FuzzOffer(f *testing.F)    { fuzzMessage(f, new(Offer)) }
func FuzzChunk(f *testing.F)    { fuzzMessage(f, new(Chunk)) }
func FuzzJoin(f *testing.F)     { fuzzMessage(f, new(JoinReply)) }
func FuzzRumors(f *testing.F)   { fuzzMessage(f, new(Rumors)) }
func FuzzProbe(f *testing.F)    { fuzzMessage(f, new(Probe)) }
func FuzzProbed(f *testing.F)   { fuzzMessage(f, new(ProbeReply)) }
func FuzzSync(f *testing.F)     { fuzzMessage(f, new(SyncRequest)) }
func FuzzSynced(f *testing.F)   { fuzzMessage(f, new(SyncReply)) }
func FuzzNode(f *testing.F)     { fuzzMessage(f, new(NodeRecord)) }
func FuzzStored(f *testing.F)   { fuzzMessage(f, new(Stored)) }
func FuzzGrant(f *testing.F)    { fuzzMessage(f, new(Grant)) }
func FuzzGranted(f *testing.F)  { fuzzMessage(f, new(Granted)) }
func FuzzRenew(f *testing.F)    { fuzzMessage(f, new(Renew)) }
func FuzzRenewed(f *testing.F)  { fuzzMessage(f, new(Renewed)) }
func FuzzRelease(f *testing.F)  { fuzzMessage(f, new(Release)) }
func FuzzStatus(f *testing.F)   { fuzzMessage(f, new(StatusReply)) }
func FuzzHandoff(f *testing.F)  { fuzzMessage(f, new(Handoff)) }
func FuzzLease(f *testing.F)    { fuzzMessage(f, new(Lease)) }
func FuzzOwner(f *testing.F)    { fuzzMessage(f, new(OwnerLease)) }
func FuzzSchedule(f *testing.F) { fuzzMessage(f, new(Schedule)) }
func FuzzQueue(f *testing.F)    { fuzzMessage(f, new(QueueState)) }
func FuzzBundle(f *testing.F)   { fuzzMessage(f, new(Bundle)) }
func FuzzBundled(f *testing.F)  { fuzzMessage(f, new(Bundled)) }
func FuzzOpen(f *testing.F)     { fuzzMessage(f, new(Open)) }
func FuzzOpened(f *testing.F)   { fuzzMessage(f, new(Opened)) }
func FuzzDeliver(f *testing.F)  { fuzzMessage(f, new(Deliver)) }
func FuzzSettle(f *testing.F)   { fuzzMessage(f, new(Settle)) }
func FuzzSettled(f *testing.F)  { fuzzMessage(f, new(Settled)) }
func FuzzBoxPart(f *testing.F)  { fuzzMessage(f, new(BoxPart)) }
func FuzzBoxTaken(f *testing.F) { fuzzMessage(f, new(BoxTaken)) }

func FuzzDecompress(f *testing.F) {
	for _, c := range zipCases(f) {
		if len(c.b) < 1<<10 {
			f.Add(c.b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		const max = 64 << 10
		out, err := Decompress(b, max)
		if len(out) > max || err != nil && !errors.Is(err, ErrCompressed) && !errors.Is(err, ErrInflated) {
			t.Errorf("%d bytes, %v", len(out), err)
		}
		n, streamErr := inflate(bytes.NewReader(b), max)
		if n > max || streamErr != nil && !errors.Is(streamErr, ErrCompressed) && !errors.Is(streamErr, ErrInflated) {
			t.Errorf("stream: %d bytes, %v", n, streamErr)
		}
		if err == nil && (streamErr != nil || int(n) != len(out)) {
			t.Errorf("whole returns %d bytes, the stream %d and %v", len(out), n, streamErr)
		}
	})
}

func FuzzPeerID(f *testing.F) {
	f.Add(PeerID{1}.String())
	f.Add("12D3KooW")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParsePeerID(s)
		if err == nil && p.String() != s {
			t.Errorf("%q is formatted as %q", s, p)
		}
		if err != nil && !errors.Is(err, ErrBadPeerID) {
			t.Errorf("%v is not an error of the package", err)
		}
	})
}

func FuzzTaskID(f *testing.F) {
	f.Add(TaskID{1}.String())
	f.Add("018BCFE5-6800-7000-8000-000000000001")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseTaskID(s)
		if err == nil {
			if back, err := ParseTaskID(id.String()); err != nil || back != id {
				t.Errorf("%q is formatted as %q: %v", s, id, err)
			}
		} else if !errors.Is(err, ErrBadID) {
			t.Errorf("%v is not an error of the package", err)
		}
	})
}

// FuzzEveryMessage decodes arbitrary bytes from peers as each message of the package,
// including those without a fuzz target of their own.
func FuzzEveryMessage(f *testing.F) {
	all := descriptors()
	for i, d := range all {
		f.Add(uint16(i), []byte(nil))
		for _, m := range goldenMessages() {
			if m.ProtoReflect().Descriptor() == d {
				b, err := Encode(nil, m)
				if err != nil {
					f.Fatal(err)
				}
				f.Add(uint16(i), b)
			}
		}
	}
	f.Fuzz(func(t *testing.T, which uint16, b []byte) {
		typ, err := protoregistry.GlobalTypes.FindMessageByName(all[int(which)%len(all)].FullName())
		if err != nil {
			return // an entry of a map
		}
		m := typ.New().Interface()
		err = DecodeKnown(b, m)
		shared := typ.New().Interface()
		if serr := DecodeShared(b, shared); (serr == nil) != (err == nil) || err == nil && !pb.Equal(m, shared) {
			t.Errorf("shared: %v, %v; copied: %v, %v", shared, serr, m, err)
		}
		if err != nil {
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrTooMany) && !errors.Is(err, ErrTooLong) {
				t.Errorf("%v is not an error of the package", err)
			}
			return
		}
		if len(m.ProtoReflect().GetUnknown()) > 0 || Size(m) > 2*len(b)+64 {
			t.Errorf("%d bytes became %d, with unknown ones among them: %x", len(b), Size(m), m.ProtoReflect().GetUnknown())
		}
		if _, err := Encode(nil, m); err != nil {
			t.Errorf("decoded but not encoded: %v", err)
		}
	})
}
