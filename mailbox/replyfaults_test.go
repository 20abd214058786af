package mailbox

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/balefire/balefire/mail"
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

// A box for replies that cannot be removed now keeps none of the others.
func TestReplyBoxThatCannotBeRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		const others = 20
		d := f.lose()
		f.mailbox("ceo", nil)
		broken := ""
		for i := range others + 1 {
			reply := "fine"
			r, name := f.request("how many?", nil)
			if i == others/2 {
				reply, broken = "lost", name
			}
			f.answer("how many?", reply)
			f.awaited(r.ID, 0, reply)
		}
		d.err.Store(ptr(errors.New("a bad sector")))
		time.Sleep(replyGiven + replySweep + replySweep/2)
		if left := f.replyBoxes(); len(left) != 1 || left[0] != broken {
			t.Errorf("%d boxes for replies are left", len(left))
		}
		d.err.Store(nil)
		time.Sleep(replySweep)
		if left := f.replyBoxes(); len(left) != 0 {
			t.Errorf("%d boxes for replies are left when the disk is well", len(left))
		}
	})
}

// Who sends to a box for replies without a pause does not hold up its removal.
func TestReplyBoxIsRemovedUnderLoad(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		x, err := f.NewReplyBox(t.Context(), wire.NewReplyBox{})
		f.must(err)
		name := f.replyBoxes()[0]
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
		f.replies.mu.Lock()
		f.replies.given[name] = f.cfg.Clock.Mono()
		f.replies.mu.Unlock()
		f.must(f.dropReplyBox(t.Context(), name))
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
			_, err := f.makeReplyBox(t.Context(), f.newReplyPlace(), notes{Request: id})
			f.must(err)
			f.restart()
		}
		r, _ := f.request("how many?", numbered)
		if all := f.replyBoxes(); len(all) != 1 || r.Known || r.ID != id {
			t.Errorf("%d boxes for replies, %s", len(all), asJSON(t, r))
		}
		f.answer("how many?", "five")
		f.awaited(id, 0, "five")
		if r, _ := f.request("how many?", numbered); !r.Known || r.Reply == nil || len(f.replyBoxes()) != 1 {
			t.Errorf("again, with %d boxes: %s", len(f.replyBoxes()), asJSON(t, r))
		}
	})
}
