package proto

import (
	"bytes"
	"encoding/hex"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "write testdata/*.golden: only before the first release")

// seq returns n bytes that count from first.
func seq(first byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = first + byte(i)
	}
	return b
}

// golden compares b with the hexadecimal bytes in testdata/name.golden and returns
// those of the file, which are the bytes that deployed nodes send.
func golden(t *testing.T, name string, b []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(wrap(hex.EncodeToString(b), 96)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := hex.DecodeString(strings.Join(strings.Fields(string(file)), ""))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, want) {
		t.Errorf("%s is now\n%x\nand was\n%x", name, b, want)
	}
	return want
}

// wrap breaks s into lines of n characters.
func wrap(s string, n int) string {
	var out strings.Builder
	for len(s) > n {
		out.WriteString(s[:n] + "\n")
		s = s[n:]
	}
	return out.String() + s + "\n"
}

func goldenHeader() Header {
	h := Header{
		What: WhatTask, Suite: 1, Seq: Seq{0x0102030405060708, 9},
		Created: 1_700_000_000_000, NotAfter: 1_700_604_800_000, SealedLen: 1040,
		TLVs: []TLV{{TagGeneration, seq(0, 8)}, {TagPathAllowed, []byte("any")}},
	}
	copy(h.Mesh[:], seq(0x10, 16))
	copy(h.ID[:], seq(0x20, 16))
	copy(h.Origin[:], seq(0x30, 32))
	copy(h.Target[:], seq(0x50, 32))
	copy(h.Commitment[:], seq(0x70, 32))
	h.SetObject([32]byte(seq(0x90, 32)), 5_000_000_000)
	return h
}

func goldenStatement() Statement {
	s := Statement{
		Fact: FactDone, State: Success, Algorithm: 1,
		Time: 1_700_000_001_234, Epoch: Seq{7, 8}, Attempt: 3,
	}
	copy(s.Mesh[:], seq(0x10, 16))
	copy(s.Task[:], seq(0x20, 16))
	copy(s.Node[:], seq(0x30, 32))
	copy(s.Digest[:], seq(0x70, 32))
	return s
}

// goldenMessages returns one message of each type. No map has more than one entry,
// because the order of entries is not fixed.
func goldenMessages() map[string]pb.Message {
	member := &Signed{Details: seq(0, 8), Signature: seq(1, 64), Signer: seq(2, 32), Issuer: &Signed{Details: seq(3, 4), Signature: seq(4, 64), Signer: seq(5, 32)}}
	keyRecord := &Signed{Details: seq(6, 8), Signature: seq(7, 64), Signer: seq(8, 32)}
	header, statement := goldenHeader(), goldenStatement()
	envelope := &Envelope{Header: header.Append(nil), Body: seq(9, 40), Slot: seq(10, 110), Path: seq(11, 96), Index: 5}
	receipt := &Receipt{Statement: statement.Append(nil), Path: seq(1, 64), Index: 2, Signature: seq(2, 64)}
	events := []*Event{{TimeMs: 1, Node: seq(1, 32), State: Running, Attempt: 1, Cause: TaskRefused, Folded: 2, Detail: "full", Code: CodeFull}}
	attempts := []*Attempt{{Number: 1, StartedMs: 2, FinishedMs: 3, ExitCode: 75, Error: "busy", Cause: TaskFailed}}
	all := goldenGossip(keyRecord, &KnownPeer{Certificate: member, KeyRecord: keyRecord, Addrs: []string{"/ip6/::1/tcp/7420"}})
	maps.Copy(all, goldenOwnership(envelope, &Stored{Envelope: envelope, Key: seq(7, 32), Record: goldenRecord(events, attempts, receipt)}, receipt))
	maps.Copy(all, goldenMail())
	maps.Copy(all, map[string]pb.Message{
		"message": &Message{
			Id: "018bcfe5-6800-7000-8000-000000000001", Type: TypeData, Payload: seq(1, 20),
			Timestamp: 1_700_000_000_000_000_000, Metadata: map[string]string{"traceparent": "00-01-02-01"}, Signature: seq(2, 64),
		},
		"envelope": envelope,
		"ack": &Ack{
			UpTo: 300, From: 290, Time: 1_700_000_000_000, Signature: seq(3, 64),
			Refusals: []*Refusal{{Number: 295, Code: CodeDuplicate, Detail: "known", State: Success}, {Number: 299, Code: CodeBusy, RetryAfterMs: 500, Home: seq(5, 32), Generation: 3}},
		},
		"mark":  &Mark{Boot: 1_700_000_000, Counter: 77},
		"ready": &Ready{Handlers: true, Room: true},

		"lookup":       &Lookup{Tasks: [][]byte{seq(0x20, 16), seq(0x21, 16)}},
		"lookup_reply": &LookupReply{Unknown: [][]byte{seq(0x21, 16)}},
		"hello": &Hello{
			ClockMs: 1_790_000_000_000, ClockDoubted: true,
			Version: 1, Certificate: member, KeyRecord: keyRecord, Addrs: []string{"/ip4/192.0.2.1/udp/7420/quic-v1", "/dns4/a.example/tcp/7420"},
			Boot: 1_700_000_000, BootId: seq(4, 16), Software: "balefire-node 1.0", Refusal: "twin", Features: []string{"fec"},
		},
		"hello_clock":     &Hello{Version: 1, Refusal: "the record is not valid yet", RefusalCode: CodeClock, ClockMs: 1_790_000_000_000},
		"hello_revoked":   &Hello{Version: 1, Refusal: "REVOKED", Revocation: member},
		"hello_challenge": &Hello{Version: 1, Challenge: seq(0x20, 32)},
		"hello_proof":     &Hello{Version: 1, Proof: seq(0x50, 32)},
		"member": &MemberDetails{
			Mesh: seq(0x10, 16), Peer: seq(0x30, 32), Name: "laptop", Roles: []string{"send", "work", "relay"},
			NotBeforeMs: 1_700_000_000_000, NotAfterMs: 1_731_536_000_000, Serial: seq(0x60, 16),
		},
		"key": &KeyDetails{
			Peer: seq(0x30, 32), Suite: 1, Public: seq(0x40, 32), KeyId: seq(0x60, 8), Seq: 4,
			NotBeforeMs: 1_700_000_000_000, NotAfterMs: 1_700_604_800_000,
		},
		"receipts":     &Receipts{Receipts: []*Receipt{receipt}},
		"cancel":       &Cancel{Task: seq(0x20, 16), Hard: true, Reason: "no longer needed"},
		"join_renewal": &JoinRequest{Name: "laptop", KeyRecord: keyRecord, Certificate: member},
		"join":         &JoinRequest{TicketId: seq(1, 8), Proof: seq(2, 32), Name: "laptop", KeyRecord: keyRecord, Addrs: []string{"/ip4/192.0.2.2/tcp/7420"}},
		"joined":       &JoinReply{Certificate: member, Peers: []*KnownPeer{{Certificate: member, KeyRecord: keyRecord, Addrs: []string{"/ip6/::1/tcp/7420"}}}, Root: seq(9, 32)},
		"join_refused": &JoinReply{Refusal: "the ticket has expired"},
		"join_pending": &JoinReply{Pending: true},
		"join_later":   &JoinReply{Refusal: "many ask", WaitMs: 2000},
		"offer":        &Offer{Envelope: envelope, Type: TypeResult, Manifest: seq(3, 45)},
		"offered":      &OfferReply{Code: CodeFull, Detail: "disk", Have: seq(1, 5), State: Success},
		"chunk":        &Chunk{Index: 1 << 20, Data: seq(1, 30), Path: seq(2, 64)},
		"chunked":      &ChunkReply{Durable: 1 << 19, Code: CodeTooLarge, Detail: "gone"},
		"content": &Content{Object: &BodyRef{Name: seq(8, 32), Key: seq(9, 32), Suite: 1, Packed: true},
			Kind: "shell", Class: High, Queue: "build", Agent: "codex", Namespace: "ci", Mode: AtMostOnce, ReplyTo: "laptop",
			IdempotencyKey: "once", OrderingKey: "repo", NotBeforeMs: 5, ContentType: "text/plain", SenderAgent: "a", ReceiverAgent: "b", MessageType: "note",
			Parent: seq(1, 16), Run: "run", Step: "step", RedriveOf: seq(2, 16), Traceparent: "00-01-02-01", Args: []string{"uname", "-a", ""},
			Body: []byte("body"), BodySize: 4, BodyDigest: seq(3, 32), Labels: map[string]string{"os": "linux"}, HomeGeneration: 2, Options: &TaskOptions{MaxAttempts: 5, MaxResult: 1 << 20}, OnDead: "block",
			Attachments: []*Attachment{{Name: "log", Size: 9, Digest: seq(4, 32), Class: Low, ContentType: "text/plain"}},
		},
		"outcome": &Outcome{
			State: Failed, BootId: seq(1, 16), EpochBoot: 2, EpochCounter: 3, ExitCode: -1, Reason: "killed", Stderr: "oh", Body: []byte("out"),
			BodySize: 3, BodyDigest: seq(2, 32), ContentType: "text/plain", Truncated: true, Attempts: attempts, Events: events, Receipts: []*Receipt{receipt},
			StartedMs: 10, FinishedMs: 20, LeaseToken: seq(6, 16), Cause: TaskRejected, MayHaveRun: true,
		},
		"outcome_denied": &Outcome{State: DeadLetter, Reason: "DENIED: not allowed", Code: CodeDenied},
		"stored":         &Stored{Envelope: envelope, Key: seq(7, 32), Record: goldenRecord(events, attempts, receipt)},
	})
	return all
}

// goldenGossip returns the messages of membership.
func goldenGossip(signed *Signed, known *KnownPeer) map[string]pb.Message {
	rumors := []*Rumor{{Record: signed, Introduction: known}, {Accusation: signed}, {Revocation: signed}}
	return map[string]pb.Message{
		"node": &NodeRecord{
			Mesh: seq(0x10, 16), Peer: seq(0x30, 32), Incarnation: 1_700_000_000<<20 + 3, Revision: 4, Boot: 1_700_000_000,
			State: NodeRunning, StartedMs: 1_700_000_000_000, Priority: 5, Labels: []string{"os=linux", "gpu"},
			Kinds: []string{"shell", "build"}, Relays: [][]byte{seq(0x40, 32)}, Addrs: []string{"/ip4/192.0.2.1/udp/7420/quic-v1"},
			Version: "1.0", TimeMs: 1_700_000_000_001, Open: true, Load: &Load{CpuPermille: 250, MemoryPermille: 500, Slots: 8, Busy: 3, Waiting: 2},
		},
		"hops": &NodeRecord{Peer: seq(0x30, 32), Hops: []*Hop{{Relay: seq(0x40, 32), RttMs: 20, LossPermille: 5, RateKibps: 1024}}},
		"accusation": &Accusation{
			Mesh: seq(0x10, 16), Peer: seq(0x30, 32), Accuser: seq(0x40, 32), Incarnation: 1_700_000_000 << 20,
			Liveness: Suspect, TimeMs: 1_700_000_000_002,
		},
		"revocation":      &Revocation{Mesh: seq(0x10, 16), Peer: seq(0x30, 32), Serial: seq(0x60, 16), TimeMs: 1_700_000_000_003},
		"rumors":          &Rumors{Rumors: rumors, Root: seq(1, 32)},
		"rumors_numbered": &Rumors{Root: seq(1, 32), Number: 7<<30 + 1},
		"probe":           &Probe{Number: 300, Target: seq(0x30, 32), Rumors: rumors[:1]},
		"probed":          &ProbeReply{Number: 300, Target: seq(0x30, 32), Missed: true, Rumors: rumors[1:2]},
		"sync": &SyncRequest{
			Digests: []*Digest{{Peer: seq(0x30, 32), Incarnation: 1_700_000_000 << 20, Revision: 4, Liveness: Dead}},
			After:   seq(0x20, 32), Until: seq(0x40, 32), Rumors: rumors, Revocations: [][]byte{seq(0x50, 32)},
		},
		"synced": &SyncReply{Rumors: rumors, Wanted: [][]byte{seq(0x30, 32)}, More: true, Root: seq(1, 32)},
	}
}

func goldenRecord(events []*Event, attempts []*Attempt, receipt *Receipt) *Record {
	return &Record{
		State: DeadLetter, Class: Low, Peer: seq(0x50, 32), Kind: "shell", SeqBoot: 1, SeqCounter: 2,
		CreatedMs: 3, NotAfterMs: 4, DueMs: 5, Attempts: 6, Abandons: 7, Events: events, Receipts: []*Receipt{receipt}, History: attempts,
		Reason: "attempts used up", Stderr: "oh", ExitCode: 75, ResultDigest: seq(1, 32), ResultSize: 3, Result: []byte("out"), ResultBlob: "ab/cd", ResultObject: &BodyRef{Name: seq(8, 32), Key: seq(9, 32), Suite: 2},
		ResultType: "text/plain", Truncated: true, IdempotencyKey: "once", OrderingKey: "repo", Cancel: true, CancelHard: true, RedriveOf: seq(2, 16),
		BodyBlob: "ef/01", BodySize: 8, EndedMs: 9, BootId: seq(3, 16), Traceparent: "00-01-02-01", RequestDigest: seq(4, 32),
		Labels: map[string]string{"os": "linux"}, Mode: AtLeastOnce, Target: "queue:build", Status: "seen", RedrivenAs: "018b",
		Orphans: []*Receipt{receipt}, OnDead: "skip", Options: &TaskOptions{MaxAttempts: 3}, Run: "run", Step: "step", Parent: seq(5, 16), Cause: TaskCrashedOften, MayHaveRun: true,
	}
}

// Every message keeps its encoding, and the golden bytes keep their meaning: nodes of
// different versions understand each other (S56).
func TestGoldenMessages(t *testing.T) {
	for name, m := range goldenMessages() {
		t.Run(name, func(t *testing.T) {
			b, err := Encode(nil, m)
			if err != nil {
				t.Fatal(err)
			}
			back := m.ProtoReflect().New().Interface()
			if err := Decode(golden(t, name, b), back); err != nil || !pb.Equal(back, m) {
				t.Errorf("read as %v: %v", back, err)
			}
		})
	}
}

// The golden messages use every field, so that no change goes unnoticed.
func TestGoldenMessagesAreComplete(t *testing.T) {
	used := make(map[string]bool)
	for _, m := range goldenMessages() {
		markUsed(used, m.ProtoReflect())
	}
	for _, d := range descriptors() {
		for i := range d.Fields().Len() {
			if fd := d.Fields().Get(i); !d.IsMapEntry() && !used[string(fd.FullName())] && fd.FullName() != "transport.v1.Envelope.signature" {
				t.Errorf("no golden message has %s", fd.FullName())
			}
		}
	}
}

func TestGoldenHeader(t *testing.T) {
	h := goldenHeader()
	back, err := ParseHeader(golden(t, "header", h.Append(nil)))
	if err != nil || !sameHeader(back, h) {
		t.Errorf("read as %+v: %v", back, err)
	}
}

func TestGoldenStatement(t *testing.T) {
	s := goldenStatement()
	if back, err := ParseStatement(golden(t, "statement", s.Append(nil))); err != nil || back != s {
		t.Errorf("read as %+v: %v", back, err)
	}
}

func TestGoldenFrame(t *testing.T) {
	m := goldenMessages()["message"].(*Message)
	b, err := AppendFrame(nil, m)
	if err != nil {
		t.Fatal(err)
	}
	var back Message
	if err := NewReader(bytes.NewReader(golden(t, "frame", b)), MaxFrame).Next(&back); err != nil || !pb.Equal(&back, m) {
		t.Errorf("read as %v: %v", &back, err)
	}
}

// The compressed bytes may change with the library; the golden bytes must remain
// readable.
func TestGoldenCompressed(t *testing.T) {
	file, err := os.ReadFile(filepath.Join("testdata", "compressed.golden"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(file)), ""))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := Decompress(b, 1<<10); err != nil || !bytes.Equal(out, text(1<<10)) {
		t.Errorf("%d bytes: %v", len(out), err)
	}
}
