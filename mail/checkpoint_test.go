package mail

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/ledger"
)

// A checkpoint makes a start read less, and segments without mail that waits are released.
func TestCheckpointsReleaseSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{CheckpointRecords: 8})
		f.mailbox("agent:ceo")
		s := f.read("agent:ceo", 1)
		for n := range 100 {
			f.send("agent:ceo", string(bytes.Repeat([]byte{byte(n)}, 100<<10)))
			got, _ := f.next(s, 1)
			f.settle("agent:ceo", got[0], box.Ack, proto.CodeOK)
			time.Sleep(tickEvery)
		}
		if err := s.Close(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		f.send("agent:ceo", "kept")
		time.Sleep(defaultCheckpointEvery)
		synctest.Wait()
		if st := f.log.Stats(); st.Checkpoint == 0 || st.First == 1 || st.Segments > 3 {
			t.Errorf("%+v", st)
		}
		f.restart()
		if _, bodies := f.next(f.read("agent:ceo", 9), 1); bodies[0] != "kept" {
			t.Errorf("%q", bodies)
		}
		if i := f.info("agent:ceo"); i.EndedAs(box.Done) != 100 {
			t.Errorf("%+v", i)
		}
	})
}

// A checkpoint is written after some bytes too: large mails fill a disk long before they are
// many.
func TestCheckpointsAfterBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{CheckpointBytes: 1 << 20})
		f.mailbox("agent:ceo")
		for range 10 {
			f.send("agent:ceo", string(make([]byte, 90<<10)))
		}
		time.Sleep(tickEvery)
		synctest.Wait()
		if st := f.log.Stats(); st.Checkpoint != 0 {
			t.Errorf("after 900 KiB: %+v", st)
		}
		for range 3 {
			f.send("agent:ceo", string(make([]byte, 90<<10)))
		}
		time.Sleep(tickEvery)
		synctest.Wait()
		if st := f.log.Stats(); st.Checkpoint == 0 {
			t.Errorf("after 1170 KiB: %+v", st)
		}
	})
}

// I21: a batch whose records are answered while a checkpoint is due is in it whole or not at
// all; and it is written although other records are always on their way.
func TestCheckpointsHaveWholeBatches(t *testing.T) {
	for answered, batches := range []uint64{0, 0, 0, 1, 2} {
		synctest.Test(t, func(t *testing.T) {
			f := newLateFixture(t, Config{CheckpointRecords: 1})
			before := f.log.Stats().Checkpoint
			f.sendLate("a", "b")
			f.sendLate("c", "d")
			for range answered {
				f.late.answer(1)
				synctest.Wait()
			}
			time.Sleep(3 * tickEvery)
			synctest.Wait()
			if n := f.log.Stats().Checkpoint - before; n != batches {
				t.Errorf("after %d of 4 answers the checkpoint has %d of 2 batches, want %d", answered, n, batches)
			}
			f.late = nil
			f.restart()
			if i := f.info("agent:ceo"); i.Waiting != 4 {
				t.Errorf("the process died after %d of 4 answers: %d mails are there", answered, i.Waiting)
			}
		})
	}
}

// I21: a checkpoint has no end of which the sender was not told, also when the end and the
// next batch are answered at once.
func TestNoCheckpointBetweenAnEndAndItsBounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan Bounce, 1)
		f := newLateFixture(t, Config{CheckpointRecords: 1, Bounced: func(ctx context.Context, b Bounce) {
			told <- b
			<-ctx.Done()
		}})
		letter := f.letter("x", func(l *proto.Letter) { l.Sender = []byte("desk") })
		if _, err := f.Send(t.Context(), []Item{{Box: "agent:ceo", Letter: letter}}, false); err != nil {
			t.Fatal(err)
		}
		got, _ := f.next(f.read("agent:ceo", 1), 1)
		time.Sleep(3 * tickEvery)
		synctest.Wait()
		before := f.log.Stats()
		if before.Checkpoint != before.Last {
			t.Fatalf("%+v", before)
		}
		f.late.hold()
		go func() {
			_, _ = f.Settle(context.Background(), "agent:ceo", "", []Settlement{{Handle: got[0].Handle, Op: box.Final, Reason: "test"}})
		}()
		synctest.Wait()
		f.sendLate("y")
		busy := make(chan struct{})
		if err := f.do(func(box.Now) { <-busy }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		f.late.answer(len(f.late.answers))
		close(busy)
		<-told
		time.Sleep(3 * tickEvery)
		synctest.Wait()
		if after := f.log.Stats().Checkpoint; after != before.Checkpoint {
			t.Errorf("a checkpoint at %d was written while a sender was not told yet", after)
		}
	})
}

// Checkpoints are written, and space is given back, also while senders are told all the time that their
// mails were not delivered.
func TestCheckpointsBesideSteadyBounces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var last chan struct{} // closed when the next sender is being told: one always is
		f := newLateFixture(t, Config{CheckpointRecords: 1, Bounced: func(ctx context.Context, _ Bounce) {
			told := make(chan struct{})
			mu.Lock()
			if last != nil {
				close(last)
			}
			last = told
			mu.Unlock()
			select {
			case <-told:
			case <-ctx.Done():
			}
		}})
		r := f.read("agent:ceo", 1)
		for i := range 5 {
			letter := f.letter("x", func(l *proto.Letter) { l.Sender = []byte("desk") })
			if _, err := f.Send(t.Context(), []Item{{Box: "agent:ceo", Letter: letter}}, false); err != nil {
				t.Fatal(err)
			}
			got, _ := f.next(r, 1)
			before := f.log.Stats()
			if _, err := f.Settle(t.Context(), "agent:ceo", "", []Settlement{{Handle: got[0].Handle, Op: box.Final, Reason: "test"}}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * tickEvery)
			synctest.Wait()
			if after := f.log.Stats(); i > 0 && after.Checkpoint <= before.Checkpoint || after.Checkpoint > before.Last {
				t.Errorf("end %d, at %d: the checkpoint at %d became one at %d", i, after.Last, before.Checkpoint, after.Checkpoint)
			}
		}
	})
}

// A lateLog keeps its answers back while it is held.
type lateLog struct {
	*ledger.Ledger

	mu      sync.Mutex
	held    bool
	fail    error // of what is queued from now on: it is not written
	answers []func()

	read func(record []byte) // called with each record that was read, by its reader; may be nil
}

func (l *lateLog) Read(p ledger.Place, dst []byte) ([]byte, error) {
	out, err := l.Ledger.Read(p, dst)
	if l.read != nil && err == nil {
		l.read(out[len(dst):])
	}
	return out, err
}

func (l *lateLog) Queue(es []ledger.Entry) *ledger.Pending {
	l.mu.Lock()
	fail := l.fail
	l.mu.Unlock()
	if fail != nil {
		for _, e := range es {
			e.After(0, ledger.Place{}, fail)
		}
		return nil
	}
	for i := range es {
		after := es[i].After
		es[i].After = func(index uint64, p ledger.Place, err error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.held {
				l.answers = append(l.answers, func() { after(index, p, err) })
			} else {
				after(index, p, err)
			}
		}
	}
	return l.Ledger.Queue(es)
}

func (l *lateLog) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = true
}

// refuse writes nothing from now on.
func (l *lateLog) refuse(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = err
}

// answer gives the oldest n answers.
func (l *lateLog) answer(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.answers[:n] {
		f()
	}
	l.answers = l.answers[n:]
}

// release gives all answers, and each at once from now on.
func (l *lateLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.answers {
		f()
	}
	l.held, l.answers = false, nil
}

// newLateFixture returns a fixture whose log is held, with a box and a checkpoint of it.
func newLateFixture(t *testing.T, cfg Config) *fixture {
	t.Helper()
	f := newFixture(t, cfg)
	f.late = new(lateLog)
	f.restart()
	f.mailbox("agent:ceo")
	time.Sleep(2 * tickEvery) // a tick writes the checkpoint
	synctest.Wait()
	if s := f.log.Stats(); s.Checkpoint != s.Last {
		t.Fatalf("%+v", s)
	}
	return f
}

// sendLate sends letters in one batch; their answers are kept back.
func (f *fixture) sendLate(bodies ...string) {
	f.t.Helper()
	f.late.hold()
	var items []Item
	for _, body := range bodies {
		items = append(items, Item{Box: "agent:ceo", Letter: f.letter(body, nil)})
	}
	last := f.log.Stats().Last
	go func() { _, _ = f.Send(context.Background(), items, false) }() // unknown if the broker ends first
	synctest.Wait()
	if got := f.log.Stats().Last; got != last+1 {
		f.t.Fatalf("%d batches were written", got-last)
	}
}
