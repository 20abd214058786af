//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// TestMailOrder checks S15 and I22: the mails of each key of one sender, of any class, are read in
// the order in which they were sent, without a gap, while the link to their home is cut and the
// home is killed, without a link and with one.
func TestMailOrder(t *testing.T) {
	ha, a, b := newLinkedPair(t, engines[0])
	lease := wire.Duration(2 * time.Second)
	b.openMailbox("desk", wire.SubscriptionSettings{Lease: &lease, Attempts: new(100)})
	o := &orderedMails{t: t, lanes: map[string]*orderedLane{"x": {}, "y": {}, "z": {}}}
	var work sync.WaitGroup
	defer work.Wait()
	sending, stop := context.WithCancel(t.Context())
	defer stop()
	reading, end := context.WithCancel(t.Context())
	defer end()
	work.Go(func() { o.send(sending, a) })
	work.Go(func() { o.read(reading, b) })
	for range either(2, 10) {
		ha.Port.Cut()
		sent, _ := o.counts()
		a.until("mail waits for the link", func() bool { n, _ := o.counts(); return n >= sent+30 })
		restarted(t, b)
		ha.Port.Heal()
		b.until("what waited is read", func() bool { _, n := o.counts(); return n >= sent+30 })
		restarted(t, b)
		_, read := o.counts()
		b.until("more is read", func() bool { _, n := o.counts(); return n > read })
	}
	stop()
	b.until("all is read", func() bool { return a.hasSent() && b.box("desk").Waiting == 0 })
	end()
	work.Wait()
	sent, read := o.counts()
	if box := b.box("desk"); read != sent || box.Ended.Done != uint64(sent) || box.Next != uint64(sent+1) {
		t.Errorf("I22: %d mails were sent and %d read: %+v, the next is %d", sent, read, box.Ended, box.Next)
	}
	t.Logf("counted: %d mails with a key, each read in order", sent)
}

// orderedMails are the mails with a key of one sender, by key.
type orderedMails struct {
	t     *testing.T
	mu    sync.Mutex
	lanes map[string]*orderedLane
}

// An orderedLane numbers the mails of one key from 1.
type orderedLane struct {
	sent  int
	read  int  // newest that was delivered
	asked bool // it was acknowledged, with or without an answer
	done  bool // that was answered
}

// counts returns how many mails were sent, and how many of them delivered.
func (o *orderedMails) counts() (sent, read int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.lanes {
		sent, read = sent+l.sent, read+l.read
	}
	return sent, read
}

// send sends mail until ctx is done. The node of the sender lives, so each send is answered.
func (o *orderedMails) send(ctx context.Context, a *machine) {
	classes := []string{"normal", "critical", "low", "high"}
	for round := 0; ctx.Err() == nil; round++ {
		for key, l := range o.lanes {
			var mails []wire.Mail
			for i := range 3 {
				mails = append(mails, wire.Mail{To: "agent:desk@b", Key: key, Class: classes[(round+i)%len(classes)], Body: fmt.Append(nil, l.sent+i+1)})
			}
			_, errs := a.SendMails(o.t.Context(), mails)
			for _, err := range errs {
				if err != nil {
					o.t.Errorf("send: %v", err)
					return
				}
			}
			o.mu.Lock()
			l.sent += len(mails)
			o.mu.Unlock()
		}
		pause(20 * time.Millisecond)
	}
}

// read reads and acknowledges mail until ctx is done.
func (o *orderedMails) read(ctx context.Context, b *machine) {
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, mailWait)
		given, err := b.LeaseMail(try, "desk", "", wire.LeaseMail{Max: 10, Wait: wire.Wait(100 * time.Millisecond)})
		if err == nil && len(given) > 0 {
			var acks wire.SettleMail
			for _, d := range given {
				o.delivered(&d)
				acks.Ack = append(acks.Ack, d.Lease)
			}
			items, err := b.SettleMail(try, "desk", "", acks)
			o.mu.Lock()
			for i, d := range given {
				l := o.lanes[d.Mail.Key]
				l.asked, l.done = true, err == nil && items[i].Code == wire.SettledOK
			}
			o.mu.Unlock()
		}
		cancel()
		if err != nil {
			pause(5 * time.Millisecond) // the node is dead
		}
	}
}

// delivered checks that a mail is the next one of its key, or the last one again that nobody has
// acknowledged for sure.
func (o *orderedMails) delivered(d *wire.DeliveredMail) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l, n := o.lanes[d.Mail.Key], 0
	if l != nil {
		n, _ = strconv.Atoi(string(d.Mail.Body)) // 0 is no number
	}
	switch {
	case l != nil && n == l.read+1 && (l.asked || l.read == 0):
		l.read, l.asked, l.done = n, false, false
	case l != nil && n == l.read && n > 0 && !l.done:
	default:
		o.t.Errorf("I22: mail %q of the key %q is delivered, after %+v", d.Mail.Body, d.Mail.Key, l)
	}
}
