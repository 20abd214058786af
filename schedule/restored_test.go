package schedule

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
)

// TestRestoredSchedulesMakeNoTaskAgain checks that a restored store makes up for no due time
// until the loss, and for those after it.
func TestRestoredSchedulesMakeNoTaskAgain(t *testing.T) {
	s, err := store.Open(mem.New(), store.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	night := at(t, "2026-01-02T02:00:00Z")
	lost := at(t, "2026-01-02T12:00:00Z")
	tests := []struct {
		name       string
		in         *proto.Schedule
		mark, fire int64
	}{
		{"missed in the copy", &proto.Schedule{MarkMs: at(t, "2026-01-01T02:00:00Z").UnixMilli()}, lost.UnixMilli(), 0},
		{"being created in the copy", &proto.Schedule{MarkMs: night.UnixMilli() - 1, FiringMs: night.UnixMilli()}, lost.UnixMilli(), 0},
		{"not begun", &proto.Schedule{}, 0, 0},
		{"a clock that was ahead", &proto.Schedule{MarkMs: lost.UnixMilli() + 1}, lost.UnixMilli() + 1, 0},
		{"deleted", &proto.Schedule{Gone: true, MarkMs: 1}, 1, 0},
	}
	var b store.Batch
	for _, tt := range tests {
		tt.in.Queue, tt.in.Name, tt.in.Cron = "q", tt.name, "0 2 * * *"
		val, err := proto.Encode(nil, tt.in)
		if err != nil {
			t.Fatal(err)
		}
		b.Put(store.Meta, scheduleID{"q", tt.name}.key(), val)
	}
	if err := s.Apply(context.Background(), &b); err != nil {
		t.Fatal(err)
	}
	var marked store.Batch
	if err := MarkRestored(s, &marked, lost); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(context.Background(), &marked); err != nil {
		t.Fatal(err)
	}
	sc, err := Open(Parts{Store: s}, Config{Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range tests {
		if m := sc.all[scheduleID{"q", tt.name}]; m.MarkMs != tt.mark || m.FiringMs != tt.fire {
			t.Errorf("%s: mark %d and due %d, want %d and %d", tt.name, m.MarkMs, m.FiringMs, tt.mark, tt.fire)
		}
	}
	plan, err := Parse("0 2 * * *", "UTC")
	if err != nil {
		t.Fatal(err)
	}
	if fire, _ := plan.Due(proto.Time(sc.all[scheduleID{"q", "missed in the copy"}].MarkMs), lost.AddDate(0, 0, 1), proto.MissedOnce, 1); len(fire) != 1 || !fire[0].Equal(night.AddDate(0, 0, 1)) {
		t.Errorf("due a day later: %v", fire)
	}
}
