package pairing

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/wire"
)

// A first member that was off until its certificate and the grace period were over
// renews itself with the root key before it opens, and again if the clock had been
// wrong; without that key it does not start.
func TestFounderStartsAfterTheGracePeriod(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	at := func(d time.Duration) clock.Clock { return clock.NewManual(now.Add(d)).Clock() }
	if _, err := Init(InitOptions{Dir: dir, Name: "a", NewMesh: true, Clock: at(0)}); err != nil {
		t.Fatal(err)
	}
	for _, d := range []time.Duration{800 * 24 * time.Hour, 20000 * 24 * time.Hour, 801 * 24 * time.Hour} {
		own, err := Load(dir, now.Add(d))
		if err != nil || own.Self.NotBefore.After(now.Add(d)) || own.Self.NotAfter.Before(now.Add(d+300*24*time.Hour)) {
			t.Fatalf("after %d days: the certificate is valid from %s to %s, %v", d/(24*time.Hour), own.Self.NotBefore, own.Self.NotAfter, err)
		}
		if !own.Self.HasRole(identity.RoleAdmin) || own.Self.Name != "a" {
			t.Errorf("it is for %q with roles %v", own.Self.Name, own.Self.Roles)
		}
	}
	if own, err := Load(dir, now.Add(801*24*time.Hour)); err != nil || own.Self.NotBefore.Before(now.Add(800*24*time.Hour)) {
		t.Errorf("from the file: valid from %s, %v", own.Self.NotBefore, err)
	}
	if err := os.Remove(filepath.Join(dir, datadir.Identity, "root.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, now.Add(1800*24*time.Hour)); !errors.Is(err, identity.ErrExpired) {
		t.Errorf("without the root key: %v", err)
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
