//go:build e2e

package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// TestMailDLQ checks S17 for mail when its home is killed after each step: a mail that its reader
// fails until its attempts are spent is a dead letter, of which its sender is told once, and the
// mail behind it goes on; it is sent again once, though it has a dedupe key, and read once
// (I21).
func TestMailDLQ(t *testing.T) {
	const attempts = 2
	a, b := pair(t, config{engine: engines[0]})
	b.openMailbox("desk", wire.SubscriptionSettings{Attempts: new(attempts)})
	a.openMailbox("me", wire.SubscriptionSettings{})
	ids := a.mustSend(
		wire.Mail{To: "agent:desk@b", Key: "k", Dedupe: "d", BounceTo: "agent:me", Body: []byte("weak")},
		wire.Mail{To: "agent:desk@b", Key: "k", Body: []byte("behind")})
	for try := range attempts {
		d := b.mustLease("desk", 10)
		if len(d) != 1 || d[0].Mail.ID != ids[0] || d[0].Attempt != try+1 {
			t.Fatalf("S17: try %d is given %+v, want %s", try+1, d, ids[0])
		}
		b.mustSettle("desk", wire.SettleMail{Nack: []wire.NackMail{{Lease: d[0].Lease, Delay: wire.Duration(time.Millisecond), Reason: "no"}}})
		restarted(t, b)
	}
	dead, err := b.Mail(t.Context(), ids[0])
	if err != nil || dead.State != "DEAD" || dead.Attempts != attempts || dead.Reason != "no" || dead.Redriven {
		t.Fatalf("S17: after %d attempts it is %+v, %v", attempts, dead, err)
	}
	if told := a.mustLease("me", 10); len(told) != 1 || told[0].Mail.BounceOf != ids[0] {
		t.Errorf("I21: its sender was told %+v", told)
	}
	again, err := b.RedriveMail(t.Context(), "desk", "", wire.RedriveMail{})
	if err != nil || len(again.Items) != 1 || again.Items[0].Mail == nil {
		t.Fatalf("the redrive: %+v, %v", again, err)
	}
	restarted(t, b)
	if twice, err := b.RedriveMail(t.Context(), "desk", "", wire.RedriveMail{Seqs: []uint64{dead.Seq}}); err != nil || len(twice.Items) != 1 || twice.Items[0].Problem == nil {
		t.Errorf("a second redrive: %+v, %v", twice, err)
	}
	given := b.drain("desk")
	if got := bodies(given); !slices.Equal(got, []string{"behind", "weak"}) || given[1].Mail.ID != again.Items[0].Mail.ID || given[1].Mail.RedriveOf != ids[0] {
		t.Errorf("S17: %q are read, then %+v", got, given[len(given)-1].Mail)
	}
	restarted(t, b)
	if box := b.box("desk"); box.Waiting != 0 || box.Ended.Done != 2 || box.Ended.Dead != 1 || box.Subscriptions[0].Dead != 1 {
		t.Errorf("S17: %d mails wait, %+v, %d dead letters", box.Waiting, box.Ended, box.Subscriptions[0].Dead)
	}
	if box := a.box("me"); box.Next != 2 {
		t.Errorf("I21: its sender was told %d times", box.Next-1)
	}
}
