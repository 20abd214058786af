//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/api/client/mailstream"
	"github.com/balefire/balefire/mailbox"
	ledgers "github.com/balefire/balefire/store/ledger"
	"github.com/balefire/balefire/wire"
)

// mailPoints are the moments at which a node can be killed, whether the home of the box
// passes them or the sender of the mail, and whether the box is read from the node of the
// sender: before, within and after every append that a mail needs.
var mailPoints = []struct {
	name       string
	home, away bool
}{
	{mailbox.PointSend, false, false},
	{ledgers.PointWritten, false, false},
	{mailbox.PointSent, false, false},
	{mailbox.PointReceive, true, false},
	{ledgers.PointWritten, true, false},
	{mailbox.PointReceived, true, false},
	{mailbox.PointAnswer, false, false},
	{mailbox.PointLeased, true, false},
	{mailbox.PointSettle, true, false},
	{mailbox.PointSettled, true, false},
	{mailbox.PointLeased, true, true},
	{mailbox.PointSettle, true, true},
	{mailbox.PointSettled, true, true},
}

// TestMailCrash checks I21, I22 and I23 when the sender of mail, the home of its box and its
// reader, there or on another node, are killed at every step: each mail that was sent is read
// to its end once, and is accepted once (S08).
func TestMailCrash(t *testing.T) {
	a, b := pair(t, config{engine: engines[0]})
	lease := wire.Duration(2 * time.Second)
	if _, err := b.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{
		BoxSettings: wire.BoxSettings{Allow: &[]string{"*"}, AllowRead: &[]string{"*"}}, SubscriptionSettings: wire.SubscriptionSettings{Lease: &lease, Attempts: new(100)},
	}); err != nil {
		t.Fatal(err)
	}
	books := &mailBooks{t: t, reader: b, mails: map[string]*mailEntry{}, mailer: mailstream.New(filepath.Join(a.dir, "node.sock")).Mailer()}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- books.mailer.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	for _, pt := range mailPoints {
		side, who, where := a, "sender", ""
		if pt.home {
			side, who = b, "home"
		}
		if books.reader = b; pt.away {
			books.reader, where = a, " of a reader elsewhere"
		}
		for _, visit := range either([]int{2}, []int{1, 3, 10}) {
			if pt.name == ledgers.PointWritten {
				visit += 20 // a start writes some records, too
			}
			t.Run(fmt.Sprintf("%s%s %s %d", who, where, strings.ReplaceAll(pt.name, "/", " "), visit), func(t *testing.T) {
				side.stop()
				side.start(fmt.Sprintf("BALEFIRE_FAILPOINT=%s:%d", pt.name, visit))
				books.run(a, side)
				side.waitFailpoint()
			})
		}
	}
	for range either(1, 5) {
		for _, books.reader = range []*machine{b, a} {
			at := " at " + books.reader.name
			t.Run("reader"+at, func(t *testing.T) { books.killReader(t, a, b) })
			t.Run("home of a reader"+at, func(t *testing.T) { books.killBetween(t, a, b, b) })
		}
		t.Run("node of a reader elsewhere", func(t *testing.T) { books.killBetween(t, a, b, a) })
	}
	books.settle(a, b)
}

// mailBooks have what is known about each mail.
type mailBooks struct {
	t      *testing.T
	reader *machine // whose programs read the box
	mu     sync.Mutex

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
func (m *mailBooks) run(a, side *machine) {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	gone := side.gone
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, f := range []func(){func() { m.send(a, 3) }, m.post, func() { m.read(ctx) }} {
		wg.Go(func() {
			for ctx.Err() == nil {
				f()
				pause(5 * time.Millisecond)
			}
		})
	}
	select {
	case <-gone:
		cancel()
	case <-ctx.Done():
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
	ctx, cancel := context.WithTimeout(context.Background(), mailWait)
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

// mailWait bounds a call to a node that may be dead, or whose peer may be.
const mailWait = 10 * time.Second

// read leases and acknowledges mail once.
func (m *mailBooks) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, mailWait)
	defer cancel()
	if given := m.lease(ctx); len(given) > 0 {
		_ = m.ack(ctx, given) // it is noted
	}
}

// lease leases mail once.
func (m *mailBooks) lease(ctx context.Context) []wire.DeliveredMail {
	given, err := m.reader.LeaseMail(ctx, "ceo@b", "", wire.LeaseMail{Max: 10, Wait: wire.Wait(100 * time.Millisecond)})
	if err != nil {
		return nil
	}
	for _, d := range given {
		m.delivered(d)
	}
	return given
}

// ack acknowledges mail, and notes which acknowledgements count.
func (m *mailBooks) ack(ctx context.Context, given []wire.DeliveredMail) error {
	var acks wire.SettleMail
	for _, d := range given {
		acks.Ack = append(acks.Ack, d.Lease)
	}
	items, err := m.reader.SettleMail(ctx, "ceo@b", "", acks)
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, d := range given {
		e := m.mails[string(d.Mail.Body)]
		switch {
		case err != nil:
			e.unsure = true
		case items[i].Code == wire.SettledOK:
			e.acked = true
		}
	}
	return err
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
	cmd := exec.Command(m.reader.binary, "--dir", m.reader.dir, "mail", "read", "ceo@b", "--follow", "-o", "jsonl")
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

// killBetween kills a node when two mails are delivered, and when one of them is acknowledged: its
// old handle counts after the first death, it never comes again, and the other one does.
func (m *mailBooks) killBetween(t *testing.T, a, b, side *machine) {
	m.settle(a, b)
	m.send(a, 2)
	given := map[uint64]wire.DeliveredMail{} // a lease may end
	b.until("both are delivered", func() bool {
		for _, d := range m.lease(t.Context()) {
			given[d.Mail.Seq] = d
		}
		return len(given) == 2
	})
	first := given[slices.Min(slices.Collect(maps.Keys(given)))]
	side.kill()
	side.start()
	b.until("the acknowledgement is answered", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), mailWait)
		defer cancel()
		return m.ack(ctx, []wire.DeliveredMail{first}) == nil
	})
	if !m.mails[string(first.Mail.Body)].acked {
		t.Errorf("I23: the handle %s does not count, and nobody else was given its mail", first.Lease)
	}
	side.kill()
	side.start()
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
		m.read(context.Background())
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
		m.read(context.Background())
		box, err := b.Mailbox(context.Background(), "ceo")
		return err == nil && box.Waiting == 0
	})
	box, err := b.Mailbox(m.t.Context(), "ceo")
	if err != nil || box.Ended.Done != uint64(len(m.mails)) || box.Next != uint64(len(m.mails)+1) {
		m.t.Errorf("I22: %d mails were sent; %+v, next %d, %v", len(m.mails), box.Ended, box.Next, err)
	}
}
