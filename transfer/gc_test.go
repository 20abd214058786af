package transfer

import (
	"bytes"
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// noRecords refers to no body.
type noRecords struct{}

func (noRecords) Mark(func(string, proto.PeerID)) error { return nil }
func (noRecords) Awaits(proto.TaskID) bool              { return false }

// The body of a task that ended as intended is removed soon, also if the task was to move:
// only a cancelled one does.
func TestDropEnded(t *testing.T) {
	tests := []struct {
		name    string
		record  *proto.Record
		removed bool
	}{
		{"success", &proto.Record{State: proto.Success}, true},
		{"success before it could move", &proto.Record{State: proto.Success, MovesTo: "night"}, true},
		{"cancelled", &proto.Record{State: proto.Cancelled}, true},
		{"cancelled to move", &proto.Record{State: proto.Cancelled, MovesTo: "night"}, false},
		{"failure", &proto.Record{State: proto.Failed}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := bodies.Open(t.TempDir(), bodies.Config{Clock: clock.Runtime()})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				ref, _, err := s.Seal(t.Context(), bytes.NewReader([]byte("body")), bodies.SealOptions{Suite: bodies.AES})
				if err != nil {
					t.Fatal(err)
				}
				name := ref.Name.String()
				s.Release(name)
				ctx, cancel := context.WithCancel(t.Context())
				defer synctest.Wait()
				defer cancel()
				go s.Run(ctx, noRecords{}, func(_ int, err error) {
					if err != nil {
						t.Error(err)
					}
				})
				tt.record.BodyBlob = name
				New(Parts{Bodies: s}).DropEnded(tt.record)
				time.Sleep(10 * time.Second)
				if s.Has(name) == tt.removed {
					t.Errorf("removed: %v, want %v", !s.Has(name), tt.removed)
				}
			})
		})
	}
}
