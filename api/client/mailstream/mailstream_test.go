package mailstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/api/client"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/node/nodetest"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A fixture is a node with the mailboxes ceo and cto, and a client of it.
type fixture struct {
	*Client
	t    *testing.T
	node *node.Node
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "balefire")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := nodetest.Open(t, nil)
	nodetest.Run(t, n)
	for _, name := range []string{"ceo", "cto"} {
		if _, err := n.Mail.SetMailbox(t.Context(), name, wire.MailboxSettings{}); err != nil {
			t.Fatal(err)
		}
	}
	return &fixture{New(filepath.Join(dir, "node.sock")), t, n}
}

// serve serves the API until stop is called or the test ends. Any goroutine may call it.
func (f *fixture) serve() (stop func()) {
	f.t.Helper()
	l, err := api.Listen(f.socket)
	if err != nil {
		f.t.Error(err)
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- api.New(f.node, api.Config{}).Serve(ctx, l) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Error(err)
		}
	})
	f.t.Cleanup(stop)
	return stop
}

func (f *fixture) mailer() *Mailer {
	m := f.Mailer()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- m.Run(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			f.t.Error(err)
		}
		if _, err := m.Send(f.t.Context(), wire.Mail{To: "agent:ceo"}); err == nil {
			f.t.Error("a mailer that has ended sends")
		}
	})
	return m
}

func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Minute)
	f.t.Cleanup(cancel)
	return ctx
}

// TestMailIsSentAndReadOnceOverBrokenConnections sends from many goroutines and reads, while
// the server stops and comes back: every mail arrives, and none is there twice.
func TestMailIsSentAndReadOnceOverBrokenConnections(t *testing.T) {
	const senders, each = 20, 25
	f := newFixture(t)
	stop := f.serve()
	m, ctx := f.mailer(), f.ctx()
	var work sync.WaitGroup
	for i := range senders {
		work.Go(func() {
			for j := range each {
				sent, err := m.Send(ctx, wire.Mail{To: "agent:ceo", Class: "high", Body: fmt.Append(nil, i*each+j)})
				if err != nil || sent.ID == "" || sent.Seq == 0 && !sent.Known {
					t.Errorf("%+v, %v", sent, err)
				}
			}
		})
	}
	seen, ids := map[string]bool{}, map[string]bool{}
	for d, err := range f.ReadMail(ctx, "agent:ceo", Read{Credit: 32}) {
		if err != nil {
			t.Fatal(err)
		}
		if seen[string(d.Mail.Body)] && !ids[d.Mail.ID] || d.Mail.Class != "high" {
			t.Errorf("mail %s is there twice: %+v", d.Mail.Body, d.Mail)
		}
		repeated := seen[string(d.Mail.Body)]
		seen[string(d.Mail.Body)], ids[d.Mail.ID] = true, true
		_ = d.Ack() // if it breaks, the mail comes again
		if n := len(seen); n == senders*each {
			break
		} else if !repeated && (n == 100 || n == 300) {
			stop()
			stop = f.serve()
		}
	}
	work.Wait()
	if b, err := f.node.Mail.Get(ctx, "ceo"); err != nil || b.Next != senders*each+1 {
		t.Errorf("%d mails, %v", b.Next-1, err)
	}
}

// TestMailerNumbersItsMail sends more mails than the node knows numbers of, before there is a
// node, and over a connection that breaks: all are taken once, in their order, without keys.
func TestMailerNumbersItsMail(t *testing.T) {
	const count = proto.ProducerWindow + 1000
	f := newFixture(t)
	m, ctx := f.mailer(), f.ctx()
	var work sync.WaitGroup
	for range count {
		work.Go(func() {
			if sent, err := m.Send(ctx, wire.Mail{To: "agent:ceo"}); err != nil || sent.ID == "" {
				t.Errorf("%+v, %v", sent, err)
			}
		})
	}
	if sent, err := New("none").Mailer().Send(canceled(), wire.Mail{To: "agent:ceo", Producer: "x"}); !errors.Is(err, wire.ErrInvalid) {
		t.Errorf("a bad producer: %+v, %v", sent, err)
	}
	f.serve()()
	f.serve()
	work.Wait()
	if b, err := f.node.Mail.Get(ctx, "ceo"); err != nil || b.Next != count+1 {
		t.Errorf("%d mails, %v", b.Next-1, err)
	}
	own := wire.Mail{To: "agent:ceo", Producer: "0f0e0d0c0b0a09080706050403020100", Number: 7, ID: "01a206d9-3c5e-7838-8157-1936a50bdeb9"}
	for _, known := range []bool{false, true} {
		if sent, err := m.Send(ctx, own); err != nil || sent.ID != own.ID || sent.Known != known {
			t.Errorf("%+v, %v; known %v", sent, err, known)
		}
	}
	next := uint64(0)
	for d, err := range f.ReadMail(ctx, "agent:ceo", Read{}) {
		if err != nil {
			t.Fatal(err)
		}
		_ = d.Ack() // if it breaks, the mail comes again
		l, err := proto.ParseLetter(d.Letter)
		if err != nil {
			t.Fatal(err)
		}
		if d.Mail.ID == own.ID {
			break
		}
		if next++; l.Produced != (proto.Produced{Producer: m.producer, Number: next}) || len(l.Dedupe) > 0 {
			t.Fatalf("mail %d has the number %+v and the key %q", next, l.Produced, l.Dedupe)
		}
	}
}

// canceled returns a context that has ended.
func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// TestMailerWaitsForAnswers checks that a mailer sends no number while the oldest one without
// an answer is so old that the node would not know it any more.
func TestMailerWaitsForAnswers(t *testing.T) {
	m := New("none").Mailer()
	for range proto.ProducerWindow + 100 {
		framed, err := encode(&wire.Mail{To: "agent:ceo"}, proto.Produced{Producer: m.producer, Number: 1})
		if err != nil {
			t.Fatal(err)
		}
		m.waiting = append(m.waiting, &posted{mail: framed, numbered: true, done: make(chan struct{})})
	}
	take := func() (first, last uint64) {
		for b := m.take(); len(b.mails) > 0; b = m.take() {
			l, err := proto.ParseLetter(b.mails[len(b.mails)-1].mail.Letter)
			if err != nil {
				t.Fatal(err)
			}
			last = l.Produced.Number
			first = cmp.Or(first, last-uint64(len(b.mails))+1)
		}
		return first, last
	}
	if first, last := take(); first != 1 || last != proto.ProducerWindow {
		t.Errorf("sent %d to %d", first, last)
	}
	if err := m.answer(1, make([]wire.FramedResult, wire.MaxMailBatch)); err != nil || len(m.wake) != 1 {
		t.Errorf("%v, woken %v", err, len(m.wake))
	}
	if first, last := take(); first != proto.ProducerWindow+1 || last != proto.ProducerWindow+100 {
		t.Errorf("after an answer sent %d to %d", first, last)
	}
}

// TestDeliveriesAreSettled settles in each way and checks what the box says.
func TestDeliveriesAreSettled(t *testing.T) {
	f := newFixture(t)
	f.serve()
	m, ctx := f.mailer(), f.ctx()
	labels := map[string]string{"a": "b"}
	for _, body := range []string{"ack", "nack", "reject", "defer", "extend", "reply"} {
		if _, err := m.Send(ctx, wire.Mail{To: "agent:ceo", Body: []byte(body), ReplyTo: "agent:cto@here", Labels: labels, Correlation: "c"}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for d, err := range f.ReadMail(ctx, "ceo", Read{}) {
		if err != nil {
			t.Fatal(err)
		}
		if d.Mail.Labels["a"] != "b" || d.Attempt != 1 || time.Until(d.Until) <= 0 || len(d.Letter) == 0 {
			t.Errorf("%+v", d)
		}
		switch string(d.Mail.Body) {
		case "ack":
			err = d.Ack()
		case "nack":
			err = d.Nack(time.Hour, "later")
		case "reject":
			err = d.Reject("never")
		case "defer":
			err = d.Defer(time.Hour, "not now")
		case "extend":
			err = errors.Join(d.Extend(time.Hour), d.Ack())
			if d.Extend(0) == nil || d.Nack(-1, "") == nil {
				t.Error("bad times are taken")
			}
		case "reply":
			var first, again Sent
			first, err = d.Reply(ctx, wire.Mail{Body: []byte("yes")})
			again, _ = d.Reply(ctx, wire.Mail{Body: []byte("yes")})
			if !again.Known || again.ID != first.ID {
				t.Errorf("a second reply: %+v after %+v", again, first)
			}
			err = errors.Join(err, d.Ack())
		}
		if err != nil {
			t.Errorf("%s: %v", d.Mail.Body, err)
		}
		if n++; n == 6 {
			break
		}
	}
	if _, err := m.Send(ctx, wire.Mail{To: "agent:ceo"}); err != nil { // what was settled is on disk before
		t.Fatal(err)
	}
	b, err := f.node.Mail.Get(ctx, "ceo")
	if s := b.Subscriptions[0]; err != nil || b.Ended.Done != 3 || s.Dead != 1 || s.Retrying != 2 || s.Leased != 0 {
		t.Errorf("%+v, %v", b, err)
	}
	for d, err := range f.ReadMail(ctx, "agent:cto", Read{}) {
		if err == nil && d.Mail.BounceOf != "" {
			continue // of the one that was rejected
		}
		if err != nil || string(d.Mail.Body) != "yes" || d.Mail.Correlation != "c" || d.Mail.Hops != 1 {
			t.Errorf("%+v, %v", d, err)
		}
		break
	}
}

// TestManyLargeAnswersAreManyMessages replies with large bodies, and rejects with long reasons,
// many at once: they are more than a message may have, and all count.
func TestManyLargeAnswersAreManyMessages(t *testing.T) {
	const replies, rejects = 16, 40
	f := newFixture(t)
	f.serve()
	m, ctx := f.mailer(), f.ctx()
	var work sync.WaitGroup
	for range replies + rejects {
		work.Go(func() {
			if _, err := m.Send(ctx, wire.Mail{To: "agent:ceo", ReplyTo: "agent:cto@here"}); err != nil {
				t.Error(err)
			}
		})
	}
	work.Wait()
	var given []*Delivery
	for d, err := range f.ReadMail(ctx, "agent:ceo", Read{}) {
		if err != nil {
			t.Fatal(err)
		}
		if given = append(given, d); len(given) < replies+rejects {
			continue
		}
		for _, d := range given[:replies] {
			work.Go(func() {
				_, err := d.Reply(ctx, wire.Mail{Body: make([]byte, proto.MaxInlineBody)})
				if err = errors.Join(err, d.Ack()); err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		for _, d := range given[replies:] {
			if err := d.Reject(strings.Repeat("x", 60<<10)); err != nil {
				t.Error(err)
			}
		}
		break
	}
	if _, err := m.Send(ctx, wire.Mail{To: "agent:ceo"}); err != nil { // what was settled is on disk before
		t.Fatal(err)
	}
	b, err := f.node.Mail.Get(ctx, "ceo")
	if s := b.Subscriptions[0]; err != nil || b.Ended.Done != replies || s.Dead != rejects {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestLargestSendIsOneMessage checks that the node takes the largest batch of a mailer.
func TestLargestSendIsOneMessage(t *testing.T) {
	m := New("none").Mailer()
	for i := range wire.MaxMailBatch {
		framed, err := encode(&wire.Mail{To: strings.Repeat(string(rune('a'+i%2)), 255), Dedupe: "k", Body: make([]byte, 1900)}, proto.Produced{})
		if err != nil {
			t.Fatal(err)
		}
		framed.Letter = append(framed.Letter, make([]byte, 1<<20/wire.MaxMailBatch-len(framed.Letter))...)
		m.waiting = append(m.waiting, &posted{mail: framed})
	}
	var mails []wire.FramedMail
	for _, p := range m.take().mails {
		mails = append(mails, p.mail)
	}
	if msg := wire.AppendMailFrame(nil, wire.OpSend, 1, func(b []byte) []byte { return wire.AppendSend(b, mails) }); len(mails) == 0 || len(msg) > wire.MaxMailMessage {
		t.Errorf("%d mails in %d bytes, at most %d", len(mails), len(msg), wire.MaxMailMessage)
	}
}

// TestReadingEndsWithAReason checks that a caller hears why there is no more mail.
func TestReadingEndsWithAReason(t *testing.T) {
	f := newFixture(t)
	last := func(ctx context.Context, box string, r Read) (err error) {
		n := 0
		for _, err = range f.ReadMail(ctx, box, r) {
			n++
		}
		if n != 1 {
			t.Errorf("%d results", n)
		}
		return err
	}
	if err := last(f.ctx(), "ceo", Read{}); !errors.Is(err, client.ErrNodeDown) {
		t.Errorf("no node: %v", err)
	}
	f.serve()
	if err := last(f.ctx(), "agent:cfo", Read{}); !errors.Is(err, wire.ErrNotFound) {
		t.Errorf("no such mailbox: %v", err)
	}
	if err := last(f.ctx(), "ceo", Read{Credit: -1}); err == nil {
		t.Error("a credit of -1 has no error")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := last(ctx, "ceo", Read{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller ends: %v", err)
	}
	if _, err := f.mailer().Send(f.ctx(), wire.Mail{To: "agent:cfo"}); !errors.Is(err, wire.ErrNotFound) {
		t.Errorf("a mail for no box: %v", err)
	}
	if _, err := f.Mailer().Send(f.ctx(), wire.Mail{To: "agent:ceo", Class: "urgent"}); !errors.Is(err, wire.ErrInvalid) {
		t.Errorf("a mail of no class: %v", err)
	}
}

// TestReplyContinuesItsMail checks that a reply has the ordering key, the class and the trace of
// the mail that it answers, where its program has not set them.
func TestReplyContinuesItsMail(t *testing.T) {
	const trace, other = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-00"
	f := newFixture(t)
	f.serve()
	m, ctx := f.mailer(), f.ctx()
	asked, err := m.Send(ctx, wire.Mail{To: "agent:ceo", ReplyTo: "agent:cto@here", Class: "high", Key: "order-7", Trace: trace, Hops: 2})
	if err != nil {
		t.Fatal(err)
	}
	for d, err := range f.ReadMail(ctx, "agent:ceo", Read{}) {
		if err == nil {
			_, err = d.Reply(ctx, wire.Mail{Type: "plain"})
		}
		if err == nil {
			_, err = d.Reply(ctx, wire.Mail{Type: "own", Class: "low", Key: "k", Trace: other, Correlation: "c", Dedupe: "d"})
		}
		if err = errors.Join(err, d.Ack()); err != nil {
			t.Fatal(err)
		}
		break
	}
	want := map[string]wire.ReceivedMail{
		"plain": {Class: "high", Key: "order-7", Trace: trace, Correlation: asked.ID, Hops: 3},
		"own":   {Class: "low", Key: "k", Trace: other, Correlation: "c", Hops: 3},
	}
	for d, err := range f.ReadMail(ctx, "agent:cto", Read{}) {
		if err != nil {
			t.Fatal(err)
		}
		g, w := d.Mail, want[d.Mail.Type]
		if g.Class != w.Class || g.Key != w.Key || g.Trace != w.Trace || g.Correlation != w.Correlation || g.Hops != w.Hops {
			t.Errorf("the reply %q is %+v, want %+v", g.Type, g, w)
		}
		if delete(want, g.Type); len(want) == 0 {
			break
		}
	}
}
