package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// randomBody returns a body that does not compress.
func randomBody(size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{byte(size)}).Read(b)
	return b
}

// sendLarge sends a mail with a body of any size, and returns its id.
func (s *simNode) sendLarge(m wire.Mail, body []byte) string {
	s.mesh.t.Helper()
	m.Stream = bytes.NewReader(body)
	sent, errs := s.node.Mail.Send(s.mesh.t.Context(), []wire.Mail{m})
	if errs[0] != nil {
		s.mesh.t.Fatal(errs[0])
	}
	return sent[0].ID
}

// readLarge leases a mail, reads its body and acknowledges it.
func (s *simNode) readLarge(box string, within time.Duration) []byte {
	s.mesh.t.Helper()
	ctx := s.mesh.t.Context()
	given, err := s.node.Mail.Lease(ctx, box, "", wire.LeaseMail{Max: 1, Wait: wire.Wait(within)})
	if err != nil || len(given) != 1 {
		s.mesh.t.Fatalf("%d mails for %s within %s: %v", len(given), box, within, err)
	}
	r, _, err := s.node.Mail.DeliveredBody(ctx, box, "", given[0].Lease)
	if err != nil {
		s.mesh.t.Fatal(err)
	}
	defer r.Close()
	body, err := io.ReadAll(r)
	if err != nil {
		s.mesh.t.Fatal(err)
	}
	if done, err := s.node.Mail.Settle(ctx, box, "", wire.SettleMail{Ack: []string{given[0].Lease}}); err != nil || done[0].Code != wire.SettledOK {
		s.mesh.t.Fatalf("%+v, %v", done, err)
	}
	return body
}

// stored waits until a node has so many bodies, whole and in part.
func (s *simNode) stored(blobs, parts int) {
	s.mesh.t.Helper()
	time.Sleep(20 * time.Second) // a sweep comes soon after an end
	if u := s.node.storage.Blobs.Usage(); u.Blobs != blobs || u.Parts != parts {
		s.mesh.t.Errorf("%s has %d bodies and %d parts, want %d and %d", s.name, u.Blobs, u.Parts, blobs, parts)
	}
}

// I21, I22: the body of a mail comes to the home of its box before the mail, over a slow path,
// through restarts of both nodes, and is there once.
func TestLargeBodyTravelsBeforeItsMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 50 * time.Millisecond, Mbps: 8, Seed: 1}, quietMesh)
		defer w.close()
		time.Sleep(10 * time.Second)
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.addMailbox("ceo", "peer:n0")
		body := randomBody(16 << 20) // 16 s
		id := alpha.sendLarge(wire.Mail{To: "agent:ceo@n1"}, body)
		alpha.sendMail(wire.Mail{To: "agent:ceo@n1", Body: []byte("behind it")}, wire.Mail{To: "agent:ceo@n1", Class: "high", Body: []byte("beside it")})
		time.Sleep(5 * time.Second)
		if got := beta.readMail("ceo", 1, time.Second); len(got) == 1 && string(got[0].Body) != "beside it" {
			t.Errorf("%q came first", got[0].Body)
		}
		why, _, err := alpha.node.Mail.WhyMail(t.Context(), id)
		if err != nil || why.State != "PENDING" || why.Cause.Refusal != "NEED_BODY" {
			t.Errorf("%+v, %v", why, err)
		}
		if m, err := alpha.node.Mail.Mail(t.Context(), id); err != nil || m.State != "PENDING" || m.Size != int64(len(body)) || m.Digest == "" {
			t.Errorf("%+v, %v", m, err)
		}
		alpha.halt()
		alpha.start()
		time.Sleep(4 * time.Second)
		beta.halt()
		beta.start()
		if got := beta.readLarge("ceo", 5*time.Minute); !bytes.Equal(got, body) {
			t.Errorf("%d bytes came", len(got))
		}
		beta.readMail("ceo", 1, time.Minute)
		alpha.stored(0, 0)
		beta.stored(0, 0)
	})
}

// The bodies of several mails wait in the spool of a node that is off, through a restart, and are
// kept there until the mails that name them have come.
func TestLargeBodyWaitsForANodeThatIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.addMailbox("ceo", "*")
		beta.addMailbox("desk", "*")
		beta.halt()
		for _, box := range []string{"ceo", "desk"} {
			for _, class := range []string{"high", "normal"} {
				alpha.sendLarge(wire.Mail{To: "agent:" + box + "@n1", Class: class}, randomBody(1<<20))
			}
		}
		alpha.halt()
		alpha.start()
		alpha.stored(4, 0)
		beta.start()
		for range 2 {
			for _, box := range []string{"ceo", "desk"} {
				if got := beta.readLarge(box, time.Minute); !bytes.Equal(got, randomBody(1<<20)) {
					t.Errorf("%d bytes for %s", len(got), box)
				}
			}
		}
		alpha.stored(0, 0)
		beta.stored(0, 0)
	})
}

// One body in mails for several boxes of a node is sent there once: what the node has already, for
// another mail, is not sent again.
func TestOneBodyOfManyMailsIsSentOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		if _, err := alpha.node.Mail.SetTopic(t.Context(), "orders", wire.BoxSettings{}); err != nil {
			t.Fatal(err)
		}
		boxes := []string{"ceo", "desk", "audit"}
		for _, box := range boxes {
			beta.addMailbox(box, "*")
			if _, err := alpha.node.Mail.SetSubscription(t.Context(), "orders", box, wire.SubscriptionSettings{To: new("agent:" + box + "@n1")}); err != nil {
				t.Fatal(err)
			}
		}
		const out, in = "balefire_body_bytes_total{out}", "balefire_body_bytes_total{in}"
		body := randomBody(3 << 20)
		for round := 1; round <= 2; round++ { // two publications are two objects
			alpha.sendLarge(wire.Mail{To: "topic:orders", Subject: "eu.created"}, body)
			for _, box := range boxes {
				if got := beta.readLarge(box, time.Minute); !bytes.Equal(got, body) {
					t.Errorf("%d bytes for %s", len(got), box)
				}
			}
			sent, received := int(alpha.metrics()[out]), int(beta.metrics()[in])
			if want := round * len(body); sent != received || sent < want || sent > want+want/100 {
				t.Errorf("%d publications: %d bytes of bodies were sent and %d received, want little more than %d", round, sent, received, want)
			}
		}
		beta.stored(0, 0)
	})
}

// What the home refuses for good, for its size or because the box is closed, comes back to its
// sender before a byte of the body is sent.
func TestRefusedLargeBodyComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.halt()
		beta.change = func(cfg *Config) { cfg.Store.MaxBlob = 2 << 20 }
		beta.start()
		beta.addMailbox("ceo", "*")
		beta.addMailbox("closed")
		alpha.addMailbox("me")
		for to, why := range map[string]string{"agent:ceo@n1": "this node takes at most 2097152", "agent:closed@n1": "DENIED"} {
			alpha.sendLarge(wire.Mail{To: to, Sender: "me"}, randomBody(3<<20))
			if got := alpha.readMail("me", 1, time.Minute); len(got) == 1 && !strings.Contains(string(got[0].Body), why) {
				t.Errorf("%s: %s", to, got[0].Body)
			}
		}
		alpha.stored(0, 0)
		beta.stored(0, 0)
	})
}

// A home without space for a body says so, and takes it when there is some.
func TestLargeBodyWaitsForSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.halt()
		beta.change = func(cfg *Config) { cfg.Store.MaxBlobs = 5 << 20 }
		beta.start()
		beta.addMailbox("ceo", "*")
		beta.addMailbox("desk")
		beta.sendLarge(wire.Mail{To: "agent:desk"}, randomBody(3<<20))
		alpha.sendLarge(wire.Mail{To: "agent:ceo@n1"}, randomBody(4<<20))
		time.Sleep(time.Minute)
		spools, err := alpha.node.Mail.Outgoing(t.Context())
		if err != nil || len(spools) != 1 || len(spools[0].Stops) != 1 || spools[0].Stops[0].Code != "FULL" {
			t.Errorf("%+v, %v", spools, err)
		}
		beta.readLarge("desk", time.Second)
		if got := beta.readLarge("ceo", 10*time.Minute); !bytes.Equal(got, randomBody(4<<20)) {
			t.Errorf("%d bytes", len(got))
		}
	})
}

// I21: a body that the disk of its sender lost ends its mail, and the sender is told.
func TestDamagedLargeBodyComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.addMailbox("ceo", "*")
		alpha.addMailbox("me")
		beta.halt()
		alpha.sendLarge(wire.Mail{To: "agent:ceo@n1", Sender: "me"}, randomBody(1<<20))
		alpha.sendMail(wire.Mail{To: "agent:ceo@n1", Body: []byte("behind it")})
		files, err := filepath.Glob(filepath.Join(alpha.dir, "blob", "o-*"))
		if err != nil || len(files) != 1 {
			t.Fatalf("%q, %v", files, err)
		}
		b, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(files[0], b, 0o600); err != nil {
			t.Fatal(err)
		}
		beta.start()
		if got := alpha.readMail("me", 1, time.Minute); len(got) == 1 && !strings.Contains(string(got[0].Body), "the body is lost") {
			t.Errorf("%s", got[0].Body)
		}
		if got := beta.readMail("ceo", 1, time.Minute); len(got) == 1 && string(got[0].Body) != "behind it" {
			t.Errorf("%q", got[0].Body)
		}
		alpha.stored(0, 0)
	})
}

// A peer that offers bodies for which no mail came leaves nothing.
func TestOfferedBodyWithoutItsMailIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newMailMesh(t, 2)
		defer w.close()
		alpha, beta := w.nodes[0], w.nodes[1]
		beta.addMailbox("ceo", "*")
		beta.addMailbox("closed")
		ref, _, err := alpha.node.storage.Blobs.Seal(t.Context(), bytes.NewReader(randomBody(1<<20)), bodies.SealOptions{Suite: bodies.AES})
		if err != nil {
			t.Fatal(err)
		}
		offer := func(box string) error {
			now := time.Now()
			letter, err := proto.AppendLetter(nil, &proto.Letter{
				Class: proto.Normal, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(),
				Object: proto.LetterObject{Name: ref.Name, Size: uint64(ref.Size), SHA256: ref.Digest, Key: ref.Key, Suite: ref.Suite},
			})
			if err != nil {
				t.Fatal(err)
			}
			o, err := proto.OfferedMail{Box: fmt.Sprintf("agent:%s@%s", box, beta.node.keys.Peer()), Letter: letter}.Offer()
			if err != nil {
				t.Fatal(err)
			}
			return alpha.node.transfers.Send(context.WithoutCancel(t.Context()), beta.node.keys.Peer(), o, ref.Name.String())
		}
		for box, want := range map[string]string{"closed": "DENIED", "none": "NO_HANDLER"} {
			if err := offer(box); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", box, err)
			}
		}
		if err := offer("ceo"); err != nil {
			t.Fatal(err)
		}
		beta.stored(1, 0)
		alpha.halt() // two hours are cheap alone
		time.Sleep(2 * time.Hour)
		beta.stored(0, 0)
	})
}

// A program reads a large body on another node: it comes while the lease is extended, over a path
// that takes longer than the lease, and leaves that node an hour later.
func TestLargeBodyIsReadOnAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 50 * time.Millisecond, Mbps: 8, Seed: 1}, quietMesh)
		defer w.close()
		time.Sleep(10 * time.Second)
		alpha, beta := w.nodes[0], w.nodes[1]
		readers, lease := []string{"peer:n0"}, wire.Duration(5*time.Second)
		if _, err := beta.node.Mail.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{BoxSettings: wire.BoxSettings{AllowRead: &readers}, SubscriptionSettings: wire.SubscriptionSettings{Lease: &lease}}); err != nil {
			t.Fatal(err)
		}
		body := randomBody(16 << 20) // 16 s
		beta.sendLarge(wire.Mail{To: "agent:ceo"}, body)
		if got := alpha.readLarge("ceo@n1", time.Minute); !bytes.Equal(got, body) {
			t.Errorf("%d bytes came", len(got))
		}
		beta.stored(0, 0)
		alpha.stored(1, 0)
		beta.halt() // two hours are cheap alone
		time.Sleep(2 * time.Hour)
		alpha.stored(0, 0)
		beta.start()
		time.Sleep(10 * time.Second)
		beta.sendLarge(wire.Mail{To: "agent:ceo"}, body)
		given, err := alpha.node.Mail.Lease(t.Context(), "ceo@n1", "", wire.LeaseMail{Wait: wire.Wait(time.Minute)})
		if err != nil || len(given) != 1 {
			t.Fatalf("%+v, %v", given, err)
		}
		time.Sleep(time.Minute) // it lapses, and is leased to another
		if again, err := beta.node.Mail.Lease(t.Context(), "ceo", "", wire.LeaseMail{Wait: wire.Wait(time.Minute)}); err != nil || len(again) != 1 {
			t.Fatalf("%+v, %v", again, err)
		}
		if _, _, err := alpha.node.Mail.DeliveredBody(t.Context(), "ceo@n1", "", given[0].Lease); err == nil || !strings.Contains(err.Error(), "STALE") {
			t.Errorf("a lease that has ended: %v", err)
		}
	})
}

// The body of a small mail of another node came with its delivery: a program that asks for it is
// told so at once.
func TestSmallBodyIsNotReadOnAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 50 * time.Millisecond, Mbps: 8, Seed: 1}, quietMesh)
		defer w.close()
		time.Sleep(10 * time.Second)
		alpha, beta := w.nodes[0], w.nodes[1]
		readers := []string{"peer:n0"}
		if _, err := beta.node.Mail.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{BoxSettings: wire.BoxSettings{AllowRead: &readers}}); err != nil {
			t.Fatal(err)
		}
		beta.sendLarge(wire.Mail{To: "agent:ceo"}, []byte("small"))
		given, err := alpha.node.Mail.Lease(t.Context(), "ceo@n1", "", wire.LeaseMail{Wait: wire.Wait(time.Minute)})
		if err != nil || len(given) != 1 || string(given[0].Mail.Body) != "small" {
			t.Fatalf("%+v, %v", given, err)
		}
		began := time.Now()
		_, _, err = alpha.node.Mail.DeliveredBody(t.Context(), "ceo@n1", "", given[0].Lease)
		if took := time.Since(began); !errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), "its body came with the delivery") || took > time.Second {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
