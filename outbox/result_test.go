package outbox

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/backlog"
	"github.com/balefire/balefire/wire"
)

// A recorder records the calls of a callback.
type recorder[T any] struct {
	mu  sync.Mutex
	all []T
}

func (r *recorder[T]) add(call T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, call)
}

func (r *recorder[T]) list() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// A lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// I11: a result that its home refuses is never dropped silently. It is offered until
// the home accepts it, or becomes a dead letter if no retry can change the answer;
// both are reported.
func TestRefusedResultIsKept(t *testing.T) {
	type refused struct {
		code string
		over bool
	}
	tests := []struct {
		name string
		code proto.Code
		dead bool // it becomes a dead letter
		told bool // on the first refusal
	}{
		{"EXPIRED", proto.CodeExpired, false, true},
		{"DENIED", proto.CodeDenied, false, true},
		{"BUSY", proto.CodeBusy, false, false},
		{"BAD_SIGNATURE", proto.CodeBadSignature, true, true},
		{"TOO_LARGE", proto.CodeTooLarge, true, true},
		{"STALE for a task that is not known", proto.CodeStale, true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var calls recorder[refused]
			var log lockedBuffer
			cfg := Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Event: func(kind string, _ proto.PeerID, f map[string]string) {
				calls.add(refused{f["code"], kind == wire.EventResultDead})
			}}
			inBubble(t, cfg, func(t *testing.T, h *home) {
				g := newTarget(t)
				say := true
				g.respond = func(*proto.Message) *proto.Refusal {
					if !say {
						return nil
					}
					return &proto.Refusal{Code: tt.code, Detail: "because"}
				}
				d := h.resultDraft(g.peer(), "")
				if err := h.PutResult(t.Context(), d, nil); err != nil {
					t.Fatal(err)
				}
				defer h.connect(g)()
				time.Sleep(3 * time.Second)
				told := calls.list()
				if (len(told) > 0) != tt.told || len(told) > 1 || tt.told && told[0] != (refused{tt.code.Name(), tt.dead}) {
					t.Fatalf("told %v", told)
				}
				if n := strings.Count(log.String(), "refuses its result"); n != len(told) || strings.Count(log.String(), "home="+g.peer().String()) != n {
					t.Errorf("%d lines of the log:\n%s", n, &log)
				}
				if w, err := h.WhyResult(d.Header.ID); err != nil || tt.dead != w.State.Terminal() || w.Code != tt.code || tt.dead && (w.Cause != proto.TaskRefused || w.Reason != "because") {
					t.Errorf("why = %+v, %v", w, err)
				}
				list, _, err := h.DeadLetters(Query{}, backlog.Span{}, 10)
				if err != nil || (len(list) == 1) != tt.dead || tt.dead && !list[0].Result {
					t.Fatalf("dead letters %+v, %v", list, err)
				}
				if tt.dead {
					if n, err := h.PurgeDead(t.Context(), Query{}, false); n != 1 || err != nil {
						t.Errorf("%d purged, %v", n, err)
					}
					return
				}
				time.Sleep(3 * time.Hour)
				if _, n := h.RefusedResults(1); n != 1 || len(calls.list()) == 0 {
					t.Errorf("%d results are refused, told %v", n, calls.list())
				}
				g.mu.Lock()
				say = false
				g.mu.Unlock()
				time.Sleep(10 * time.Minute)
				if h.HasPendingResult(d.Header.ID) || len(g.received()) != 1 {
					t.Error("it did not reach its home")
				}
				if _, n := h.RefusedResults(1); n != 0 {
					t.Errorf("%d results are still called refused", n)
				}
			})
		})
	}
}

// A home that has recorded a late result no longer needs it (I4).
func TestResultOfAnEndedTaskIsDropped(t *testing.T) {
	var calls recorder[string]
	cfg := Config{Event: func(kind string, _ proto.PeerID, f map[string]string) { calls.add(kind + " " + f["task"]) }}
	inBubble(t, cfg, func(t *testing.T, h *home) {
		g := newTarget(t)
		g.respond = func(*proto.Message) *proto.Refusal {
			return &proto.Refusal{Code: proto.CodeStale, State: proto.Cancelled}
		}
		d := h.resultDraft(g.peer(), "")
		if err := h.PutResult(t.Context(), d, nil); err != nil {
			t.Fatal(err)
		}
		defer h.connect(g)()
		time.Sleep(time.Second)
		if _, _, err := h.backlog.Get(backlog.Key{ID: d.Header.ID, Part: backlog.PartResult}); err == nil {
			t.Error("it is still kept")
		}
		if told := calls.list(); len(told) != 1 || told[0] != wire.EventResultStale+" "+d.Header.ID.String() {
			t.Errorf("told of %v", told)
		}
	})
}

// A result that its home does not accept in time is a dead letter, and that is
// reported.
func TestExpiredResultIsADeadLetter(t *testing.T) {
	var calls recorder[string]
	cfg := Config{ResultFor: time.Hour, Event: func(kind string, _ proto.PeerID, f map[string]string) { calls.add(kind + " " + f["cause"]) }}
	inBubble(t, cfg, func(t *testing.T, h *home) {
		d := h.resultDraft(newTarget(t).peer(), "")
		if err := h.PutResult(t.Context(), d, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(day + time.Hour + time.Minute)
		list, _, err := h.DeadLetters(Query{}, backlog.Span{}, 10)
		told := calls.list()
		if err != nil || len(list) != 1 || !list[0].Result || len(told) != 1 || told[0] != wire.EventResultDead+" "+proto.TaskExpiredUnreached.Name() {
			t.Errorf("dead letters %v, %v; told %v", list, err, told)
		}
	})
}

// A result is offered for 30 days after the end of what it was sealed for.
func TestResultIsOfferedFor30Days(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, h *home) {
		sealed := time.Now().Add(day)
		got := time.UnixMilli(h.expires(resultKey(proto.NewTaskID(time.Now())), &proto.Record{NotAfterMs: sealed.UnixMilli()}))
		if want := sealed.Add(30 * day); !got.Equal(want.Truncate(time.Millisecond)) {
			t.Errorf("it ends at %v, want %v", got, want)
		}
	})
}

// A repeated refusal of a result is reported once, even if the link broke at the try
// at which it would have been reported.
func TestRepeatedRefusalIsReported(t *testing.T) {
	var told atomic.Int32
	cfg := Config{Event: func(string, proto.PeerID, map[string]string) { told.Add(1) }}
	inBubble(t, cfg, func(t *testing.T, h *home) {
		g := newTarget(t)
		g.respondWith(proto.CodeBusy)
		d := h.resultDraft(g.peer(), "")
		if err := h.PutResult(t.Context(), d, nil); err != nil {
			t.Fatal(err)
		}
		k := resultKey(d.Header.ID)
		cut := h.connect(g)
		for h.deliveries.get(k).tries < tellAfter-1 {
			time.Sleep(time.Second)
		}
		g.setDropAcks(true)
		time.Sleep(10 * time.Minute)
		cut()
		g.setDropAcks(false)
		if n := h.deliveries.get(k); n.tries != tellAfter || told.Load() != 0 {
			t.Fatalf("%d tries, told %d times: nothing is tested", n.tries, told.Load())
		}
		defer h.connect(g)()
		time.Sleep(time.Hour)
		if told.Load() != 1 {
			t.Errorf("told %d times", told.Load())
		}
	})
}
