//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/nuts"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// An attacker has the keys of a member: it speaks the protocol over a real socket and sends
// arbitrary messages.
type attacker struct {
	t      *testing.T
	keys   *identity.Keys
	mesh   identity.Mesh
	book   *addressbook.Book
	victim addressbook.Peer
	seq    proto.Seq
	links  chan *transport.Link
}

// newAttacker copies the keys of a stopped machine.
func newAttacker(t *testing.T, m *machine, victim string) *attacker {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(m.dir, "identity")
	keys, err := identity.LoadKeys(dir)
	must(err)
	raw, err := os.ReadFile(filepath.Join(dir, "membership.json"))
	must(err)
	var member struct{ Root, Certificate []byte }
	must(json.Unmarshal(raw, &member))
	mesh, err := identity.NewMesh(member.Root)
	must(err)
	cert := new(proto.Signed)
	must(proto.Decode(member.Certificate, cert))
	engine, err := nuts.Open(filepath.Join(m.dir, "store", "nutsdb"), nuts.Config{})
	must(err)
	s, err := store.Open(engine, store.Config{})
	must(err)
	t.Cleanup(func() { s.Close() })
	book, err := addressbook.Open(s, mesh, keys, cert, clock.System(), transport.Multiaddrs{})
	must(err)
	boot := uint64(time.Now().Unix()) + 1
	var id proto.BootID
	rand.Read(id[:])
	book.SetBoot(boot, id)
	v := &attacker{t: t, keys: keys, mesh: mesh, book: book, seq: proto.Seq{Boot: boot}, links: make(chan *transport.Link)}
	v.victim, err = book.Find(victim)
	must(err)
	return v
}

// run keeps a transport open until the returned function is called.
func (v *attacker) run(gate transport.Gate, keys transport.Keys) (tr *transport.Transport, stop func()) {
	v.t.Helper()
	tr, err := transport.New(keys, gate, v, transport.Config{Listen: []string{}, Directory: v.book})
	if err != nil {
		v.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { tr.Run(ctx) })
	tr.Want(v.victim.Peer)
	return tr, func() { cancel(); running.Wait() }
}

// Linked passes the link to the next send.
func (v *attacker) Linked(ctx context.Context, l *transport.Link) error {
	for {
		select {
		case v.links <- l:
		case <-l.Done():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Receive accepts every message.
func (v *attacker) Receive(context.Context, proto.PeerID, []*proto.Message) (transport.Answer, error) {
	return transport.Answer{Time: time.Now().UnixMilli()}, nil
}

// Started ignores the message.
func (v *attacker) Started(proto.PeerID, *proto.Receipts) {}

// message creates a task for the victim. change edits its header and content before it is
// sealed and signed.
func (v *attacker) message(change func(*proto.Header, *proto.Content)) *proto.Message {
	v.t.Helper()
	now := time.Now()
	v.seq.Counter++
	h := proto.Header{
		What: proto.WhatTask, Mesh: v.mesh.ID, ID: proto.NewTaskID(now), Origin: v.keys.Peer(), Target: v.victim.Peer,
		Seq: v.seq, Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(),
	}
	body := []byte("work")
	sum := sha256.Sum256(body)
	c := &proto.Content{Kind: "mark", Class: proto.Normal, Body: body, BodySize: uint64(len(body)), BodyDigest: sum[:]}
	if change != nil {
		change(&h, c)
	}
	plain, err := proto.Encode(nil, c)
	if err != nil {
		v.t.Fatal(err)
	}
	to := v.victim.KeyRecord
	if h.Target == v.keys.Peer() {
		to = v.keys.SealingKey()
	}
	env, _, err := identity.NewSealer(clock.System()).Seal(&h, to, plain)
	if err != nil {
		v.t.Fatal(err)
	}
	return v.sign(env)
}

func (v *attacker) sign(env *proto.Envelope) *proto.Message {
	sig, proofs := v.keys.SignGroup([][32]byte{identity.EnvelopeLeaf(env.Header, env.Body, proto.WhatTask)})
	env.Path, env.Index = proofs[0].Path, proofs[0].Index
	payload, err := proto.Encode(nil, env)
	if err != nil {
		v.t.Fatal(err)
	}
	return &proto.Message{Id: "x", Type: proto.TypeData, Payload: payload, Signature: sig}
}

// send sends one message and returns the code of the answer: 0 if it was accepted, an error
// if the victim closed the link.
func (v *attacker) send(m *proto.Message) (proto.Code, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	select {
	case l := <-v.links:
		if err := l.Send(ctx, []*proto.Message{m}); err != nil {
			return 0, err
		}
		ack, err := l.Answers(ctx)
		if err != nil || len(ack.Refusals) == 0 {
			return 0, err
		}
		return ack.Refusals[0].Code, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// flipByte returns m with one byte of its payload changed, at a distance from its end.
func flipByte(m *proto.Message, back int) *proto.Message {
	p := bytes.Clone(m.Payload)
	p[len(p)-back] ^= 1
	return &proto.Message{Id: m.Id, Type: m.Type, Payload: p, Signature: m.Signature}
}

// TestBadFramesOverARealSocket checks I2, I12 and S54: an invalid message from a member,
// whether replayed, re-signed, corrupted, expired or misaddressed, is refused
// and never run; a node that is not a member gets no link; and the node continues.
func TestBadFramesOverARealSocket(t *testing.T) {
	a, b := pair(t, config{engine: "nutsdb"})
	a.stop()
	v := newAttacker(t, a, "b")
	_, stop := v.run(v.book, v.keys)
	good := v.message(nil)
	if code, err := v.send(good); code != 0 || err != nil {
		t.Fatalf("a good task: %s, %v", code, err)
	}
	b.until("it runs", func() bool { return len(b.readMarks()) == 2 })
	taken := map[proto.Code]bool{0: true, proto.CodeDuplicate: true}
	for range 100 {
		if code, err := v.send(good); !taken[code] || err != nil {
			t.Fatalf("a replay: %s, %v", code, err)
		}
	}
	foreign := v.message(nil)
	foreign.Signature = good.Signature
	bad := []struct {
		name string
		m    *proto.Message
		want proto.Code // 0: any refusal
	}{
		{"the signature of another", foreign, proto.CodeBadSignature},
		{"a bent payload", flipByte(v.message(nil), 10), 0},
		{"no payload", &proto.Message{Id: "x", Type: proto.TypeData}, 0},
		{"random bytes", &proto.Message{Id: "x", Type: proto.TypeData, Payload: []byte(rand.Text()), Signature: good.Signature}, 0},
		{"an unknown type", &proto.Message{Id: "x", Type: 99, Payload: good.Payload}, proto.CodeUnknownVersion},
		{"an unknown kind", v.message(func(_ *proto.Header, c *proto.Content) { c.Kind = "nobody-does-this" }), proto.CodeNoHandler},
		{"too late", v.message(func(h *proto.Header, _ *proto.Content) {
			h.Created, h.NotAfter = h.Created-7_200_000, h.Created-3_600_000
		}), proto.CodeExpired},
		{"in the name of another", v.message(func(h *proto.Header, _ *proto.Content) { h.Origin = v.victim.Peer }), 0},
		{"for another", v.message(func(h *proto.Header, _ *proto.Content) { h.Target = v.keys.Peer() }), 0},
		{"of another mesh", v.message(func(h *proto.Header, _ *proto.Content) { h.Mesh[0] ^= 1 }), 0},
		{"a body that is not the one of its digest", v.message(func(_ *proto.Header, c *proto.Content) { c.Body = []byte("evil") }), proto.CodeBadForm},
		{"a kind that is a path", v.message(func(_ *proto.Header, c *proto.Content) { c.Kind = "../../bin/sh" }), 0},
	}
	for _, tt := range bad {
		code, err := v.send(tt.m)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			t.Errorf("%s: no answer", tt.name)
		case err == nil && code == 0:
			t.Errorf("%s was accepted", tt.name)
		case err == nil && tt.want != 0 && code != tt.want:
			t.Errorf("%s: %s, want %s", tt.name, code, tt.want)
		}
	}
	stop()
	v.connectStrangers(b)
	if left := len(b.readMarks()); left != 2 || !b.alive() {
		t.Errorf("I2: %d marks at the end, want the 2 of the good task; alive %v", left, b.alive())
	}
}

// A stranger has keys and no certificate.
type stranger struct{ keys *identity.Keys }

func (n stranger) Hello() *proto.Hello {
	return &proto.Hello{KeyRecord: n.keys.KeyRecord(), Boot: 1, BootId: make([]byte, 16)}
}
func (stranger) Admit(*proto.Hello, proto.PeerID) error { return nil }
func (stranger) Blocked(proto.PeerID) bool              { return false }

// connectStrangers lets strangers connect to b: none gets a link.
func (v *attacker) connectStrangers(b *machine) {
	for range 5 {
		keys := identity.NewKeys(rand.Reader, time.Now())
		tr, stop := v.run(stranger{keys}, keys)
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		err := tr.Dial(ctx, v.victim.Peer, v.victim.Addrs)
		cancel()
		if _, ok := errors.AsType[*transport.RefusedError](err); !ok {
			v.t.Errorf("a stranger that connects gets %v", err)
		}
		select {
		case <-v.links:
			v.t.Error("a stranger got a link")
		case <-time.After(100 * time.Millisecond):
		}
		stop()
	}
	peers, err := b.Peers(context.Background())
	if err != nil || len(peers) != 1 || strings.ToLower(peers[0].Name) != "a" {
		v.t.Errorf("the address book after strangers connected: %+v, %v", peers, err)
	}
	if _, err := b.Submit(context.Background(), wire.Request{Target: "b", Kind: "sum"}); err != nil {
		v.t.Errorf("the node does not continue: %v", err)
	}
}
