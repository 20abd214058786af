package pairing

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// A member that was off until its certificate and the grace period were over starts, and so
// does one whose clock is far ahead: what its certificate says bounds its clock. A first
// member that then issued a certificate to itself replaces it if the clock had been wrong.
func TestStartAfterTheGracePeriod(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	at := func(d time.Duration) clock.Clock { return clock.NewManual(now.Add(d)).Clock() }
	if _, err := Init(InitOptions{Dir: dir, Name: "a", NewMesh: true, Clock: at(0)}); err != nil {
		t.Fatal(err)
	}
	own, err := Load(dir, now.Add(800*24*time.Hour))
	if err != nil || own.AfterGrace {
		t.Fatalf("after 800 days: %+v, %v", own, err)
	}
	if from, passed, until := own.Bounds(); !passed.Equal(own.Self.NotBefore) || from.Sub(own.Self.NotBefore) != -identity.EarlyGrace || until.Sub(own.Self.NotAfter) != identity.MemberGrace {
		t.Errorf("its clock is right between %v and %v", from, until)
	}
	m, err := readMembership(dir)
	if err != nil {
		t.Fatal(err)
	}
	root, err := identity.LoadRoot(filepath.Join(dir, datadir.Identity))
	if err != nil {
		t.Fatal(err)
	}
	cert, err := root.IssueMember(identity.Member{Peer: own.Self.Peer, Name: "a", Roles: own.Self.Roles}, now.AddDate(50, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if m.Certificate, err = proto.Encode(nil, cert); err != nil {
		t.Fatal(err)
	}
	m.AfterGrace = true
	if err := m.write(dir); err != nil {
		t.Fatal(err)
	}
	if own, err = Load(dir, now.AddDate(50, 0, 0)); err != nil || own.Self.NotBefore.Before(now.AddDate(49, 0, 0)) {
		t.Fatalf("from the file: %+v, %v", own, err)
	}
	if from, _, _ := own.Bounds(); !from.IsZero() {
		t.Error("a certificate of its own making bounds its clock")
	}
	m.Until = now.AddDate(1, 0, 0)
	if err := m.write(dir); err != nil {
		t.Fatal(err)
	}
	ends := func(at time.Time) time.Time {
		t.Helper()
		own, err := Load(dir, at)
		if err != nil || own.Self.Name != "a" || !own.Self.HasRole(identity.RoleAdmin) {
			t.Fatalf("%+v, %v", own, err)
		}
		return own.Self.NotAfter
	}
	renewAt := func(clk clock.Clock) {
		t.Helper()
		book, err := addressbook.Open(openStore(t), own.Mesh, own.Keys, own.Self.Cert, clk, transport.Multiaddrs{})
		if err != nil {
			t.Fatal(err)
		}
		p := &Pairing{Parts: Parts{Dir: dir, Keys: own.Keys, Mesh: own.Mesh, Book: book, Clock: clk, Logger: slog.New(slog.DiscardHandler)}, net: silentNet{}}
		if err := p.renewSelf(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	before := ends(now)
	doubted := clock.NewGuard(clock.NewManual(now).Clock())
	doubted.Hold(true)
	for name, clk := range map[string]clock.Clock{"20 years behind": at(-20 * 365 * 24 * time.Hour), "doubted": doubted.Clock()} {
		ends(clk.Now())
		renewAt(clk)
		if got := ends(now); !got.Equal(before) {
			t.Errorf("a clock that is %s made a certificate until %v", name, got)
		}
	}
	renewAt(at(0))
	if got := ends(now); !got.Before(now.AddDate(2, 0, 0)) || got.Before(m.Until) {
		t.Errorf("with the right clock: until %v", got)
	}
}

// A member whose key was lost is not taken for an empty folder: neither a start nor init
// suggests or makes a new key, which its certificate does not name.
func TestLostKeyIsReported(t *testing.T) {
	dir := t.TempDir()
	if _, err := Init(InitOptions{Dir: dir, Name: "a", NewMesh: true}); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(dir, datadir.Identity)
	if err := os.Remove(filepath.Join(at, "node.key")); err != nil {
		t.Fatal(err)
	}
	_, loadErr := Load(dir, time.Now())
	_, initErr := Init(InitOptions{Dir: dir, NewMesh: true})
	for _, err := range []error{loadErr, initErr} {
		if !errors.Is(err, wire.ErrRefused) || !strings.Contains(err.Error(), "from a backup") || !strings.Contains(err.Error(), "join again") {
			t.Errorf("with its membership: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(at, "node.key")); err == nil {
		t.Error("a new key was made")
	}
	if err := errors.Join(os.RemoveAll(at), os.Mkdir(filepath.Join(dir, datadir.Store), 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, time.Now()); !errors.Is(err, ErrNotInitialized) || !strings.Contains(err.Error(), "from a backup") {
		t.Errorf("with its store: %v", err)
	}
	if _, err := Load(t.TempDir(), time.Now()); !errors.Is(err, ErrNotInitialized) || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("an empty folder: %v", err)
	}
}

// A silentNet tells nobody of a new certificate.
type silentNet struct{ Network }

func (silentNet) BroadcastHello() {}

func openStore(t *testing.T) *store.Store {
	t.Helper()
	s, err := store.Open(mem.New(), store.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}
