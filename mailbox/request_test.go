package mailbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A request whose wait the node ends when it stops was sent: its reply may be asked for after the start.
func TestRequestWhoseNodeStops(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		var waits sync.WaitGroup
		ids := make(chan string, 2)
		waits.Go(func() {
			r, err := f.Request(t.Context(), wire.MailRequest{Mail: wire.Mail{To: "agent:ceo", Body: []byte("a")}, Wait: wire.Wait(time.Minute)})
			if err != nil || r.Reply != nil {
				t.Errorf("%s, %v", asJSON(t, r), err)
			}
			ids <- r.ID
		})
		waits.Go(func() {
			raw, err := proto.AppendLetter(nil, &proto.Letter{ID: proto.NewMailID(time.Now()), Created: time.Now().UnixMilli(), NotAfter: time.Now().Add(time.Hour).UnixMilli(), Class: proto.Normal, Body: []byte("b")})
			f.must(err)
			sent, d, err := f.RequestLetter(t.Context(), Letter{To: []byte("agent:ceo"), Letter: raw}, nil, time.Minute)
			if err != nil || d.Letter != nil {
				t.Errorf("%+v, %d bytes, %v", sent, len(d.Letter), err)
			}
			ids <- sent.ID
		})
		time.Sleep(time.Second)
		f.restart()
		waits.Wait()
		for range 2 {
			f.awaited(<-ids, 0, "")
		}
	})
}

// request sends a request without waiting, and returns it with its reply box.
func (f *fixture) request(body string, change func(*wire.MailRequest)) (wire.MailReply, string) {
	f.t.Helper()
	r := wire.MailRequest{Mail: wire.Mail{To: "agent:ceo", Body: []byte(body)}}
	if change != nil {
		change(&r)
	}
	before := f.replies.names()
	sent, err := f.Request(f.t.Context(), r)
	f.must(err)
	for _, name := range f.replies.names() {
		if !slices.Contains(before, name) {
			return sent, name
		}
	}
	return sent, ""
}

// answer replies to the only mail of ceo.
func (f *fixture) answer(body, with string) {
	f.t.Helper()
	d := f.one("ceo", "", body)
	f.mail(d.Mail.ReplyTo, with, func(m *wire.Mail) { m.Correlation, m.Hops = d.Mail.Correlation, d.Mail.Hops+1 })
	f.ack("ceo", "", d)
}

// awaited checks what the reply to a request is now; "": there is none.
func (f *fixture) awaited(id string, wait time.Duration, want string) {
	f.t.Helper()
	r, err := f.Reply(f.t.Context(), id, wait)
	switch {
	case err != nil:
		f.t.Errorf("reply to %s: %v, want %q", id, err, want)
	case want == "" && r.Reply != nil, want != "" && (r.Reply == nil || string(r.Reply.Body) != want):
		f.t.Errorf("reply to %s: %s, want %q", id, asJSON(f.t, r), want)
	}
}

// A request waits for its reply, and may be asked for it again.
func TestRequestIsReplied(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			time.Sleep(20 * time.Second)
			f.answer("how many?", "five")
		}()
		began := time.Now()
		r, err := f.Request(t.Context(), wire.MailRequest{Mail: wire.Mail{To: "agent:ceo", Body: []byte("how many?")}, Wait: wire.Wait(time.Minute)})
		f.must(err)
		if r.Reply == nil || string(r.Reply.Body) != "five" || r.Reply.Correlation != r.ID || time.Since(began) != 20*time.Second {
			t.Errorf("after %s: %s", time.Since(began), asJSON(t, r))
		}
		<-answered
		f.awaited(r.ID, 0, "five")
		f.awaited(strings.ToUpper(r.ID), 0, "five")
		f.restart()
		f.awaited(r.ID, 0, "five")
		time.Sleep(replyGiven + 2*replySweep)
		_, err = f.Reply(t.Context(), r.ID, 0)
		f.refused(err, wire.ErrNotFound, "nobody waits for a reply")
		if n := len(f.replies.names()); n > 0 || len(f.events) > 0 {
			t.Errorf("%d reply boxes are left, events %v", n, f.events)
		}
	})
}

// A requester that leaves, or is killed and asks again under its dedupe key, finds the reply
// that came meanwhile, also after a restart of its node.
func TestRequesterComesBack(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		ask := func(wait time.Duration) (wire.MailReply, error) {
			return f.Request(t.Context(), wire.MailRequest{Mail: wire.Mail{To: "agent:ceo", Body: []byte("how many?"), Dedupe: "question-1"}, Wait: wire.Wait(wait)})
		}
		first, err := ask(time.Second)
		f.must(err)
		if first.Reply != nil || first.Known || first.State != "WAITING" {
			t.Errorf("first: %s", asJSON(t, first))
		}
		f.awaited(first.ID, time.Second, "")
		ctx, leave := context.WithCancel(t.Context())
		go func() { time.Sleep(time.Second); leave() }()
		if r, err := f.requests.answer(ctx, first.SentMail, time.Hour); err == nil || r.ID != first.ID {
			t.Errorf("a requester that left: %v, %v", r, err)
		}
		f.answer("how many?", "five")
		f.restart()
		again, err := ask(0)
		f.must(err)
		if !again.Known || again.ID != first.ID || again.Reply == nil || string(again.Reply.Body) != "five" || len(f.replies.names()) != 1 {
			t.Errorf("again, with %d reply boxes: %s", len(f.replies.names()), asJSON(t, again))
		}
		number := func(m *wire.MailRequest) {
			m.Producer, m.Number, m.ID = "000102030405060708090a0b0c0d0e0f", 1, "01a206d9-3c5e-7838-8157-1936a50bdeb9"
		}
		f.request("numbered", number)
		if r, _ := f.request("numbered", number); !r.Known || r.ID != "01a206d9-3c5e-7838-8157-1936a50bdeb9" {
			t.Errorf("a repeated number: %s", asJSON(t, r))
		}
		f.answer("numbered", "six")
		f.awaited("01a206d9-3c5e-7838-8157-1936a50bdeb9", 0, "six")
		if n := len(f.replies.names()); n != 2 {
			t.Errorf("%d reply boxes for two requests", n)
		}
	})
}

// A request that is not delivered ends with the reason.
func TestRequestIsBounced(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		_, err := f.Request(t.Context(), wire.MailRequest{Mail: wire.Mail{To: "agent:none"}})
		f.refused(err, wire.ErrNotFound, "mailbox add none")
		if n := len(f.replies.names()); n > 0 {
			t.Errorf("%d reply boxes of a request that was refused", n)
		}
		r, _ := f.request("broken", nil)
		f.kill("ceo", "", "broken")
		_, err = f.Reply(t.Context(), r.ID, time.Minute)
		f.refused(err, wire.ErrBounced, "mail "+r.ID+" is DEAD: final: broken")
		r, _ = f.request("late", func(r *wire.MailRequest) { r.TTL = wire.Duration(time.Second) })
		_, err = f.Reply(t.Context(), r.ID, time.Minute)
		f.refused(err, wire.ErrBounced, "is EXPIRED")
		_, err = f.Reply(t.Context(), r.ID, 0) // it is told again
		f.refused(err, wire.ErrBounced, "is EXPIRED")
		if err := wire.BouncedError("1", []byte("\x00junk")); !strings.Contains(err.Error(), "mail 1 is BOUNCED: unknown") {
			t.Error(err)
		}
	})
}

// A reply to which nobody listens is kept for an hour, then its sender is told; one that comes
// later is refused for good, not kept waiting.
func TestReplyComesTooLate(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		r, box := f.request("how many?", nil)
		time.Sleep(replyKept - 2*replySweep)
		d := f.one("ceo", "", "how many?")
		f.mail(d.Mail.ReplyTo, "five", func(m *wire.Mail) { m.Sender = "ceo" })
		f.ack("ceo", "", d)
		f.awaited(r.ID, 0, "five")
		other, otherBox := f.request("and now?", nil)
		d = f.one("ceo", "", "and now?")
		f.mail(d.Mail.ReplyTo, "six", func(m *wire.Mail) { m.Sender = "ceo" })
		f.ack("ceo", "", d)
		time.Sleep(replyKept + 2*replySweep)
		if n := len(f.replies.names()); n > 0 {
			t.Errorf("%d reply boxes are left", n)
		}
		_, err := f.Reply(t.Context(), other.ID, 0)
		f.refused(err, wire.ErrNotFound, "")
		if told := f.one("ceo", "", string(f.bounceBody("ceo"))); !strings.Contains(string(told.Mail.Body), `"CANCELLED"`) { // of six alone: five was given
			t.Errorf("told %s", told.Mail.Body)
		}
		for _, name := range []string{box, otherBox} {
			if code := f.arriveFrom(f.beta, name, "", 10); code != proto.CodeDenied {
				t.Errorf("a reply to a box that is gone: %v", code)
			}
		}
	})
}

// A node that lost the answer to its reply, and sends it again when the box is gone, is not told
// that it was refused.
func TestReplyThatWasTakenBefore(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		r, box := f.request("how many?", nil)
		if code := f.arriveFrom(f.beta, box, "", 4); code != proto.CodeOK {
			t.Fatalf("the reply: %v", code)
		}
		f.awaited(r.ID, 0, "\x00\x00\x00\x00")
		time.Sleep(replyGiven + 2*replySweep)
		if n := len(f.replies.names()); n > 0 {
			t.Fatalf("%d reply boxes are left", n)
		}
		f.arrivals-- // the same number
		if code := f.arriveFrom(f.beta, box, "", 4); code != proto.CodeOK {
			t.Errorf("the reply again: %v", code)
		}
		if code := f.arriveFrom(f.beta, box, "", 4); code != proto.CodeDenied {
			t.Errorf("another reply: %v", code)
		}
	})
}

// bounceBody returns the body of the only bounce in a mailbox.
func (f *fixture) bounceBody(name string) []byte {
	f.t.Helper()
	got, _, err := f.Mails(f.t.Context(), name, "", wire.MailQuery{})
	f.must(err)
	if len(got) != 1 || got[0].Type != mail.TypeBounce {
		f.t.Fatalf("%s has %s", name, asJSON(f.t, got))
	}
	return got[0].Body
}

// arriveFrom returns the answer to a mail of a peer for a box: of some type, with a body of
// some bytes.
func (f *fixture) arriveFrom(p proto.PeerID, name, typ string, size int) proto.Code {
	f.t.Helper()
	now := time.Now()
	l := &proto.Letter{
		Class: proto.Normal, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Type: []byte(typ), Body: make([]byte, size),
	}
	if typ == mail.TypeBounce || typ == mail.TypeDone {
		l.BounceOf = proto.NewMailID(now)
	}
	raw, err := proto.AppendLetter(nil, l)
	f.must(err)
	f.arrivals++
	a, err := f.lanes.arrive(f.t.Context(), p, &proto.Bundle{
		Number: f.arrivals, Box: name, Chain: proto.Normal, Runs: []*proto.Run{{Boot: 1, First: f.arrivals, Count: 1}}, Letters: raw,
	})
	f.must(err)
	answer, err := a.Wait(f.t.Context())
	f.must(err)
	if len(answer.GetSkipped()) > 0 {
		return answer.GetSkipped()[0].GetCode()
	}
	return answer.GetCode()
}

// Only who was given a request can reply: the names of reply boxes are secrets, of which no
// two are alike, and with reply_from not even who knows one may send to it, a small forged
// bounce included.
func TestForgedReplies(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		r, name := f.request("how many?", nil)
		guess := "agent:reply-" + strings.Repeat("a", 26) + "@" + f.self.String()
		for _, to := range []string{guess, strings.Replace(name, "reply-", "reply-a", 1), "agent:" + r.ID + "@" + f.self.String()} {
			for _, typ := range []string{"", mail.TypeBounce} {
				if code := f.arriveFrom(f.gamma, to, typ, 10); code == proto.CodeOK {
					t.Errorf("a reply of type %q for %s was taken", typ, to)
				}
			}
		}
		f.awaited(r.ID, 0, "")
		only, name := f.request("and you, beta?", func(r *wire.MailRequest) { r.ReplyFrom = []string{"peer:beta"} })
		for _, typ := range []string{"", mail.TypeBounce} {
			if code := f.arriveFrom(f.gamma, name, typ, 10); code != proto.CodeDenied {
				t.Errorf("a reply of gamma of type %q: %v", typ, code)
			}
		}
		f.awaited(only.ID, 0, "")
		if code := f.arriveFrom(f.beta, name, "", 4); code != proto.CodeOK {
			t.Errorf("the reply of beta: %v", code)
		}
		f.awaited(only.ID, 0, "\x00\x00\x00\x00")
		if n := len(f.replies.names()); n != 2 {
			t.Errorf("two requests have %d names", n)
		}
	})
}

// Requests with bad input are refused and leave nothing.
func TestBadRequests(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		for says, change := range map[string]func(*wire.MailRequest){
			"reply_to and bounce_to": func(r *wire.MailRequest) { r.ReplyTo = "agent:ceo" },
			"bounce_to: the reply":   func(r *wire.MailRequest) { r.BounceTo = "agent:ceo" },
			"from 0 to 10 minutes":   func(r *wire.MailRequest) { r.Wait = wire.Wait(time.Hour) },
			"wait -1s":               func(r *wire.MailRequest) { r.Wait = wire.Wait(-time.Second) },
			"ttl":                    func(r *wire.MailRequest) { r.TTL = -1 },
			"reply_from: ":           func(r *wire.MailRequest) { r.ReplyFrom = []string{"beta"} },
			"65 entries with the node of the box, the limit is 64": func(r *wire.MailRequest) { r.ReplyFrom = make([]string, 65) },
			"hops 17: must be from 0 to 1":                         func(r *wire.MailRequest) { r.Hops = 17 },
		} {
			r := wire.MailRequest{Mail: wire.Mail{To: "agent:ceo"}}
			change(&r)
			_, err := f.Request(t.Context(), r)
			f.refused(err, wire.ErrInvalid, says)
		}
		_, err := f.Reply(t.Context(), "01a206d9-3c5e-7838-8157-1936a50bdeb9", time.Hour)
		f.refused(err, wire.ErrInvalid, "from 0 to 10 minutes")
		_, err = f.NewReplyBox(t.Context(), wire.NewReplyBox{ReplyFrom: []string{"x"}})
		f.refused(err, wire.ErrInvalid, "reply_from")
		_, err = f.SetMailbox(t.Context(), "reply-"+strings.Repeat("a", 26), wire.MailboxSettings{})
		f.refused(err, wire.ErrInvalid, "that of a box for replies")
		f.mailbox("reply-desk", nil)
		if n := len(f.replies.names()); n > 0 || f.box("ceo").Waiting > 0 {
			t.Errorf("%d reply boxes, %d mails", n, f.box("ceo").Waiting)
		}
	})
}

// There are no more than MaxReplyBoxes: a request takes the place of the one whose reply was
// given first, and is refused while all wait.
func TestTooManyRequests(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		ids := make([]string, MaxReplyBoxes)
		for i := range ids {
			r, _ := f.request(fmt.Sprint(i), nil)
			ids[i] = r.ID
		}
		_, err := f.Request(t.Context(), wire.MailRequest{Mail: wire.Mail{To: "agent:ceo"}})
		f.refused(err, wire.ErrFull, "512 requests of this node wait for their replies")
		got, _ := f.lease("ceo", "", 3, 0)
		for _, d := range got[:2] {
			f.mail(d.Mail.ReplyTo, "yes", nil)
			time.Sleep(time.Second)
			f.awaited(d.Mail.ID, 0, "yes")
		}
		f.request("one more", nil)
		_, err = f.Reply(t.Context(), got[0].Mail.ID, 0)
		f.refused(err, wire.ErrNotFound, "")
		f.awaited(got[1].Mail.ID, 0, "yes")
		synctest.Wait()
		if len(f.events) > 0 || len(f.replies.names()) != MaxReplyBoxes {
			t.Errorf("%d reply boxes, events %v", len(f.replies.names()), f.events)
		}
	})
}

// A program has a box for all of its replies as long as it reads it, and for an hour then.
func TestReplyBoxOfAProgram(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		box, err := f.NewReplyBox(t.Context(), wire.NewReplyBox{})
		f.must(err)
		reader, err := f.Read(t.Context(), box.Box, "", wire.LeaseMail{Max: 9, Reader: "program"})
		f.must(err)
		for _, body := range []string{"a", "b"} {
			f.mail("agent:ceo", body, func(m *wire.Mail) { m.ReplyTo, m.Correlation = box.Box, "about "+body })
			f.answer(body, "re "+body)
		}
		for _, want := range []string{"re a", "re b"} {
			got, err := reader.Next(t.Context(), 1)
			f.must(err)
			if string(got[0].Mail.Body) != want || got[0].Mail.Correlation != "about "+want[3:] {
				t.Errorf("%s, want %s", asJSON(t, got), want)
			}
			f.ack(box.Box, "", got[0])
		}
		time.Sleep(3 * replyKept)
		if len(f.replies.names()) != 1 {
			t.Error("the box of a program that reads was removed")
		}
		f.must(reader.Close(t.Context(), false))
		time.Sleep(replyKept - 2*replySweep)
		if len(f.replies.names()) != 1 {
			t.Error("the box was removed early")
		}
		time.Sleep(4 * replySweep)
		if len(f.replies.names()) != 0 {
			t.Error("the box was not removed")
		}
	})
}

// A program that asks for its replies now and then reads its box, although it has no session
// between two questions.
func TestReplyBoxThatIsPolled(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		box, err := f.NewReplyBox(t.Context(), wire.NewReplyBox{})
		f.must(err)
		for range 3 * 60 {
			time.Sleep(time.Minute)
			_, err := f.Lease(t.Context(), box.Box, "", wire.LeaseMail{Max: 9})
			f.must(err)
		}
		time.Sleep(replyKept + 4*replySweep)
		if len(f.replies.names()) != 0 {
			t.Error("the box was not removed")
		}
	})
}

// TestLimitsOfAReplyBox checks how many replies wait in one box, and how many bytes: one more is
// refused with FULL, and what waits is given.
func TestLimitsOfAReplyBox(t *testing.T) {
	for _, tt := range []struct{ body, most int }{
		{1, 10_000},
		{128 << 10, 64 << 20 / (128 << 10)},
	} {
		bubble(t, func(t *testing.T, f *fixture) {
			reply, err := f.NewReplyBox(t.Context(), wire.NewReplyBox{})
			f.must(err)
			sent := 0
			for refused := false; !refused; {
				batch := make([]wire.Mail, 64)
				for i := range batch {
					batch[i] = wire.Mail{To: reply.Box, Body: make([]byte, tt.body)}
				}
				_, errs := f.Send(t.Context(), batch)
				for _, err := range errs {
					if err == nil {
						sent++
					} else if refused = true; !errors.Is(err, wire.ErrFull) {
						t.Fatalf("after %d replies: %v, want FULL", sent, err)
					}
				}
			}
			if sent > tt.most || sent < tt.most*99/100 {
				t.Errorf("%d replies of %d bytes wait, want %d at most", sent, tt.body, tt.most)
			}
			given, err := f.Lease(t.Context(), reply.Box, "", wire.LeaseMail{Max: 1})
			f.must(err)
			f.ack(reply.Box, "", given[0])
		})
	}
}
