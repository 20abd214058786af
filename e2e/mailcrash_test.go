//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/api/client/mailstream"
	"github.com/balefire/balefire/mailbox"
	"github.com/balefire/balefire/wire"
)

// mailPoints are the moments at which a node can be killed, and whether the home of the box
// passes them or the sender of the mail: before and after every append that a mail needs.
var mailPoints = []struct {
	name string
	home bool
}{
	{mailbox.PointSend, false},
	{mailbox.PointSent, false},
	{mailbox.PointReceive, true},
	{mailbox.PointReceived, true},
	{mailbox.PointAnswer, false},
	{mailbox.PointLeased, true},
	{mailbox.PointSettle, true},
	{mailbox.PointSettled, true},
}

// TestMailCrash checks I21, I22 and I23 when the sender of mail, the home of its box and its
// reader are killed at every step: each mail that was sent is read to its end once, and is
// accepted once (S08).
func TestMailCrash(t *testing.T) {
	a, b := pair(t, config{engine: engines[0]})
	lease := wire.Duration(5 * time.Second)
	if _, err := b.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{
		BoxSettings: wire.BoxSettings{Allow: &[]string{"*"}}, SubscriptionSettings: wire.SubscriptionSettings{Lease: &lease, Attempts: new(100)},
	}); err != nil {
		t.Fatal(err)
	}
	books := &mailBooks{t: t, mails: map[string]*mailEntry{}, mailer: mailstream.New(filepath.Join(a.dir, "node.sock")).Mailer()}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- books.mailer.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	for _, pt := range mailPoints {
		side, who := a, "sender"
		if pt.home {
			side, who = b, "home"
		}
		for _, visit := range either([]int{2}, []int{1, 3, 10}) {
			t.Run(fmt.Sprintf("%s %s %d", who, strings.ReplaceAll(pt.name, "/", " "), visit), func(t *testing.T) {
				side.stop()
				side.start(fmt.Sprintf("BALEFIRE_FAILPOINT=%s:%d", pt.name, visit))
				books.run(a, b, side)
				side.waitFailpoint()
			})
		}
	}
	for range either(1, 5) {
		t.Run("reader", func(t *testing.T) { books.killReader(t, a, b) })
		t.Run("home when an ack was answered", func(t *testing.T) {
			books.send(a, 1)
			b.until("it was read", func() bool { return books.read(b) > 0 })
			b.kill()
			b.start()
		})
	}
	books.settle(a, b)
}

// mailBooks have what is known about each mail.
type mailBooks struct {
	t  *testing.T
	mu sync.Mutex

	mails map[string]*mailEntry // by body
	owed  []wire.Mail           // to be sent again: the answer is missing
	sent  int
	keyed int // newest mail with a key that was delivered

	mailer  *mailstream.Mailer // of the sender
	posting sync.WaitGroup     // for the mails that it has
}

type mailEntry struct {
	id     string // as it was delivered
	seq    uint64
	acked  bool // an acknowledgement was answered
	unsure bool // one has no answer
}

// run sends and reads until a node is dead.
func (m *mailBooks) run(a, b, side *machine) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, f := range []func(){func() { m.send(a, 3) }, m.post, func() { m.read(b) }} {
		wg.Go(func() {
			for began := time.Now(); side.alive() && time.Since(began) < testTimeout; {
				f()
				pause(5 * time.Millisecond)
			}
		})
	}
}

// post sends a mail over the stream of mail, which is there again when the node is.
func (m *mailBooks) post() {
	m.mu.Lock()
	m.sent++
	body := fmt.Sprint(m.sent)
	m.mails[body] = new(mailEntry)
	m.mu.Unlock()
	m.posting.Go(func() {
		if _, err := m.mailer.Send(m.t.Context(), wire.Mail{To: "agent:ceo@b", Body: []byte(body)}); err != nil {
			m.t.Errorf("mail %s of the mailer: %v", body, err)
		}
	})
}

// send sends n mails, and those again of which it is not known whether they were sent. Half of
// them have a dedupe key, the others a number.
func (m *mailBooks) send(a *machine, n int) {
	m.mu.Lock()
	mails := m.owed
	for range n {
		m.sent++
		body := fmt.Sprint(m.sent)
		mails = append(mails, wire.Mail{To: "agent:ceo@b", Body: []byte(body), Key: []string{"", "k"}[m.sent%2], Dedupe: []string{"d" + body, ""}[m.sent/2%2]})
		m.mails[body] = new(mailEntry)
	}
	m.owed = nil
	m.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, errs := a.SendMails(ctx, mails)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, err := range errs {
		if err != nil {
			m.owed = append(m.owed, mails[i])
		}
	}
}

// read leases and acknowledges mail once, and returns how many acknowledgements counted.
func (m *mailBooks) read(b *machine) (acked int) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	given, err := b.LeaseMail(ctx, "ceo", "", wire.LeaseMail{Max: 10, Wait: wire.Wait(100 * time.Millisecond)})
	if err != nil || len(given) == 0 {
		return 0
	}
	var acks wire.SettleMail
	for _, d := range given {
		m.delivered(d)
		acks.Ack = append(acks.Ack, d.Lease)
	}
	items, err := b.SettleMail(ctx, "ceo", "", acks)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, d := range given {
		e := m.mails[string(d.Mail.Body)]
		switch {
		case err != nil:
			e.unsure = true
		case items[i].Code == wire.SettledOK:
			e.acked = true
			acked++
		}
	}
	return acked
}

func (m *mailBooks) delivered(d wire.DeliveredMail) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.mails[string(d.Mail.Body)]
	n, err := strconv.Atoi(string(d.Mail.Body))
	switch {
	case e == nil || err != nil:
		m.t.Fatalf("I21: nobody sent %+v", d.Mail)
	case e.acked:
		m.t.Errorf("I23: %s is delivered after its end", d.Mail.ID)
	case e.seq != 0 && (e.seq != d.Mail.Seq || e.id != d.Mail.ID):
		m.t.Errorf("I22: %q was accepted as %d and as %d", d.Mail.Body, e.seq, d.Mail.Seq)
	}
	if e.seq, e.id = d.Mail.Seq, d.Mail.ID; d.Mail.Key == "" {
		return
	}
	if n < m.keyed {
		m.t.Errorf("I22: mail %d is delivered after mail %d of its key", n, m.keyed)
	}
	m.keyed = n
}

// killReader kills a program that has printed mail and not acknowledged it: the mail is
// delivered again, with the same id.
func (m *mailBooks) killReader(t *testing.T, a, b *machine) {
	m.settle(a, b)
	cmd := exec.Command(b.binary, "--dir", b.dir, "mail", "read", "ceo", "--follow", "-o", "jsonl")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	m.send(a, 1)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	_ = cmd.Process.Kill() // it may have exited
	_ = cmd.Wait()
	var d wire.DeliveredMail
	if err == nil {
		err = json.Unmarshal(line, &d)
	}
	if err != nil || d.Lease == "" {
		t.Fatalf("%s, %v", line, err)
	}
	m.delivered(d)
	m.settle(a, b)
}

// settle reads until nothing is left, and checks that each mail has ended once.
func (m *mailBooks) settle(a, b *machine) {
	m.t.Helper()
	m.posting.Wait()
	a.until("every mail is sent", func() bool {
		m.send(a, 0)
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.owed) == 0
	})
	open := 0
	b.until("every mail is read", func() bool {
		m.read(b)
		m.mu.Lock()
		defer m.mu.Unlock()
		open = 0
		for _, e := range m.mails {
			if !e.acked && !e.unsure {
				open++
			}
		}
		return open == 0
	})
	b.until("no mail waits", func() bool {
		m.read(b)
		box, err := b.Mailbox(context.Background(), "ceo")
		return err == nil && box.Waiting == 0
	})
	box, err := b.Mailbox(m.t.Context(), "ceo")
	if err != nil || box.Ended.Done != uint64(len(m.mails)) || box.Next != uint64(len(m.mails)+1) {
		m.t.Errorf("I22: %d mails were sent; %+v, next %d, %v", len(m.mails), box.Ended, box.Next, err)
	}
}
