package mail

import (
	"runtime"
	"testing"
	"time"

	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store/ledger"
)

// TestGarbage checks that a mail of 1 KiB, sent, delivered and acknowledged in batches of 16 over
// a ledger on disk, leaves less than 200 bytes behind.
func TestGarbage(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, for which tests are short, drops what pools hold")
	}
	const batch, turns = 16, 200
	f := newFixtureOn(t, Config{}, ledger.Config{Reserve: -1})
	f.mailbox("agent:ceo")
	reader := f.read("agent:ceo", batch)
	ctx, now := t.Context(), time.Now()
	items, letters, acks := make([]Item, batch), make([][]byte, batch), make([]Settlement, batch)
	letter := proto.Letter{Class: proto.Normal, Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Body: make([]byte, 1<<10)}
	var sent []Sent
	var got []Delivery
	var buf []byte
	turn := func() {
		for i := range items {
			letter.ID = proto.NewMailID(now)
			l, err := proto.AppendLetter(letters[i][:0], &letter)
			if err != nil {
				t.Fatal(err)
			}
			letters[i] = l
			items[i] = Item{Box: "agent:ceo", Letter: letters[i]}
		}
		sending, err := f.QueueSend(items, false, sent)
		if err != nil {
			t.Fatal(err)
		}
		if sent, err = sending.Wait(ctx); err != nil || sent[0].Code != proto.CodeOK {
			t.Fatalf("%+v, %v", sent, err)
		}
		for n := 0; n < batch; n += len(got) {
			if got, buf, err = reader.NextInto(ctx, batch, got[:0], buf[:0]); err != nil {
				t.Fatal(err)
			}
			for i, d := range got {
				acks[i] = Settlement{Handle: d.Handle, Op: box.Ack}
			}
			if done, err := f.Settle(ctx, "agent:ceo", "", acks[:len(got)]); err != nil || done[0].Code != proto.CodeOK {
				t.Fatalf("%+v, %v", done, err)
			}
		}
	}
	for f.log.Stats().Spares == 0 { // making a segment is not steady
		runtime.Gosched()
	}
	for range turns {
		turn()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range turns {
		turn()
	}
	runtime.ReadMemStats(&after)
	n := (after.TotalAlloc - before.TotalAlloc) / (turns * batch)
	t.Logf("%d bytes a mail", n)
	if n >= 200 {
		t.Errorf("%d bytes a mail", n)
	}
}
