//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/balefire/balefire/api/client/mailstream"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/wire"
)

// TestMailMoveIsKilled checks I21 when a node is killed while it gives back the space of its
// ledger: each mail that waits is there once, with its bytes, whether it was moved or not.
func TestMailMoveIsKilled(t *testing.T) {
	a := newMachine(t, "a", true, config{engine: engines[0]})
	a.start()
	if _, err := a.SetMailbox(t.Context(), "kept", wire.MailboxSettings{}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.SetTopic(t.Context(), "waste", wire.BoxSettings{Bytes: new(int64(1 << 20))}); err != nil {
		t.Fatal(err)
	}
	k := &keptMail{t: t, mailer: mailstream.New(filepath.Join(a.dir, "node.sock")).Mailer()}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.mailer.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	for _, point := range either(
		[]string{mail.PointMoved + ":3", mail.PointReleased + ":1"},
		[]string{
			mail.PointMoved + ":3", mail.PointReleased + ":1", mail.PointSave + ":1", mail.PointSaved + ":1", mail.PointMove + ":1",
			mail.PointMoved + ":1", mail.PointMove + ":5", mail.PointSaved + ":2", mail.PointReleased + ":3",
		}) {
		t.Run(strings.ReplaceAll(point, "/", " "), func(t *testing.T) {
			a.stop()
			a.start("BALEFIRE_FAILPOINT=" + point)
			dead := a.gone
			var sending sync.WaitGroup
			for range 8 {
				sending.Go(func() { k.send(dead) })
			}
			a.waitFailpoint()
			sending.Wait()
			if box, err := a.Mailbox(t.Context(), "kept"); err != nil || box.Waiting != k.sent || box.Next != uint64(k.sent+1) {
				t.Errorf("I21: %d mails were sent: %d wait, the next is %d, %v", k.sent, box.Waiting, box.Next, err)
			}
		})
	}
	k.check(a)
}

// keptMail are the mails that wait among many that do not.
type keptMail struct {
	t      *testing.T
	mailer *mailstream.Mailer
	mu     sync.Mutex
	sent   int
}

// send sends mail until the node is dead, and what has no answer then to its next life: of
// each seventeen mails one waits.
func (k *keptMail) send(dead <-chan struct{}) {
	waste := make([]byte, 240<<10)
	for {
		select {
		case <-dead:
			return
		default:
		}
		k.mu.Lock()
		n := k.sent
		k.sent++
		k.mu.Unlock()
		mails := []wire.Mail{{To: "agent:kept", Type: fmt.Sprint(n), Body: keptBody(n)}}
		for range 16 {
			mails = append(mails, wire.Mail{To: "topic:waste", Body: waste})
		}
		for _, m := range mails {
			if _, err := k.mailer.Send(k.t.Context(), m); err != nil {
				k.t.Errorf("mail %d: %v", n, err)
				return
			}
		}
	}
}

// keptBody returns the body of a mail.
func keptBody(n int) []byte {
	body := make([]byte, 64<<10)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(body) // it never fails
	return body
}

// check reads all mail.
func (k *keptMail) check(a *machine) {
	k.t.Helper()
	read := map[int]bool{}
	for {
		given, err := a.LeaseMail(k.t.Context(), "kept", "", wire.LeaseMail{Max: 32})
		if err != nil {
			k.t.Fatal(err)
		}
		if len(given) == 0 {
			break
		}
		var acks wire.SettleMail
		for _, d := range given {
			n, err := strconv.Atoi(d.Mail.Type)
			if err != nil || n >= k.sent || read[n] || !bytes.Equal(d.Mail.Body, keptBody(n)) {
				k.t.Errorf("I21: mail %q of %d is not what was sent, or was read before: %v", d.Mail.Type, k.sent, err)
			}
			read[n] = true
			acks.Ack = append(acks.Ack, d.Lease)
		}
		if _, err := a.SettleMail(k.t.Context(), "kept", "", acks); err != nil {
			k.t.Fatal(err)
		}
	}
	box, err := a.Mailbox(k.t.Context(), "kept")
	if err != nil || len(read) != k.sent || box.Waiting != 0 || box.Ended.Done != uint64(k.sent) {
		k.t.Errorf("I21: %d mails were sent and %d read: %+v, %v", k.sent, len(read), box.Ended, err)
	}
}
