package pairing

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/datadir"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/transport"
)

const day = 24 * time.Hour

// A sealing key that was made under a clock that was months ahead, and was believed, is replaced
// once the clock is right: peers refuse the hello of a node with such a key.
func TestSealingKeyFromTheFutureIsReplaced(t *testing.T) {
	now := time.Now()
	at := func(d time.Duration) clock.Clock { return clock.NewManual(now.Add(d)).Clock() }
	keys := identity.NewKeys(nil, now)
	rotate := func(clk clock.Clock) {
		t.Helper()
		p := &Pairing{Parts: Parts{Keys: keys, Clock: clk, Logger: slog.New(slog.DiscardHandler)}, net: silentNet{}}
		if err := p.RotateKeys(); err != nil {
			t.Fatal(err)
		}
	}
	rotate(at(200 * day))
	ahead := keys.SealingKey()
	rotate(at(0))
	if _, err := identity.VerifyKeyRecord(keys.KeyRecord(), keys.Peer(), now); err != nil || keys.SealingKey().Seq <= ahead.Seq {
		t.Errorf("with the right clock: key %d after %d, %v", keys.SealingKey().Seq, ahead.Seq, err)
	}
	again := keys.SealingKey()
	rotate(at(0))
	if got := keys.SealingKey(); got.Seq != again.Seq {
		t.Error("the next check replaces it again")
	}
}

// A node that made its keys under such a clock joins with a new sealing key.
func TestJoinReplacesASealingKeyFromTheFuture(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	if _, err := identity.CreateKeys(filepath.Join(dir, datadir.Identity), now.Add(200*day)); err != nil {
		t.Fatal(err)
	}
	x, err := Joiner{
		Storage: datadir.Config{Dir: dir},
		Net:     transport.Config{Clock: clock.NewManual(now).Clock()},
	}.begin("b")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := identity.VerifyKeyRecord(x.keys.KeyRecord(), x.keys.Peer(), now); err != nil {
		t.Error(err)
	}
}
