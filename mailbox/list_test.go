package mailbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balefire/balefire/wire"
)

// Boxes are listed by name, page by page; one that is removed meanwhile changes nothing else.
func TestPagesOfBoxes(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		for i := range 5 {
			f.mailbox(fmt.Sprint("box-", i), nil)
		}
		f.topic("orders", "all")
		pages := func(kind string, limit int) (names []string) {
			for cursor := ""; ; {
				p, err := f.Page(t.Context(), kind, cursor, limit)
				f.must(err)
				for _, v := range p.Items {
					names = append(names, strings.TrimSuffix(v.Name, "@alpha"))
				}
				if cursor = p.Next; cursor == "" {
					return names
				}
				names = append(names, "|")
				_ = f.Remove(t.Context(), "box-1")
			}
		}
		if got := strings.Join(pages(wire.BoxMailbox, 5), " "); got != "agent:box-0 agent:box-1 agent:box-2 agent:box-3 agent:box-4" {
			t.Errorf("one page: %s", got)
		}
		if got := strings.Join(pages(wire.BoxMailbox, 2), " "); got != "agent:box-0 agent:box-1 | agent:box-2 agent:box-3 | agent:box-4" {
			t.Errorf("pages of two: %s", got)
		}
		if got := strings.Join(pages(wire.BoxTopic, 0), " "); got != "topic:orders" {
			t.Errorf("topics: %s", got)
		}
		_, err := f.Page(t.Context(), wire.BoxTopic, "", wire.MaxPage+1)
		f.refused(err, wire.ErrInvalid, "must be from 1 to 1000")
	})
}

// One subscription is shown as in its topic.
func TestShowSubscription(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		_, err := f.GetSubscription(t.Context(), "topic:orders", "eu")
		f.refused(err, wire.ErrNotFound, "topic add orders")
		f.topic("orders", "eu", "us")
		f.mail("topic:orders", "a", nil)
		f.lease("topic:orders", "us", 1, 0)
		for i, name := range []string{"eu", "us"} {
			v, err := f.GetSubscription(t.Context(), "topic:orders", name)
			f.must(err)
			if got, want := asJSON(t, v), asJSON(t, f.box("topic:orders").Subscriptions[i]); got != want || *v.Waiting != 1 || v.Leased != i {
				t.Errorf("%s is %s, in its topic %s", name, got, want)
			}
		}
		_, err = f.GetSubscription(t.Context(), "topic:orders", "asia")
		f.refused(err, wire.ErrNotFound, "there is no topic:orders/asia")
		_, err = f.GetSubscription(t.Context(), "topic:orders", "")
		f.refused(err, wire.ErrInvalid, "name one of its subscriptions")
	})
}

func TestMails(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.topic("orders", "all")
		start := time.Now()
		for i, class := range []string{"low", "high", "normal", "critical"} {
			f.mail("agent:ceo", fmt.Sprint(i), func(m *wire.Mail) { m.Class, m.Key = class, fmt.Sprint("k", i%2) })
			f.mail("topic:orders", fmt.Sprint(i), func(m *wire.Mail) { m.Subject = fmt.Sprintf("eu.%d.x", i) })
			time.Sleep(time.Minute)
		}
		d, _ := f.lease("ceo", "", 2, 0) // the heads of the two keys
		f.settle("ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: d[0].Lease, Final: true}}, Defer: []wire.DeferMail{{Lease: d[1].Lease, Delay: wire.Duration(time.Hour)}}})
		f.lease("ceo", "", 1, 0)
		died := time.Now()
		for _, tt := range []struct {
			name, box, sub string
			q              wire.MailQuery
			want           string
		}{
			{"all that have not ended", "ceo", "", wire.MailQuery{}, "0 2 3"},
			{"waiting", "ceo", "", wire.MailQuery{State: "WAITING"}, "2"},
			{"leased", "ceo", "", wire.MailQuery{State: "LEASED"}, "3"},
			{"retrying", "ceo", "", wire.MailQuery{State: "RETRYING"}, "0"},
			{"dead", "ceo", "", wire.MailQuery{State: "DEAD"}, "1"},
			{"dead of a class", "ceo", "", wire.MailQuery{State: "DEAD", Class: "low"}, ""},
			{"dead since", "ceo", "", wire.MailQuery{State: "DEAD", Since: start.Add(30 * time.Second)}, "1"},
			{"dead until", "ceo", "", wire.MailQuery{State: "DEAD", Until: start.Add(30 * time.Second)}, ""},
			{"of a class", "ceo", "", wire.MailQuery{Class: "normal"}, "2"},
			{"of a key", "ceo", "", wire.MailQuery{Key: "k0"}, "0 2"},
			{"of no key", "ceo", "", wire.MailQuery{Key: "k"}, ""},
			{"since", "ceo", "", wire.MailQuery{Since: start.Add(2 * time.Minute)}, "2 3"},
			{"until", "ceo", "", wire.MailQuery{Until: start.Add(2 * time.Minute)}, "0"},
			{"of a subject", "topic:orders", "all", wire.MailQuery{Subject: "eu.1.>"}, "1"},
			{"of subjects", "topic:orders", "all", wire.MailQuery{Subject: "eu.*.x", Since: start.Add(time.Second)}, "1 2 3"},
			{"from a cursor", "topic:orders", "all", wire.MailQuery{Cursor: "3"}, "2 3"},
		} {
			if got := strings.Join(f.mails(tt.box, tt.sub, tt.q), " "); got != tt.want {
				t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
			}
		}
		dead, _, err := f.Mails(t.Context(), "ceo", "", wire.MailQuery{State: "DEAD"})
		f.must(err)
		if m := dead[0]; m.Accepted.Sub(start) != time.Minute || m.Died == nil || !m.Died.Equal(died) || m.Redriven || m.Seq != 2 {
			t.Errorf("dead letter %s", asJSON(t, m))
		}
		for _, tt := range []struct {
			box, sub string
			q        wire.MailQuery
			want     error
			says     string
		}{
			{"ceo", "", wire.MailQuery{State: "DONE"}, wire.ErrInvalid, `state "DONE": must be WAITING, LEASED, RETRYING, DEAD or KEPT`},
			{"ceo", "", wire.MailQuery{Class: "urgent"}, wire.ErrInvalid, "urgent"},
			{"ceo", "", wire.MailQuery{Cursor: "x"}, wire.ErrInvalid, `cursor "x": must be that of a page before`},
			{"ceo", "", wire.MailQuery{Subject: "a..b"}, wire.ErrInvalid, `subject "a..b"`},
			{"ceo", "", wire.MailQuery{Limit: 1001}, wire.ErrInvalid, "limit 1001: must be from 1 to 1000"},
			{"none", "", wire.MailQuery{}, wire.ErrNotFound, "mailbox add none"},
			{"topic:orders", "", wire.MailQuery{}, wire.ErrInvalid, "name one of its subscriptions"},
			{"topic:orders", "none", wire.MailQuery{}, wire.ErrNotFound, "sub add orders none"},
		} {
			if _, _, err := f.Mails(t.Context(), tt.box, tt.sub, tt.q); !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%+v: %v, want %v that says %q", tt.q, err, tt.want, tt.says)
			}
		}
	})
}

// A list of more mails than are looked at at once comes in pages, each mail once.
func TestPages(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		const n = scanned + 100
		mails := make([]wire.Mail, n)
		for i := range mails {
			mails[i] = wire.Mail{To: "agent:ceo", Body: fmt.Append(nil, i), Class: "normal"}
		}
		mails[3].Class, mails[scanned-1].Class, mails[scanned].Class, mails[n-1].Class = "high", "high", "high", "high"
		sent, errs := f.Send(t.Context(), mails)
		f.must(errors.Join(errs...))
		for _, q := range []wire.MailQuery{{Limit: 1000}, {}, {Limit: scanned / 5}, {Class: "high", Limit: 1}, {Class: "high", Limit: 2}} {
			var seqs []uint64
			for pages := 0; ; pages++ {
				page, next, err := f.Mails(t.Context(), "ceo", "", q)
				f.must(err)
				if len(page) > max(q.Limit, 50) || len(page) == 0 {
					t.Fatalf("%+v: a page of %d mails", q, len(page))
				}
				for _, m := range page {
					seqs = append(seqs, m.Seq)
				}
				if q.Cursor = next; next == "" {
					break
				}
			}
			want := n
			if q.Class != "" {
				want = 4
			}
			if len(seqs) != want || !slices.IsSorted(seqs) || len(slices.Compact(seqs)) != want {
				t.Errorf("%+v: %d mails, want %d", q, len(seqs), want)
			}
		}
		m, err := f.Mail(t.Context(), sent[n-1].ID)
		f.must(err)
		if string(m.Body) != fmt.Sprint(n-1) || m.State != "WAITING" {
			t.Errorf("the last one: %+v", m)
		}
	})
}

func TestMailByID(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.topic("orders", "a", "b")
		first := f.mail("agent:ceo", "first", nil)
		second := f.mail("agent:ceo", "second", nil)
		time.Sleep(time.Hour)
		third := f.mail("topic:orders", "third", nil) // in two subscriptions
		find := func(id, want string) {
			t.Helper()
			m, err := f.Mail(t.Context(), id)
			if err != nil || string(m.Body) != want {
				t.Errorf("mail %s: %s, %v, want %s", id, m.Body, err, want)
			}
		}
		find(first.ID, "first")
		find(strings.ToUpper(second.ID), "second")
		find(third.ID[:10], "third")
		_, err := f.Mail(t.Context(), first.ID[:8])
		f.refused(err, wire.ErrInvalid, min(first.ID, second.ID)+" and "+max(first.ID, second.ID)+" begin with it: give more of it")
		for _, id := range []string{"0198c0de-0000-7000-8000-000000000000", "x"} {
			_, err = f.Mail(t.Context(), id)
			f.refused(err, wire.ErrNotFound, fmt.Sprintf("no mail %q is here: it has ended and is not kept", id))
		}
		d, _ := f.lease("ceo", "", 2, 0)
		f.settle("ceo", "", wire.SettleMail{Ack: []string{d[1].Lease}, Nack: []wire.NackMail{{Lease: d[0].Lease, Final: true}}})
		find(first.ID[:8], "first") // a dead letter; the other one has ended
		_, err = f.Mail(t.Context(), second.ID)
		f.refused(err, wire.ErrNotFound, "it has ended")
	})
}
