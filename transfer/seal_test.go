package transfer

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/inbox"
	"github.com/balefire/balefire/proto"
)

// I13: a run whose result finds no room fails after half a minute, not before; with room by
// then the result is kept, and a node that stops meanwhile spends no attempt. A result above the
// limit of one body takes the place of a full disk, and one that was cut that of new room.
func TestSealWaitsForRoom(t *testing.T) {
	const room = 100_000
	tests := []struct {
		name   string
		change func(file string, stop func()) error // after two seconds, before the third try
		after  time.Duration
		kept   bool
		cause  proto.ReleaseCause
	}{
		{"no room", func(string, func()) error { return nil }, 31 * time.Second, false, proto.CauseFailed},
		{"room for the third try", func(file string, _ func()) error { return os.Truncate(file, room/2) }, 3 * time.Second, true, 0},
		{"stop of the node", func(_ string, stop func()) error { stop(); return nil }, 2 * time.Second, false, proto.CauseStopped},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := bodies.Open(t.TempDir(), bodies.Config{MaxBody: room, Clock: clock.Runtime()})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				file, result := filepath.Join(t.TempDir(), "result"), make([]byte, 3*room)
				rand.Read(result) // zeros would be compressed
				if err := os.WriteFile(file, result, 0o600); err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				time.AfterFunc(2*time.Second, func() {
					if err := tt.change(file, stop); err != nil {
						t.Error(err)
					}
				})
				began := time.Now()
				o := &proto.Outcome{State: proto.Success, BodySize: 3 * room}
				e := New(Parts{Bodies: s, Suite: bodies.AES, Logger: slog.New(slog.DiscardHandler)}).Seal(ctx, proto.TaskID{1}, inbox.LeaseEnd{Outcome: o, File: file})
				if took := time.Since(began); took != tt.after { // virtual
					t.Errorf("it ended after %v, want %v", took, tt.after)
				}
				if e.Cause != tt.cause || (e.Reason == "") != tt.kept || (e.Outcome != nil) != tt.kept || e.File != "" {
					t.Errorf("it ended with %+v", e)
				}
				if tt.kept && (o.GetBodySize() != room/2 || !s.Has(o.GetObject().File())) {
					t.Errorf("the result of %d bytes is not kept", o.GetBodySize())
				}
			})
		})
	}
}
