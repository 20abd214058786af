package transport

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	ma "github.com/multiformats/go-multiaddr"

	"github.com/balefire/balefire/proto"
)

// A stranger that connects again and again, each time with another key, is logged once an
// hour for each reason.
func TestRepeatedRefusalsAreLoggedOnce(t *testing.T) {
	g := newSlotCase(nil)
	var out bytes.Buffer
	g.greeter.log = slog.New(slog.NewTextHandler(&out, nil))
	refuse := func(from string, why error) {
		g.next++
		raw := &fakeConn{from: ma.StringCast(from)}
		g.greeter.logNoHello(newConn(raw, proto.PeerID{g.next}, g.cfg.Clock), why)
	}
	lines := func(when string, want int) {
		t.Helper()
		if got := strings.Count(out.String(), "no hello"); got != want {
			t.Errorf("%s: %d lines, want %d\n%s", when, got, want, &out)
		}
	}
	for i := range 50 {
		refuse(fmt.Sprintf("/ip4/192.0.2.1/tcp/%d", i+1), &RefusedError{proto.PeerID{byte(i)}, "it has no proof", false, 0})
	}
	lines("one address", 1)
	refuse("/ip4/192.0.2.2/tcp/1", &RefusedError{proto.PeerID{1}, "it has no proof", false, 0})
	lines("another address", 2)
	refuse("/ip4/192.0.2.1/tcp/1", errors.New("reset"))
	lines("another reason", 3)
	g.clk.Advance(time.Hour)
	refuse("/ip4/192.0.2.1/tcp/1", errors.New("reset"))
	lines("an hour later", 4)
}

// Lines of libp2p are logged one level lower, and that it cannot listen at debug: the
// caller reports that.
func TestLibp2pLinesAreLowered(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(lowerLevel{slog.NewTextHandler(&out, nil)})
	log.Info("not shown")
	log.Error("listening failed")
	log.Warn("a dial failed")
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=INFO msg="a dial failed"`) {
		t.Errorf("%s", got)
	}
}
