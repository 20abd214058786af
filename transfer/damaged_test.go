package transfer

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
)

// A result that is damaged, on the disk of its owner or whenever it comes to its home, ends its
// task as a dead letter with that cause and without a result (I9, I11).
func TestDamagedResultsHaveACause(t *testing.T) {
	for where, lose := range map[string]func(tr *Transfers, o *proto.Outcome) *proto.Outcome{
		"at the owner": func(tr *Transfers, o *proto.Outcome) *proto.Outcome {
			tr.setDamaged(proto.TaskID{1})
			_, _, lost := tr.Object(proto.TaskID{1}, o)
			return lost
		},
		"gone at the owner": func(tr *Transfers, o *proto.Outcome) *proto.Outcome {
			_, _, lost := tr.Object(proto.TaskID{1}, &proto.Outcome{State: o.State, Object: &proto.BodyRef{Name: make([]byte, 32)}})
			return lost
		},
		"at the home": func(tr *Transfers, o *proto.Outcome) *proto.Outcome {
			tr.corrupt[o.GetObject().File()] = maxCorrupt
			if tr.Missing(proto.PeerID{2}, nil, proto.TaskID{1}, o) {
				t.Error("the home waits for the result")
			}
			return o
		},
	} {
		t.Run(where, func(t *testing.T) {
			s, err := bodies.Open(t.TempDir(), bodies.Config{Clock: clock.Runtime()})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			ref, _, err := s.Seal(t.Context(), bytes.NewReader([]byte("result")), bodies.SealOptions{Suite: bodies.AES})
			if err != nil {
				t.Fatal(err)
			}
			o := lose(New(Parts{Bodies: s, Logger: slog.New(slog.DiscardHandler)}), &proto.Outcome{
				State: proto.Success, Cause: proto.TaskOutputCut, Reason: "cut off after 6 bytes", BodySize: 6, Object: ref.Proto(),
			})
			if o.GetState() != proto.DeadLetter || o.GetCause() != proto.TaskResultDamaged || o.GetReason() != "" || o.GetBodySize() != 0 || o.GetObject() != nil {
				t.Errorf("the outcome is %v", o)
			}
		})
	}
}
