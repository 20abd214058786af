package mail

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
)

// S15: what a full disk keeps from being written is written when there is space, and no mail waits
// for a restart: one whose lease has ended is delivered again, and an acknowledgment is answered then.
func TestRefusedRecordsAreWrittenLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{})
		f.late = new(lateLog)
		f.restart()
		f.mailbox("agent:ceo")
		f.send("agent:ceo", "lapses", "acknowledged")
		s := f.read("agent:ceo", 2)
		got, _ := f.next(s, 2)
		f.late.refuse(store.ErrNoDisk)
		ack, err := f.QueueSettle("agent:ceo", "", []Settlement{{Handle: got[1].Handle, Op: box.Ack}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if i := f.info("agent:ceo"); i.Waiting != 2 || ack.IsDone() {
			t.Errorf("%+v, answered %v", i, ack.IsDone())
		}
		f.late.refuse(nil)
		time.Sleep(2 * time.Second)
		if r, err := ack.Wait(t.Context()); err != nil || r[0].Code != proto.CodeOK {
			t.Errorf("%v, %v", r, err)
		}
		again, bodies := f.next(s, 1)
		if !slices.Equal(bodies, []string{"lapses"}) || !again[0].Redelivered {
			t.Errorf("%q: %+v", bodies, again)
		}
		f.restart()
		if i := f.info("agent:ceo"); i.Waiting != 1 || i.EndedAs(box.Done) != 1 {
			t.Errorf("%+v", i)
		}
	})
}

// S15: a start on a full disk serves once there is space.
func TestStartOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Config{})
		f.mailbox("agent:ceo")
		f.send("agent:ceo", "waits")
		f.late = new(lateLog)
		f.late.refuse(store.ErrNoDisk)
		f.restart()
		time.Sleep(10 * time.Minute)
		f.late.refuse(nil)
		time.Sleep(2 * time.Second)
		if _, bodies := f.next(f.read("agent:ceo", 1), 1); !slices.Equal(bodies, []string{"waits"}) {
			t.Errorf("%q", bodies)
		}
		f.send("agent:ceo", "more")
	})
}
