//go:build e2e

package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// TestMailHomeIsPutBack checks what docs/mail.md says of a home whose disk is put back to an older
// copy while the sender of its mail lives: what was acknowledged since comes again once, what was
// accepted since is gone, and what waits at its sender arrives (I21, I22).
func TestMailHomeIsPutBack(t *testing.T) {
	for _, how := range []string{"folder", "snapshot"} {
		t.Run(how, func(t *testing.T) {
			a, b := pair(t, config{engine: engines[0]})
			b.openMailbox("desk", wire.SubscriptionSettings{})
			send := func(from *machine, key, text string) string {
				return from.mustSend(wire.Mail{To: "agent:desk@b", Dedupe: key, Receipt: true, Body: []byte(text)})[0]
			}
			for _, text := range []string{"read before", "read since", "waits"} {
				send(a, text, text)
			}
			mailArrived(a, b, 4)
			b.mustSettle("desk", wire.SettleMail{Ack: []string{b.mustLease("desk", 1)[0].Lease}})
			putBack := b.copyForLater(t, how)
			b.mustSettle("desk", wire.SettleMail{Ack: []string{b.mustLease("desk", 1)[0].Lease}})
			lost := send(a, "taken", "taken since")
			mailArrived(a, b, 5)
			own := send(b, "own", "sent here since")
			given := b.leaseAll("desk", 3)
			if got := bodies(given); !slices.Equal(got, []string{"waits", "taken since", "sent here since"}) {
				t.Fatalf("%q are read", got)
			}
			b.kill()
			send(a, "way", "on its way")
			putBack()
			mailArrived(a, b, 5)
			if m, err := a.Mail(t.Context(), lost); err != nil || m.State != "ACCEPTED" || m.Receipt == nil {
				t.Errorf("of the lost mail its sender has %s with the receipt %+v, %v", m.State, m.Receipt, err)
			}
			if items, err := b.SettleMail(t.Context(), "desk", "", wire.SettleMail{Ack: []string{given[1].Lease}}); err != nil || items[0].Code == wire.SettledOK {
				t.Errorf("I23: the handle of the lost mail settles that with its number: %+v, %v", items, err)
			}
			if send(a, "taken", "taken since") != lost || send(b, "own", "sent here since") == own {
				t.Error("the key of a lost mail is known at its home, or not at the node of its sender")
			}
			send(a, "another key", "taken since")
			mailArrived(a, b, 7)
			all := b.drain("desk")
			if got := bodies(all); !slices.Equal(got, []string{"read since", "waits", "on its way", "sent here since", "taken since"}) {
				t.Errorf("I22: %q are read", got)
			}
			for i, d := range all {
				if d.Redelivered != (i < 2) {
					t.Errorf("%q: redelivered is %t", d.Mail.Body, d.Redelivered)
				}
			}
			restarted(t, b)
			if box := b.box("desk"); box.Waiting != 0 || box.Ended.Done != 6 {
				t.Errorf("%d mails wait, and %+v", box.Waiting, box.Ended)
			}
		})
	}
}

// TestMailOriginIsPutBack puts the disk of a sender back to an older copy: what its box has taken since is
// offered again and not delivered again, what the copy does not have is not sent again, and what is sent
// then arrives (I21, I22).
func TestMailOriginIsPutBack(t *testing.T) {
	for _, how := range []string{"folder", "snapshot"} {
		t.Run(how, func(t *testing.T) {
			a, b := pair(t, config{engine: engines[0]})
			b.openMailbox("desk", wire.SubscriptionSettings{})
			send := func(text string) { a.mustSend(wire.Mail{To: "agent:desk@b", Dedupe: text, Body: []byte(text)}) }
			send("before")
			mailArrived(a, b, 2)
			b.stop()
			send("on its way")
			putBack := a.copyForLater(t, how)
			b.start()
			mailArrived(a, b, 3)
			send("since")
			mailArrived(a, b, 4)
			if got := bodies(b.drain("desk")); !slices.Equal(got, []string{"before", "on its way", "since"}) {
				t.Fatalf("%q are read", got)
			}
			a.kill()
			putBack()
			a.until("what was on its way is taken again", a.hasSent)
			send("after")
			send("since") // with the dedupe key that the copy does not have
			mailArrived(a, b, 5)
			if got := bodies(b.drain("desk")); !slices.Equal(got, []string{"after"}) {
				t.Errorf("I22: %q are read", got)
			}
			restarted(t, b)
			if box := b.box("desk"); box.Waiting != 0 || box.Ended.Done != 4 {
				t.Errorf("%d mails wait, and %+v", box.Waiting, box.Ended)
			}
		})
	}
}

// mailArrived waits until the next mail of the box has a number, and its sender knows.
func mailArrived(a, b *machine, next uint64) {
	b.t.Helper()
	b.until("the mail is taken", func() bool { return b.box("desk").Next == next })
	a.until("its sender knows", a.hasSent)
}

// copyForLater copies what the node has now, and returns a function that puts it back and starts
// the node, which was killed.
func (m *machine) copyForLater(t *testing.T, how string) (putBack func()) {
	t.Helper()
	if how == "snapshot" {
		dir := filepath.Join(shortDir(t), "copy")
		if err := m.Snapshot(t.Context(), dir, ""); err != nil {
			t.Fatal(err)
		}
		return func() {
			m.must("store", "restore", dir)
			m.start()
		}
	}
	m.stop()
	old := m.copied(t).dir
	m.start()
	page, err := m.EventPage(t.Context(), 0, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(os.Rename(m.dir, m.dir+".lost"), os.Rename(old, m.dir)); err != nil {
			t.Fatal(err)
		}
		// The number of a start is at least its time in seconds.
		m.until("the next start has another number", func() bool { return uint64(time.Now().Unix()) > page.Boot })
		m.start()
	}
}
