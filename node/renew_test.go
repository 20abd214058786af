package node

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/pairing"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

const day = 24 * time.Hour

// A sleepClock lets all nodes of a simulated mesh sleep: weeks pass in a moment.
type sleepClock struct{ slept atomic.Int64 }

func (c *sleepClock) sleep(d time.Duration) { c.slept.Add(int64(d)) }

func (c *sleepClock) attach(s *simNode) {
	s.change = func(cfg *Config) {
		cfg.Clock = clock.WithSuspend(clock.Runtime(), func() time.Duration { return time.Duration(c.slept.Load()) })
	}
}

// newSleepingMesh starts a mesh of two nodes with a common clock.
func newSleepingMesh(t *testing.T) (*simMesh, *sleepClock) {
	w, c := newSimMeshWith(t, 2, 1, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50}, quietMesh), new(sleepClock)
	for _, s := range w.nodes {
		s.halt()
		c.attach(s)
		s.start()
		spec := allow("echo", wire.TypeEcho)
		spec.Allow = []string{"role:send"}
		if err := s.node.Handlers.Add(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Minute)
	return w, c
}

// keyFiles returns the files of the sealing keys of s.
func keyFiles(t *testing.T, s *simNode) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.dir, datadir.Identity, "kem", "*.key"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Sealing keys change every week while a node is up, and no task is lost: neither one
// that was sealed weeks ago nor one that is sealed to a removed key.
func TestSealingKeysRotateUnderTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, c := newSleepingMesh(t)
		defer w.close()
		a, b := w.nodes[0], w.nodes[1]
		ended := func(id, when string) {
			t.Helper()
			time.Sleep(5 * time.Minute)
			if task, err := a.node.Views.Task(t.Context(), id); err != nil || task.State != "SUCCESS" {
				why, _ := a.node.Explainer.Why(t.Context(), id)
				t.Errorf("%s: %s %s, %v, %+v", when, task.State, task.Reason, err, why)
			}
		}
		submit := func() string {
			s, err := a.node.Submit(t.Context(), wire.Request{Target: b.name, Kind: "echo", Body: []byte("x"), TTL: wire.Duration(29 * day)})
			if err != nil {
				t.Fatal(err)
			}
			return s.ID
		}
		weeks := func(n int) {
			for range n { // instead of waiting hours for the regular check
				c.sleep(7 * day)
				if err := b.node.Pairing.RotateKeys(); err != nil {
					t.Error(err)
				}
			}
		}

		w.Cut(0, 1)
		w.Cut(1, 0)
		old := submit()
		a.halt()
		weeks(3)
		if got := len(keyFiles(t, b)); got != 4 {
			t.Errorf("%d keys after three weeks, want 4", got)
		}
		newest := b.node.keys.SealingKey()
		w.Heal()
		a.start()
		ended(old, "sealed three weeks ago")
		if got, ok := a.node.book.KeyRecord(b.node.keys.Peer()); !ok || got.ID != newest.ID {
			t.Errorf("the peer knows key %d, want %d", got.Seq, newest.Seq)
		}
		ended(submit(), "sealed to the new key")

		c.sleep(7 * day) // while they are connected, by the regular check
		time.Sleep(pairing.CheckEvery + time.Minute)
		if got, _ := a.node.book.KeyRecord(b.node.keys.Peer()); got.Seq <= newest.Seq || got.ID != b.node.keys.SealingKey().ID {
			t.Errorf("a connected peer knows key %d, want a newer one than %d", got.Seq, newest.Seq)
		}

		a.halt()
		weeks(11)
		w.Cut(0, 1)
		w.Cut(1, 0)
		a.start()
		gone := submit()
		if got := len(keyFiles(t, b)); got > 10 {
			t.Errorf("%d keys are stored", got)
		}
		time.Sleep(time.Minute)
		w.Heal()
		ended(gone, "sealed to a removed key")
	})
}

// A node whose folder identity was restored from a copy that is weeks old makes a sealing key
// at its first check that its peers take for newer than the lost ones.
func TestSealingKeyAfterARestoreIsUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, c := newResultMesh(t)
		defer w.close()
		a, b := w.nodes[0], w.nodes[1]
		time.Sleep(2 * pairing.CheckFirst)
		copied := keyFiles(t, b)
		for range 5 {
			c.sleep(7 * day)
			if err := b.node.Pairing.RotateKeys(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute)
		a.waitState(a.mustSubmit(sleepTask(time.Second, b.name)), "SUCCESS", 10*time.Minute)
		b.halt()
		for _, f := range keyFiles(t, b) {
			if !slices.Contains(copied, f) {
				if err := os.Remove(f); err != nil {
					t.Fatal(err)
				}
			}
		}
		b.start()
		time.Sleep(pairing.CheckFirst + time.Minute)
		a.waitState(a.mustSubmit(sleepTask(time.Second, b.name)), "SUCCESS", 10*time.Minute)
	})
}

// shorten gives the stopped node a certificate of the root that expires after d.
func shorten(t *testing.T, root, s *simNode, now time.Time, d time.Duration) {
	t.Helper()
	r, err := identity.LoadRoot(filepath.Join(root.dir, datadir.Identity))
	if err != nil {
		t.Fatal(err)
	}
	end := now.Add(d)
	cert, err := r.IssueMember(identity.Member{
		Peer: mustKeys(t, s).Peer(), Name: s.name, Roles: []string{"send", "work"}, NotBefore: end.Add(-365 * day), NotAfter: end,
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	storeCertificate(t, s, cert)
}

// storeCertificate gives the stopped node a certificate.
func storeCertificate(t *testing.T, s *simNode, cert *proto.Signed) {
	t.Helper()
	file := filepath.Join(s.dir, datadir.Identity, "membership.json")
	var m struct {
		Name        string `json:"name"`
		Root        []byte `json:"root"`
		Certificate []byte `json:"certificate"`
	}
	b, err := os.ReadFile(file)
	if err = errors.Join(err, json.Unmarshal(b, &m)); err != nil {
		t.Fatal(err)
	}
	if m.Certificate, err = proto.Encode(nil, cert); err != nil {
		t.Fatal(err)
	}
	b, err = json.Marshal(m)
	if err = errors.Join(err, os.WriteFile(file, b, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// A member whose certificate expires within 30 days, or has expired within the last 90,
// gets it renewed by a connected admin without intervention and keeps working.
func TestCertificatesAreRenewed(t *testing.T) {
	for name, left := range map[string]time.Duration{"ten days before it expires": 10 * day, "ten days after it expired": -10 * day} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newSimMesh(t, 2, 1, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50})
				defer w.close()
				a, b := w.nodes[0], w.nodes[1]
				b.halt()
				if err := a.node.book.Forget(t.Context(), mustKeys(t, b).Peer()); err != nil { // and the newer certificate
					t.Fatal(err)
				}
				shorten(t, a, b, time.Now(), left)
				b.start()
				time.Sleep(pairing.CheckFirst + 2*time.Minute)
				until := time.Now().Add(300 * day)
				if got := b.node.book.Self().Member; got.NotAfter.Before(until) || strings.Join(got.Roles, " ") != "send work" {
					t.Errorf("the certificate expires %s with roles %v", got.NotAfter, got.Roles)
				}
				if got := gauge(t, b.node, "balefire_certificate_expiry_timestamp_seconds"); got < float64(until.Unix()) {
					t.Errorf("the metric says that it expires at %.0f, want at least %d", got, until.Unix())
				}
				if got, ok := a.node.book.Get(b.node.keys.Peer()); !ok || got.Member.NotAfter.Before(until) {
					t.Errorf("the admin knows one that expires %s", got.Member.NotAfter)
				}
				b.halt()
				b.start() // from its file
				if got := b.node.self; got.NotAfter.Before(until) {
					t.Errorf("after a restart it expires %s", got.NotAfter)
				}
				a.send(t, b, simKind)
			})
		})
	}
}

// A member that never got the answer to its renewal, because it crashed, its disk was full
// or the connection broke, gets its certificate with the next request: the admin knows a
// newer one, which the member does not have.
func TestALostRenewalIsAnsweredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimMesh(t, 2, 1, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50})
		defer w.close()
		a, b := w.nodes[0], w.nodes[1]
		b.halt()
		if err := a.node.book.Forget(t.Context(), mustKeys(t, b).Peer()); err != nil { // and the newer certificate
			t.Fatal(err)
		}
		shorten(t, a, b, time.Now(), 10*day)
		file := filepath.Join(b.dir, datadir.Identity, "membership.json")
		before, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b.start()
		until := time.Now().Add(300 * day)
		time.Sleep(pairing.CheckFirst + 2*time.Minute)
		if got, _ := a.node.book.Get(mustKeys(t, b).Peer()); got.Member.NotAfter.Before(until) {
			t.Fatalf("the admin knows one that expires %s", got.Member.NotAfter)
		}
		b.halt() // as after a crash before the new certificate was in the file
		if err := os.WriteFile(file, before, 0o600); err != nil {
			t.Fatal(err)
		}
		b.start()
		time.Sleep(3*pairing.CheckEvery + time.Minute)
		if got := b.node.book.Self().Member; got.NotAfter.Before(until) {
			t.Errorf("hours later the certificate of the member still expires %s", got.NotAfter)
		}
	})
}

// A certificate that expires soon is renewed when an admin connects, not only by the next
// regular check.
func TestCertificateIsRenewedWhenAnAdminConnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newSimMesh(t, 2, 1, transporttest.Link{Latency: 20 * time.Millisecond, Mbps: 50})
		defer w.close()
		a, b := w.nodes[0], w.nodes[1]
		b.halt()
		if err := a.node.book.Forget(t.Context(), mustKeys(t, b).Peer()); err != nil { // and the newer certificate
			t.Fatal(err)
		}
		a.halt()
		shorten(t, a, b, time.Now(), 10*day)
		b.start()
		time.Sleep(pairing.CheckFirst + 5*time.Minute)
		soon := time.Now().Add(30 * day)
		if got := b.node.book.Self().Member.NotAfter; got.After(soon) {
			t.Fatalf("it expires %s before an admin has connected", got)
		}
		a.start()
		time.Sleep(pairing.CheckEvery / 2)
		if got := b.node.book.Self().Member.NotAfter; !got.After(soon) {
			t.Errorf("it expires %s", got)
		}
	})
}

func mustKeys(t *testing.T, s *simNode) *identity.Keys {
	t.Helper()
	k, err := identity.LoadKeys(filepath.Join(s.dir, datadir.Identity))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// The node with the root key renews its own certificate, including the admin role.
func TestRootRenewsItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, c := newSleepingMesh(t)
		defer w.close()
		a, b := w.nodes[0], w.nodes[1]
		c.sleep(340 * day)
		time.Sleep(pairing.CheckEvery + 2*time.Minute)
		for _, s := range []*simNode{a, b} {
			if got := s.node.book.Self().Member; got.NotAfter.Sub(s.node.cfg.Clock.Now()) < 300*day {
				t.Errorf("the certificate of %s expires %s", s.name, got.NotAfter)
			}
		}
		if got := a.node.book.Self().Member; !got.HasRole(identity.RoleAdmin) {
			t.Errorf("roles %v", got.Roles)
		}
	})
}

// An invalid renewal is refused: with another node's certificate, with another name, too
// early, after the grace period, of a blocked node, with an old certificate, or by a
// node that is not an admin.
func TestRenewalIsRefused(t *testing.T) {
	a, b := pair(t, nil)
	eventually(t, func() bool { return a.net.Connected(b.keys.Peer()) && b.net.Connected(a.keys.Peer()) }, func() string { return "not connected" })
	root, err := identity.LoadRoot(filepath.Join(a.cfg.Dir, datadir.Identity))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	cert := func(peer proto.PeerID, end time.Duration) *proto.Signed {
		s, err := root.IssueMember(identity.Member{Peer: peer, Name: "b", Roles: []string{"send"}, NotBefore: now.Add(end - 365*day), NotAfter: now.Add(end)}, now)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	self, other := b.keys.Peer(), identity.NewKeys(nil, now).Peer()
	foreign := identity.NewRoot(nil)
	strange, err := foreign.IssueMember(identity.Member{Peer: self, Name: "b"}, now)
	if err != nil {
		t.Fatal(err)
	}
	third := identity.NewKeys(nil, now)
	short := cert(third.Peer(), 10*day)
	if err := b.book.Learn(t.Context(), &proto.KnownPeer{Certificate: short, KeyRecord: third.KeyRecord()}); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		at   *testNode
		from proto.PeerID
		r    *proto.JoinRequest
		text string
	}{
		{"too early", a, self, &proto.JoinRequest{Certificate: b.self.Cert}, "is valid until"},
		{"of another node", a, self, &proto.JoinRequest{Certificate: cert(other, 10*day)}, "belongs to another node"},
		{"of another mesh", a, self, &proto.JoinRequest{Certificate: strange}, "signature"},
		{"after the grace", a, self, &proto.JoinRequest{Certificate: cert(self, -91*day)}, "expired"},
		{"a newer one is known", a, self, &proto.JoinRequest{Certificate: cert(self, 10*day)}, "newer"},
		{"of an unknown node", a, other, &proto.JoinRequest{Certificate: cert(other, 10*day)}, "not known here"},
		{"not seen in a hello", b, third.Peer(), &proto.JoinRequest{Certificate: cert(third.Peer(), 11*day)}, "send a hello"},
		{"another name", b, third.Peer(), &proto.JoinRequest{Certificate: short, Name: "root"}, "cannot be changed"},
		{"not an admin", b, third.Peer(), &proto.JoinRequest{Certificate: short}, "may not admit others"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reply := tt.at.Pairing.Join(context.Background(), tt.from, tt.r)
			if reply.GetCertificate() != nil || !strings.Contains(reply.GetRefusal(), tt.text) {
				t.Errorf("refusal %q, want %q", reply.GetRefusal(), tt.text)
			}
		})
	}
	if err := a.Pairing.Block(t.Context(), "b"); err != nil {
		t.Fatal(err)
	}
	if reply := a.Pairing.Join(context.Background(), self, &proto.JoinRequest{Certificate: b.self.Cert}); !strings.Contains(reply.GetRefusal(), "blocked") {
		t.Errorf("a blocked node: %q", reply.GetRefusal())
	}
}
