package mailbox

import (
	"bytes"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
	"github.com/balefire/balefire/wire"
)

// A lossyDisk cannot read the mails that contain "lost", while it has an error.
type lossyDisk struct {
	*ledger.Ledger
	err atomic.Pointer[error]
}

func (d *lossyDisk) Read(p ledger.Place, dst []byte) ([]byte, error) {
	out, err := d.Ledger.Read(p, dst)
	if fails := d.err.Load(); err == nil && fails != nil && bytes.Contains(out[len(dst):], []byte("lost")) {
		return dst, *fails
	}
	return out, err
}

// lose restarts the fixture with a disk that can lose mail.
func (f *fixture) lose() *lossyDisk {
	f.t.Helper()
	f.stop()
	d := new(lossyDisk)
	f.disk = func(l *ledger.Ledger) mail.Ledger { d.Ledger = l; return d }
	f.start()
	return d
}

// A reply that is lost while it is read is none, and ends nothing.
func TestReplyThatIsLost(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		d := f.lose()
		f.mailbox("ceo", nil)
		r, _ := f.request("how many?", nil)
		f.answer("how many?", "lost")
		d.err.Store(ptr(store.ErrNotFound))
		f.awaited(r.ID, time.Second, "")
		d.err.Store(nil)
		f.awaited(r.ID, time.Minute, "lost")
	})
}

// A hookedDisk does not write what its hook refuses.
type hookedDisk struct {
	*ledger.Ledger
	hook func(rec []byte) error
}

func (d *hookedDisk) Queue(es []ledger.Entry) *ledger.Pending {
	if len(es) == 1 {
		if err := d.hook(es[0].Data); err != nil {
			es[0].After(0, ledger.Place{}, err)
			return nil
		}
	}
	return d.Ledger.Queue(es)
}

// hook restarts the fixture with a disk that has a hook.
func (f *fixture) hook(hook func(rec []byte) error) {
	f.t.Helper()
	f.stop()
	f.disk = func(l *ledger.Ledger) mail.Ledger { return &hookedDisk{l, hook} }
	f.start()
}

// A box for replies that cannot be removed now keeps none of the others.
func TestReplyBoxThatCannotBeRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var removals atomic.Int32
		f.hook(func(rec []byte) error {
			if typ, _ := box.TypeOf(rec); typ == box.TypeBox && len(rec) == len(box.EncodeRemoveBox(1)) && removals.Add(1) == 10 {
				return store.ErrFull
			}
			return nil
		})
		f.mailbox("ceo", nil)
		for range 20 {
			r, _ := f.request("how many?", nil)
			f.answer("how many?", "fine")
			f.awaited(r.ID, 0, "fine")
		}
		time.Sleep(replyGiven + replySweep + replySweep/2)
		if left := f.replies.names(); len(left) != 1 || removals.Load() != 20 {
			t.Errorf("%d boxes for replies are left after %d removals", len(left), removals.Load())
		}
		time.Sleep(replySweep)
		if left := f.replies.names(); len(left) != 0 {
			t.Errorf("%d boxes for replies are left when the disk is well", len(left))
		}
	})
}

// Who sends to a box for replies without a pause does not hold up its removal.
func TestReplyBoxIsRemovedUnderLoad(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		x, err := f.NewReplyBox(t.Context(), wire.NewReplyBox{})
		f.must(err)
		name := f.replies.names()[0]
		var taken atomic.Int64
		var removed atomic.Bool
		var senders sync.WaitGroup
		filled := make(chan struct{})
		half := sync.OnceFunc(func() { close(filled) })
		for range 2 {
			senders.Go(func() {
				mails := make([]wire.Mail, wire.MaxMailBatch)
				for i := range mails {
					mails[i].To = x.Box
				}
				for !removed.Load() && taken.Load() < 5*replyMails {
					_, errs := f.Send(t.Context(), mails)
					for _, err := range errs {
						if err == nil {
							taken.Add(1)
						}
					}
					if taken.Load() >= replyMails/2 {
						half()
					}
				}
			})
		}
		<-filled
		f.must(f.replies.drop(t.Context(), name))
		removed.Store(true)
		senders.Wait()
		if n := taken.Load(); n >= 5*replyMails {
			t.Errorf("%d mails were taken before the box was removed", n)
		}
	})
}

// A request that was cut off between its box and its mail has one box when it is sent again, to
// which the reply comes.
func TestRequestThatWasCutOff(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		const id = "01a206d9-3c5e-7838-8157-1936a50bdeb9"
		numbered := func(r *wire.MailRequest) {
			r.Producer, r.Number, r.ID = "000102030405060708090a0b0c0d0e0f", 1, id
		}
		for range 8 { // each time its node died
			_, err := f.replies.make(t.Context(), f.replies.newPlace(), notes{Request: id})
			f.must(err)
			f.restart()
		}
		r, _ := f.request("how many?", numbered)
		if all := f.replies.names(); len(all) != 1 || r.Known || r.ID != id {
			t.Errorf("%d boxes for replies, %s", len(all), asJSON(t, r))
		}
		f.answer("how many?", "five")
		f.awaited(id, 0, "five")
		if r, _ := f.request("how many?", numbered); !r.Known || r.Reply == nil || len(f.replies.names()) != 1 {
			t.Errorf("again, with %d boxes: %s", len(f.replies.names()), asJSON(t, r))
		}
	})
}

// What was given stays so over a restart: its sender is told nothing, the same reply is given
// again, and the place of its box can be had. Who sent another reply, which nobody took, is told.
func TestGivenReplyOverARestart(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		for _, name := range []string{"ceo", "first", "second"} {
			f.mailbox(name, nil)
		}
		r, _ := f.request("how many?", nil)
		d := f.one("ceo", "", "how many?")
		f.mail(d.Mail.ReplyTo, "five", func(m *wire.Mail) { m.Sender = "first" })
		f.awaited(r.ID, 0, "five")
		f.mail(d.Mail.ReplyTo, "six", func(m *wire.Mail) { m.Sender, m.Class = "second", "critical" })
		f.awaited(r.ID, 0, "five")
		f.ack("ceo", "", d)
		f.restart()
		f.awaited(r.ID, 0, "five")
		time.Sleep(replyGiven + 3*replySweep)
		if n := len(f.replies.names()); n > 0 {
			t.Errorf("%d reply boxes are left", n)
		}
		if v := f.box("first"); v.Waiting > 0 {
			t.Errorf("who sent the reply that was given is told %s", f.bounceBody("first"))
		}
		if told := string(f.bounceBody("second")); !strings.Contains(told, `"CANCELLED"`) {
			t.Errorf("who sent the other reply is told %s", told)
		}
	})
}

// A reply that was given is DONE, also when its own time is over: it is given again, over a
// restart too, and its sender is told nothing.
func TestGivenReplyDoesNotExpire(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("sender", nil)
		r, box := f.request("how many?", nil)
		d := f.one("ceo", "", "how many?")
		f.mail(d.Mail.ReplyTo, "five", func(m *wire.Mail) { m.Sender, m.TTL = "sender", wire.Duration(time.Minute) })
		f.ack("ceo", "", d)
		f.awaited(r.ID, 0, "five")
		if x := f.box(box); x.Waiting != 0 || x.Ended.Done != 1 {
			t.Errorf("the box has %s", asJSON(t, x))
		}
		time.Sleep(2 * time.Minute)
		f.awaited(r.ID, 0, "five")
		f.restart()
		time.Sleep(2 * time.Minute)
		f.awaited(r.ID, 0, "five")
		time.Sleep(replyGiven + 3*replySweep)
		if n, v := len(f.replies.names()), f.box("sender"); n > 0 || v.Waiting > 0 || len(f.events) > 0 {
			t.Errorf("%d reply boxes are left, its sender has %d mails, events %v", n, v.Waiting, f.events)
		}
	})
}

// All who wait for the reply to one request are given it when it comes.
func TestReplyIsGivenToAllWhoWait(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		r, _ := f.request("how many?", nil)
		began := time.Now()
		var waiters sync.WaitGroup
		for i := range 5 {
			waiters.Go(func() {
				if i == 0 { // leaves before
					f.awaited(r.ID, 10*time.Second, "")
					return
				}
				f.awaited(r.ID, time.Duration(i)*time.Minute, "five")
				if took := time.Since(began); took != 20*time.Second {
					t.Errorf("waiter %d was given it after %v", i, took)
				}
			})
		}
		time.Sleep(20 * time.Second)
		f.answer("how many?", "five")
		waiters.Wait()
	})
}

// A request takes the place of one whose reply was given before a restart.
func TestPlaceOfAGivenReplyAfterARestart(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		r, _ := f.request("how many?", nil)
		f.answer("how many?", "five")
		f.awaited(r.ID, 0, "five")
		for range MaxReplyBoxes - 1 {
			_, err := f.Request(t.Context(), wire.MailRequest{Mail: wire.Mail{To: "agent:ceo"}})
			f.must(err)
		}
		f.restart()
		if _, name := f.request("one more", nil); name == "" || len(f.replies.names()) != MaxReplyBoxes {
			t.Errorf("%d reply boxes", len(f.replies.names()))
		}
		_, err := f.Reply(t.Context(), r.ID, 0)
		f.refused(err, wire.ErrNotFound, "nobody waits for a reply")
	})
}

// A disk that takes no change of a box keeps no reply from its requester.
func TestReplyOnAFullDisk(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var full atomic.Bool
		f.hook(func(rec []byte) error {
			if typ, _ := box.TypeOf(rec); typ == box.TypeBox && full.Load() {
				return store.ErrFull
			}
			return nil
		})
		f.mailbox("ceo", nil)
		r, _ := f.request("how many?", nil)
		f.answer("how many?", "five")
		full.Store(true)
		f.awaited(r.ID, 0, "five")
		f.awaited(r.ID, 0, "five")
	})
}

// A reply whose end waits for space on the disk is given, and holds up no change of another box; nor
// does the removal of its box.
func TestReplyThatEndsOnAFullDisk(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var full, unset atomic.Bool
		f.hook(func(rec []byte) error {
			if typ, _ := box.TypeOf(rec); full.Load() && box.Decided(rec) || unset.Load() && typ == box.TypeBox {
				return store.ErrNoDisk
			}
			return nil
		})
		f.mailbox("ceo", nil)
		free := func() { full.Store(false); time.Sleep(5 * time.Second) }
		defer free()
		r, _ := f.request("how many?", nil)
		f.answer("how many?", "five")
		full.Store(true)
		given := make(chan struct{})
		go func() { defer close(given); f.awaited(r.ID, 0, "five") }()
		synctest.Wait()
		if !f.rules.changing.TryLock() {
			t.Fatal("no box can be changed while a reply ends")
		}
		f.rules.changing.Unlock()
		time.Sleep(2 * givenWait)
		select {
		case <-given:
		default:
			t.Error("the reply was not given")
		}
		free()
		<-given
		if n := f.box(f.replies.names()[0]).Waiting; n != 0 {
			t.Errorf("%d replies wait when the disk is well", n)
		}

		r, name := f.request("how much?", nil)
		f.answer("how much?", "six")
		unset.Store(true) // what was given cannot be noted, and ends with its box
		f.awaited(r.ID, 0, "six")
		unset.Store(false)
		full.Store(true)
		removed := make(chan error, 1)
		go func() { removed <- f.replies.drop(t.Context(), name) }()
		time.Sleep(2 * givenWait)
		if !f.rules.changing.TryLock() {
			t.Fatal("no box can be changed while one for a reply cannot be removed")
		}
		f.rules.changing.Unlock()
		if err := <-removed; err == nil {
			t.Error("a box was removed although its reply could not end")
		}
		free()
		f.must(f.replies.drop(t.Context(), name))
	})
}

// What is noted of a box for a reply by somebody who comes when it is just removed is forgotten.
func TestNotesOfARemovedReplyBox(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		_, first := f.request("how many?", nil)
		_, second := f.request("how much?", nil)
		p, err := f.places.find(first)
		f.must(err)
		k := f.ledger.broker()
		f.must(f.replies.drop(t.Context(), first))
		_, err = f.requests.take(t.Context(), t.Context(), k, p)
		f.refused(err, box.ErrNotFound, "")
		f.replies.noteGiven(t.Context(), k, p, mail.Delivery{})
		f.must(f.replies.drop(t.Context(), second))
		if r := f.replies; len(r.turns)+len(r.given)+len(r.read) > 0 {
			t.Errorf("kept: %v, %v, %v", r.turns, r.given, r.read)
		}
	})
}
