package client_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/balefire/balefire/api"
	"github.com/balefire/balefire/wire"
)

// TestMailCrossesTheSocketWhole checks that no field of a mail is lost or changed on the way,
// alone and in a batch.
func TestMailCrossesTheSocketWhole(t *testing.T) {
	var got []wire.Mail
	c, _, _ := canned(t, map[string]any{
		"POST /v1/mail": func(r *http.Request) any {
			if r.Header.Get("Content-Type") == "application/octet-stream" {
				m, err := wire.MailOfQuery(r.URL.Query())
				if err == nil {
					m.Body, err = io.ReadAll(r.Body)
				}
				if err != nil {
					return err
				}
				got = append(got, m)
				return testSent
			}
			got = append(got, wire.Mail{})
			if err := json.NewDecoder(r.Body).Decode(&got[len(got)-1]); err != nil {
				return err
			}
			return testSent
		},
		"POST /v1/mail/batch": func(r *http.Request) any {
			return takeAll(r, func(m wire.Mail) error { got = append(got, m); return nil })
		},
	})
	full := wire.Mail{
		To: "topic:orders", Subject: "eu.created", Class: "critical", Key: "a key, \"quoted\" & ünï", Dedupe: "d", Producer: strings.Repeat("0f", 16), Number: 1 << 62, ID: mailID, TTL: wire.Duration(90 * time.Minute), Delay: wire.Duration(1500 * time.Millisecond),
		At: start.Add(1234567 * time.Nanosecond), Type: "order", ContentType: "application/x-thing", Body: []byte{0, 1, 0xff}, ReplyTo: "agent:ceo", Correlation: "c", Sender: "codex", BounceTo: "agent:desk",
		Labels: map[string]string{"a": "b=c", "d": ""}, Trace: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", Hops: 3, Receipt: true, Notify: "done", Relaxed: true,
	}
	for f := range reflect.TypeFor[wire.Mail]().Fields() {
		if f.Name != "Stream" && reflect.ValueOf(full).FieldByIndex(f.Index).IsZero() {
			t.Errorf("field %s is not covered", f.Name)
		}
	}
	if _, err := c.SendMail(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	if _, errs := c.SendMails(t.Context(), []wire.Mail{full, full}); errors.Join(errs...) != nil {
		t.Fatal(errs)
	}
	streamed := full
	streamed.Body, streamed.Stream = nil, bytes.NewReader(full.Body)
	if _, err := c.SendMail(t.Context(), streamed); err != nil {
		t.Fatal(err)
	}
	if _, errs := c.SendMails(t.Context(), []wire.Mail{streamed}); !errors.Is(errs[0], wire.ErrInvalid) {
		t.Errorf("a stream in a batch: %v", errs[0])
	}
	if want := []wire.Mail{full, full, full, full}; !reflect.DeepEqual(got, want) {
		t.Errorf("mails\n%+v, want\n%+v", got, want)
	}
}

// takeAll answers a batch like a node that takes the mails for which take returns nil.
func takeAll(r *http.Request, take func(wire.Mail) error) any {
	var b wire.MailBatch
	for dec := json.NewDecoder(r.Body); dec.More(); {
		var m wire.Mail
		if err := dec.Decode(&m); err != nil {
			return err
		}
		item := wire.MailBatchItem{Status: http.StatusAccepted, Mail: &wire.SentMail{ID: mailID, Box: m.To}}
		if err := take(m); err != nil {
			p := api.ProblemOf(err)
			item = wire.MailBatchItem{Status: p.Status, Problem: p}
		}
		b.Items = append(b.Items, item)
	}
	return b
}

// TestManyMails checks that more mails than fit in a batch arrive in order, that a mail that
// is refused does not affect others, and that a second call sends each with the same number.
func TestManyMails(t *testing.T) {
	var boxes []string
	var numbers []number
	c, n, _ := canned(t, map[string]any{"POST /v1/mail/batch": func(r *http.Request) any {
		return takeAll(r, func(m wire.Mail) error {
			boxes, numbers = append(boxes, m.To), append(numbers, number{m.Dedupe, m.Producer, m.Number, m.ID})
			if m.To == "agent:7" {
				return wire.ErrFull
			}
			return nil
		})
	}})
	mails := make([]wire.Mail, 2*wire.MaxMailBatch+7)
	for i := range mails {
		mails[i].To = fmt.Sprintf("agent:%d", i)
	}
	mails[3].Dedupe, mails[5].Body, mails[6].Body = "mine", make([]byte, 4<<20), make([]byte, 4<<20)
	sent, errs := c.SendMails(t.Context(), mails)
	for i := range mails {
		if i == 7 {
			if !errors.Is(errs[i], wire.ErrFull) {
				t.Errorf("the mail that is refused: %v", errs[i])
			}
		} else if errs[i] != nil || sent[i].Box != mails[i].To || boxes[i] != mails[i].To {
			t.Fatalf("mail %d went to %s as %+v, %v", i, boxes[i], sent[i], errs[i])
		}
	}
	if requests := n.Requests(); len(requests) != 4 { // two large bodies do not fit in one
		t.Errorf("%d batches, want 4", len(requests))
	}
	ids, last := map[string]bool{}, map[string]uint64{}
	for i, n := range numbers {
		if i == 3 {
			if n != (number{dedupe: "mine"}) {
				t.Errorf("the mail with a key has %+v", n)
			}
			continue
		}
		if n.dedupe != "" || len(n.producer) != 32 || n.number != last[n.producer]+1 || len(n.id) != 36 || n.id[14] != '7' || ids[n.id] {
			t.Fatalf("mail %d has %+v after number %d", i, n, last[n.producer])
		}
		ids[n.id], last[n.producer] = true, n.number
	}
	if len(last) != 2 { // the one of the mail that was refused is used no more
		t.Errorf("the producers have sent %v", last)
	}
	first := numbers
	boxes, numbers = nil, nil
	c.SendMails(t.Context(), mails)
	if !slices.Equal(numbers, first) {
		t.Error("the second call used other numbers")
	}
}

// A number is what tells a mail from others.
type number struct {
	dedupe, producer string
	number           uint64
	id               string
}

// TestConcurrentCallsHaveTheirOwnProducers checks that the numbers of each producer arrive in
// order, also if many calls are under way, and that a producer is used again.
func TestConcurrentCallsHaveTheirOwnProducers(t *testing.T) {
	var mu sync.Mutex
	last := map[string]uint64{}
	c, _, _ := canned(t, map[string]any{"POST /v1/mail": func(r *http.Request) any {
		var m wire.Mail
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if m.Number != last[m.Producer]+1 {
			t.Errorf("number %d after %d", m.Number, last[m.Producer])
		}
		last[m.Producer] = m.Number
		return testSent
	}})
	const callers, each = 8, 20
	var work sync.WaitGroup
	for range callers {
		work.Go(func() {
			for range each {
				if _, err := c.SendMail(t.Context(), wire.Mail{To: "agent:ceo"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	work.Wait()
	sum := uint64(0)
	for _, n := range last {
		sum += n
	}
	if len(last) > callers || sum != callers*each {
		t.Errorf("%d producers sent %d mails", len(last), sum)
	}
}

// TestMailIsSentAgain checks that a connection that was closed in place of an answer is no
// error: the mail is sent again with the same number.
func TestMailIsSentAgain(t *testing.T) {
	calls := 0
	answer := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if calls++; calls%2 == 0 { // on a connection that answered before
				panic(http.ErrAbortHandler)
			}
			_ = json.NewEncoder(w).Encode(v)
		}
	}
	c, n, _ := canned(t, map[string]any{
		"POST /v1/mail":       answer(testSent),
		"POST /v1/mail/batch": answer(wire.MailBatch{Items: []wire.MailBatchItem{{Mail: &testSent}}}),
	})
	for range 2 {
		if _, err := c.SendMail(t.Context(), wire.Mail{To: "agent:ceo"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, errs := c.SendMails(t.Context(), []wire.Mail{{To: "agent:ceo"}}); errs[0] != nil {
		t.Fatal(errs)
	}
	r := n.Requests()
	if len(r) != 5 || r[1] != r[2] || r[3] != r[4] || r[0] == r[1] || !strings.Contains(r[2], `"number":2,`) {
		t.Errorf("the requests were %q", r)
	}
}

// TestNamesOfBoxes checks that a name that is missing or of the other kind is refused.
func TestNamesOfBoxes(t *testing.T) {
	c, _ := real(t)
	for _, name := range [][2]string{{"", ""}, {".", ""}, {"topic:orders", ""}, {"", "billing"}, {"agent:ceo", "billing"}} {
		if _, err := c.LeaseMail(t.Context(), name[0], name[1], wire.LeaseMail{}); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("lease %q: %v", name, err)
		}
	}
}
