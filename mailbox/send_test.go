package mailbox

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

func asJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestSendToOwnMailbox(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		names := []string{"agent:ceo", "agent:ceo@alpha", "agent:ceo@" + f.self.String()}
		for _, to := range names {
			sent := f.mail(to, to, nil)
			if sent.Box != "agent:ceo@alpha" || sent.State != "WAITING" || sent.Durability != wire.DurabilityFsynced || sent.Known || sent.ID == "" {
				t.Errorf("to %s: %+v", to, sent)
			}
		}
		if sent := f.mail("agent:ceo", "relaxed", func(m *wire.Mail) { m.Relaxed = true }); sent.Durability != wire.DurabilityRelaxed {
			t.Errorf("relaxed: %+v", sent)
		}
		if _, bodies := f.lease("ceo", "", 9, 0); !slices.Equal(bodies, append(names, "relaxed")) {
			t.Errorf("leased %q", bodies)
		}
	})
}

// Where the node wants all mail durable, no mail is relaxed, however it is sent.
func TestDurableNodeRelaxesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailer.composer.durable = true
		f.mailbox("ceo", nil)
		if sent := f.mail("agent:ceo", "first", func(m *wire.Mail) { m.Relaxed = true }); sent.Durability != wire.DurabilityFsynced {
			t.Errorf("%+v", sent)
		}
		now := time.Now()
		letter, err := proto.AppendLetter(nil, &proto.Letter{Class: proto.Normal, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Flags: proto.LetterRelaxed, Body: []byte("third")})
		f.must(err)
		for _, q := range []*Queued{
			f.QueueMails([]wire.Mail{{To: "agent:ceo", Body: []byte("second"), Relaxed: true}}),
			f.QueueLetters([]Letter{{[]byte("agent:ceo"), letter}}),
		} {
			if q.runs[0].relaxed {
				t.Error("it is relaxed")
			}
			f.must(q.Wait(t.Context())[0].Err)
		}
		if _, bodies := f.lease("ceo", "", 9, 0); !slices.Equal(bodies, []string{"first", "second", "third"}) {
			t.Errorf("leased %q", bodies)
		}
	})
}

// Outcomes that wait to be told hold nothing else of their mail.
func TestOutcomesHoldNoMail(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		q := f.QueueMails([]wire.Mail{{To: "agent:ceo"}, {To: "agent:ceo@beta"}})
		for _, o := range q.Wait(t.Context()) {
			f.must(o.Err)
		}
		if q.runs != nil {
			t.Errorf("it has %d runs of mail", len(q.runs))
		}
		q.Free()
	})
}

// Each mail of a call has its own result, and those for one box keep their order.
func TestSendMany(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("desk", nil)
		var mails []wire.Mail
		var want []string
		for i := range 1200 { // more than the broker takes at once, by number and by size
			m := wire.Mail{To: "agent:ceo", Body: []byte(strings.Repeat("x", 2000) + string(rune('a'+i%26))), Relaxed: i%100 == 99}
			want = append(want, string(m.Body))
			mails = append(mails, m)
		}
		mails[7].To, mails[8].To, mails[9].To = "agent:none", "agent:desk", "beta"
		sent, errs := f.Send(t.Context(), mails)
		for i := range mails {
			switch i {
			case 7:
				f.refused(errs[i], wire.ErrNotFound, "mailbox add none")
			case 9:
				f.refused(errs[i], wire.ErrInvalid, "has no mail")
			default:
				if errs[i] != nil || (sent[i].Durability == wire.DurabilityRelaxed) != mails[i].Relaxed {
					t.Fatalf("mail %d: %+v, %v", i, sent[i], errs[i])
				}
			}
		}
		want = slices.Delete(want, 7, 10)
		var got []string
		for len(got) < len(want) {
			_, bodies := f.lease("ceo", "", wire.MaxMailBatch, 0)
			if len(bodies) == 0 {
				break
			}
			got = append(got, bodies...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d mails in another order", len(got))
		}
		if _, bodies := f.lease("desk", "", 9, 0); len(bodies) != 1 {
			t.Errorf("the other box has %d mails", len(bodies))
		}
		if sent, errs := f.Send(t.Context(), nil); len(sent)+len(errs) != 0 {
			t.Errorf("no mail: %v, %v", sent, errs)
		}
	})
}

func TestSendRefuses(t *testing.T) {
	long := strings.Repeat("x", 1000)
	at := func(d time.Duration) time.Time { return time.Now().Add(d) }
	tests := []struct {
		name   string
		to     string
		change func(*wire.Mail)
		want   error
		says   string
	}{
		{"no such mailbox", "agent:none", nil, wire.ErrNotFound, "there is no agent:none@alpha on this node; make it with balefire-node mailbox add none"},
		{"no such topic", "topic:none", nil, wire.ErrNotFound, "there is no topic:none on this node; make it with balefire-node topic add none"},
		{"a node", "beta", nil, wire.ErrInvalid, `"beta" has no mail: use agent:NAME@NODE or topic:NAME`},
		{"a queue", "queue:build", nil, wire.ErrInvalid, "has no mail"},
		{"all", "all", nil, wire.ErrInvalid, "has no mail"},
		{"nobody", "", nil, wire.ErrInvalid, "target"},
		{"an unknown node", "agent:ceo@delta", nil, wire.ErrNotFound, "known peers: beta, gamma"},
		{"a bad name", "agent:C E O", nil, wire.ErrInvalid, "1-63 of a-z"},
		{"a large body", "agent:ceo", func(m *wire.Mail) { m.Body = make([]byte, proto.MaxInlineBody+1) }, wire.ErrTooLarge, "body of 262145 bytes: a mail has at most 262144"},
		{"a body that the box does not take", "agent:small", func(m *wire.Mail) { m.Body = make([]byte, 1000) }, wire.ErrTooLarge, "agent:small@alpha: 1110 bytes, the box takes 500"},
		{"a subject for a mailbox", "agent:ceo", func(m *wire.Mail) { m.Subject = "a.b" }, wire.ErrInvalid, "only a mail to a topic has a subject"},
		{"a filter as subject", "topic:orders", func(m *wire.Mail) { m.Subject = "a.*" }, wire.ErrInvalid, "without * and >"},
		{"an empty word in a subject", "topic:orders", func(m *wire.Mail) { m.Subject = "a..b" }, wire.ErrInvalid, "words with dots between them"},
		{"a long subject", "topic:orders", func(m *wire.Mail) { m.Subject = long }, wire.ErrInvalid, "subject"},
		{"a class", "agent:ceo", func(m *wire.Mail) { m.Class = "urgent" }, wire.ErrInvalid, "urgent"},
		{"a long key", "agent:ceo", func(m *wire.Mail) { m.Key = long }, wire.ErrInvalid, "key of 1000 bytes: the limit is 256"},
		{"a long dedupe key", "agent:ceo", func(m *wire.Mail) { m.Dedupe = long }, wire.ErrInvalid, "dedupe of 1000 bytes: the limit is 256"},
		{"a key with a newline", "agent:ceo", func(m *wire.Mail) { m.Key = "a\nb" }, wire.ErrInvalid, "key \"a\\nb\": must be text without control characters"},
		{"a type that is not UTF-8", "agent:ceo", func(m *wire.Mail) { m.Type = "\xff" }, wire.ErrInvalid, "type"},
		{"a long type", "agent:ceo", func(m *wire.Mail) { m.Type = long }, wire.ErrInvalid, "type of 1000 bytes: the limit is 128"},
		{"a long content type", "agent:ceo", func(m *wire.Mail) { m.ContentType = long }, wire.ErrInvalid, "content_type of 1000 bytes: the limit is 128"},
		{"a long correlation", "agent:ceo", func(m *wire.Mail) { m.Correlation = long }, wire.ErrInvalid, "correlation of 1000 bytes: the limit is 256"},
		{"a long sender", "agent:ceo", func(m *wire.Mail) { m.Sender = long }, wire.ErrInvalid, "sender of 1000 bytes: the limit is 128"},
		{"a word to reply to", "agent:ceo", func(m *wire.Mail) { m.ReplyTo = "beta" }, wire.ErrInvalid, `reply_to: invalid request: "beta" has no mail`},
		{"an unknown node to reply to", "agent:ceo", func(m *wire.Mail) { m.ReplyTo = "agent:a@delta" }, wire.ErrInvalid, "reply_to: not found"},
		{"a bad box for bounces", "agent:ceo", func(m *wire.Mail) { m.BounceTo = long }, wire.ErrInvalid, "bounce_to: "},
		{"a bad trace", "agent:ceo", func(m *wire.Mail) { m.Trace = "01-2" }, wire.ErrInvalid, "traceparent"},
		{"too many labels", "agent:ceo", func(m *wire.Mail) { m.Labels = numbered(33, "v") }, wire.ErrInvalid, "33 labels: the limit is 32"},
		{"labels that are too large together", "agent:ceo", func(m *wire.Mail) { m.Labels = numbered(32, long[:250]) }, wire.ErrInvalid, "bytes of entries such as labels, at most 4096"},
		{"a label with a space", "agent:ceo", func(m *wire.Mail) { m.Labels = map[string]string{"a b": "c"} }, wire.ErrInvalid, `label "a b": use a name of 1-64 bytes without spaces and =`},
		{"a long label", "agent:ceo", func(m *wire.Mail) { m.Labels = map[string]string{"a": long} }, wire.ErrInvalid, `label "a": use`},
		{"too many hops", "agent:ceo", func(m *wire.Mail) { m.Hops = 17 }, wire.ErrInvalid, "hops 17: must be from 0 to 16"},
		{"a negative ttl", "agent:ceo", func(m *wire.Mail) { m.TTL = -1 }, wire.ErrInvalid, "must be from 1ms to 30 days"},
		{"a tiny ttl", "agent:ceo", func(m *wire.Mail) { m.TTL = 1 }, wire.ErrInvalid, "must be from 1ms to 30 days"},
		{"a long ttl", "agent:ceo", func(m *wire.Mail) { m.TTL = wire.Duration(proto.MaxTTL + 1) }, wire.ErrInvalid, "must be from 1ms to 30 days"},
		{"a negative delay", "agent:ceo", func(m *wire.Mail) { m.Delay = -1 }, wire.ErrInvalid, "delay -1ns: must not be negative"},
		{"delay and at", "agent:ceo", func(m *wire.Mail) { m.Delay, m.At = 1, at(time.Hour) }, wire.ErrInvalid, "delay and at are both given"},
		{"at behind the ttl", "agent:ceo", func(m *wire.Mail) { m.TTL, m.At = wire.Duration(time.Hour), at(time.Hour) }, wire.ErrInvalid, "when its ttl has ended"},
		{"a delay behind the default ttl", "agent:ceo", func(m *wire.Mail) { m.Delay = wire.Duration(8 * 24 * time.Hour) }, wire.ErrInvalid, "when its ttl has ended"},
		{"a box that takes nothing", "agent:draining", nil, wire.ErrRefused, "agent:draining@alpha: the box takes no new mail"},
		{"a full box", "agent:full", nil, wire.ErrFull, "agent:full@alpha: the box is full"},
		{"a key that was used for another mail", "agent:ceo", func(m *wire.Mail) { m.Dedupe, m.Type = "inv-1", "other" }, wire.ErrKeyConflict, "the dedupe key was used for another mail"},
	}
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("small", func(s *wire.MailboxSettings) { s.Bytes = ptr(int64(500)) })
		f.mailbox("full", func(s *wire.MailboxSettings) { s.Mails = ptr(1) })
		f.mailbox("draining", func(s *wire.MailboxSettings) { s.Draining = ptr(true) })
		f.topic("orders")
		f.mail("agent:full", "x", nil)
		f.mail("agent:ceo", "hello", func(m *wire.Mail) { m.Dedupe = "inv-1" })
		for _, tt := range tests {
			if _, err := f.trySend(tt.to, "hello", tt.change); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %v, want %v that says %q", tt.name, err, tt.want, tt.says)
			}
		}
		if v := f.box("ceo"); v.Waiting != 1 || v.Next != 2 {
			t.Errorf("%d mails wait, the next is %d", v.Waiting, v.Next)
		}
	})
}

// numbered returns n labels with a value.
func numbered(n int, value string) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[string(rune('A'+i))] = value
	}
	return m
}

func TestSendAtTheLimits(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.topic("orders", "all")
		f.mail("agent:ceo", strings.Repeat("x", proto.MaxInlineBody), func(m *wire.Mail) {
			m.TTL, m.Delay, m.Hops = wire.Duration(proto.MaxTTL), wire.Duration(proto.MaxTTL-time.Second), 16
			m.Key, m.Dedupe, m.Correlation, m.Type = strings.Repeat("k", 256), strings.Repeat("d", 256), strings.Repeat("c", 256), strings.Repeat("t", 128)
			m.Labels = numbered(32, "v")
		})
		f.mail("topic:orders", "", func(m *wire.Mail) { m.Subject = strings.Repeat("s", 256) })
	})
}

func TestDedupe(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("desk", nil)
		dedupe := func(m *wire.Mail) { m.Dedupe = "inv-1" }
		first := f.mail("agent:ceo", "hello", dedupe)
		again := f.mail("agent:ceo@alpha", "hello", dedupe)
		if first.Known || !again.Known || again.ID != first.ID {
			t.Errorf("%+v, then %+v", first, again)
		}
		_, err := f.trySend("agent:ceo", "other", dedupe)
		f.refused(err, wire.ErrKeyConflict, "agent:ceo@alpha: the dedupe key was used for another mail")
		if other := f.mail("agent:desk", "other", dedupe); other.Known {
			t.Error("a dedupe key is of one box")
		}
		f.ack("ceo", "", f.one("ceo", "", "hello"))
		if again := f.mail("agent:ceo", "hello", dedupe); !again.Known || again.ID != first.ID {
			t.Errorf("after its end: %+v", again)
		}
	})
}

func TestSendLater(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		begin := time.Now()
		f.mail("agent:ceo", "delay", func(m *wire.Mail) { m.Delay = wire.Duration(time.Minute) })
		f.mail("agent:ceo", "at", func(m *wire.Mail) { m.At = begin.Add(2 * time.Minute) })
		f.mail("agent:ceo", "past", func(m *wire.Mail) { m.At = begin.Add(-time.Hour) })
		for _, want := range []struct {
			body  string
			after time.Duration
		}{{"past", 0}, {"delay", time.Minute}, {"at", 2 * time.Minute}} {
			got, bodies := f.lease("ceo", "", 9, 5*time.Minute)
			if late := time.Since(begin) - want.after; !slices.Equal(bodies, []string{want.body}) || late < 0 || late > time.Second {
				t.Fatalf("%q after %v, want %q after %v", bodies, time.Since(begin), want.body, want.after)
			}
			f.ack("ceo", "", got[0])
		}
	})
}

func TestTTL(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mail("agent:ceo", "short", func(m *wire.Mail) { m.TTL = wire.Duration(time.Minute) })
		f.mail("agent:ceo", "default", nil)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if v := f.box("ceo"); v.Waiting != 1 || v.Ended.Expired != 1 {
			t.Errorf("%d wait, %d have expired", v.Waiting, v.Ended.Expired)
		}
		if d := f.one("ceo", "", "default").Mail; d.NotAfter.Sub(d.Created) != 7*24*time.Hour {
			t.Errorf("the default ttl is %v", d.NotAfter.Sub(d.Created))
		}
	})
}
