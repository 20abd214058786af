package schedule

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/wire"
)

// A lonelyNode is the home of every queue and takes tasks or not.
type lonelyNode struct {
	mu      sync.Mutex
	refuses error // what it says to a task; nil: it takes it
	tries   int
	due     []string // the times of the tasks that were created
}

func (*lonelyNode) HomeOf(string) (proto.PeerID, error) { return proto.PeerID{1}, nil }

func (*lonelyNode) WasHome(string, proto.PeerID) bool { return false }

func (*lonelyNode) CheckRequest(*wire.Request) error { return nil }

func (n *lonelyNode) SubmitFor(_ context.Context, r wire.Request, _ [][]byte) (wire.Submitted, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tries++; n.refuses != nil {
		return wire.Submitted{}, n.refuses
	}
	n.due = append(n.due, r.Key[strings.LastIndexByte(r.Key, '/')+1:])
	return wire.Submitted{ID: proto.NewTaskID(time.Now()).String()}, nil
}

// refuse sets what it says to tasks from now on.
func (n *lonelyNode) refuse(why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuses = why
}

// TestPauseEndsTheTriesOfADueTime pauses a schedule whose task cannot be created: it is not
// created hours later, neither during the pause nor when the schedule is resumed. Meanwhile the
// schedule has a problem, and another one when a task is refused for good.
func TestPauseEndsTheTriesOfADueTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, err := store.Open(mem.New(), store.Config{Clock: clock.Runtime(), SweepEvery: -1, CompactEvery: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		n := &lonelyNode{refuses: wire.ErrFull}
		s, err := Open(Parts{
			Store: st, Queues: n, Tasks: n, Audit: func(context.Context, string, string) error { return nil },
			Event: func(string, proto.PeerID, map[string]string) {}, Name: func(proto.PeerID) string { return "" },
		}, Config{Self: proto.PeerID{1}, Clock: clock.Runtime(), Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		defer func() { cancel(); <-done }()
		problem := func(want *wire.Note) {
			t.Helper()
			synctest.Wait()
			if all, err := s.List(t.Context()); err != nil || len(all) != 1 || !reflect.DeepEqual(all[0].Problem, want) {
				t.Errorf("%+v, %v, want the problem %+v", all, err, want)
			}
		}
		pause := func(on bool) wire.Schedule {
			t.Helper()
			v, err := s.Pause(t.Context(), "q", "often", on)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		spec := wire.ScheduleSpec{Queue: "q", Name: "often", Cron: "*/10 * * * *", ScheduledTask: wire.ScheduledTask{Kind: "build"}}
		if _, err := s.Add(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		time.Sleep(11 * time.Minute)
		synctest.Wait()
		if n.tries < 50 {
			t.Errorf("the task of 00:10 was tried %d times", n.tries)
		}
		problem(&wire.Note{Code: wire.ProblemScheduleRetried, NoteArgs: wire.NoteArgs{Detail: wire.ErrFull.Error()}})
		pause(true)
		n.refuse(nil)
		time.Sleep(25 * time.Minute)
		synctest.Wait()
		if v := pause(false); v.Skipped != 1 || v.Fired != 0 {
			t.Errorf("resumed as %+v", v)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if want := []string{"2000-01-01T00:40:00Z"}; !slices.Equal(n.due, want) {
			t.Errorf("tasks were created for %v, want %v", n.due, want)
		}
		problem(nil)
		n.refuse(wire.ErrDenied)
		time.Sleep(10 * time.Minute)
		problem(&wire.Note{Code: wire.ProblemTaskRefused, NoteArgs: wire.NoteArgs{Detail: wire.ErrDenied.Error()}})
	})
}
