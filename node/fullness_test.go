package node

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/event"
	"github.com/balefire/balefire/store"
)

// A store that refuses new work, and one that accepts it again, are one log line and
// one event each, with the cause (I13).
func TestFullStoreIsLoggedAndAnEvent(t *testing.T) {
	var log bytes.Buffer
	n := &Node{log: slog.New(slog.NewTextHandler(&log, nil)), Events: event.New(clock.NewManual(time.Unix(1e9, 0)).Clock())}
	for _, why := range []error{store.ErrNoDisk, nil, store.ErrNoMemory} {
		n.reportFull(why)
	}
	for _, want := range []string{"cause=disk", "level=INFO msg=\"new work is accepted again", "cause=memory"} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("the log has %q not exactly once:\n%s", want, log.String())
		}
	}
	p := n.Events.Read(t.Context(), 0, 10, 0)
	var got []string
	for _, e := range p.Items {
		got = append(got, e.Kind+" "+e.Fields["cause"])
	}
	if want := "store.full disk,store.recovered ,store.full memory"; strings.Join(got, ",") != want {
		t.Errorf("events %q, want %q", got, want)
	}
}
