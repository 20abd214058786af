package mailbox

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/wire"
)

// S08: a reader is killed between the fetch and the ack, three times and in three ways. The mail
// is delivered again with the same id: at once when the connection breaks or the node starts
// again, and after its lease when the reader had no connection.
func TestAKilledReaderIsFollowedByAnother(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		sent := f.mail("agent:ceo", "hello", nil)
		var leases []string
		next := func(attempt int, redelivered bool) {
			t.Helper()
			d := f.one("ceo", "", "hello")
			if d.Mail.ID != sent.ID || d.Attempt != attempt || d.Redelivered != redelivered || slices.Contains(leases, d.Lease) {
				t.Errorf("%+v, want attempt %d of %s", d, attempt, sent.ID)
			}
			leases = append(leases, d.Lease)
		}
		r, err := f.Read(t.Context(), "ceo", "", wire.LeaseMail{Max: 5, Reader: "first"})
		f.must(err)
		d, err := r.Next(t.Context(), 5)
		f.must(err)
		leases = append(leases, d[0].Lease)
		f.must(r.Close(t.Context(), true))
		began := time.Now()
		next(1, true)
		if took := time.Since(began); took != 0 {
			t.Errorf("after a broken connection: %v", took)
		}
		next(2, true) // the lease of the one before ran out
		if took := time.Since(began); took < 30*time.Second || took > 35*time.Second {
			t.Errorf("after a reader without a connection: %v", took)
		}
		f.restart()
		began = time.Now()
		next(2, true)
		if took := time.Since(began); took != 0 {
			t.Errorf("after a start of the node: %v", took)
		}
		if got, _ := f.lease("ceo", "", 9, 0); len(got) != 0 {
			t.Errorf("%d mails are delivered twice at once", len(got))
		}
		for i, lease := range leases {
			want := wire.SettledStale
			if i == len(leases)-1 {
				want = wire.SettledOK
			}
			if r := f.settle("ceo", "", wire.SettleMail{Ack: []string{lease}}); r[0].Code != want {
				t.Errorf("ack of delivery %d: %s, want %s", i+1, r[0].Code, want)
			}
		}
		if v := f.box("ceo"); v.Ended.Done != 1 || v.Waiting != 0 {
			t.Errorf("%s", asJSON(t, v))
		}
		t.Logf("counted: 1 mail, %d deliveries, 1 ack", len(leases))
	})
}

// S10: an agent that sends itself a mail for each one that it reads is stopped, and is never
// given a mail that it has.
func TestAnAgentThatTriggersItselfIsStopped(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mail("agent:ceo", "0", func(m *wire.Mail) { m.Sender = "ceo" })
		handled := map[string]int{}
		for {
			got, _ := f.lease("ceo", "", 9, time.Minute)
			if len(got) == 0 {
				break
			}
			d := got[0]
			handled[d.Mail.ID]++
			if again, _ := f.lease("ceo", "", 9, time.Second); len(got) != 1 || len(again) != 0 {
				t.Fatalf("while one mail is handled, %d and %d were leased", len(got), len(again))
			}
			_, err := f.trySend("agent:ceo", fmt.Sprint(d.Mail.Hops+1), func(m *wire.Mail) { m.Hops, m.Sender = d.Mail.Hops+1, "ceo" })
			if d.Mail.Hops < 16 {
				f.must(err)
			} else {
				f.refused(err, wire.ErrInvalid, "hops 17: must be from 0 to 16")
			}
			if code := f.ack("ceo", "", d); code != wire.SettledOK {
				t.Errorf("ack: %s", code)
			}
		}
		for id, n := range handled {
			if n != 1 {
				t.Errorf("%s was handled %d times", id, n)
			}
		}
		if v := f.box("ceo"); len(handled) != 17 || v.Ended.Done != 17 || v.Waiting != 0 || v.Next != 18 {
			t.Errorf("%d mails were handled, %s", len(handled), asJSON(t, v))
		}
		t.Logf("counted: %d mails, one by one", len(handled))
	})
}

// S11: a mailbox is removed with mail in every state. Each sender is told once, a late reader
// hears that there is no such box, and the mailbox that is told can be read to its end.
func TestEachStateOfMailWhenItsBoxIsRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.mailbox("boss", nil)
		f.mailbox("desk", nil)
		from := func(m *wire.Mail) { m.Sender = "boss" }
		told := map[string]string{} // mails of which the sender hears, by id
		tell := func(body string, change func(*wire.Mail)) {
			told[f.mail("agent:ceo", body, func(m *wire.Mail) { from(m); change(m) }).ID] = body
		}
		tell("dead", func(*wire.Mail) {})
		f.kill("ceo", "", "dead")
		tell("leased", func(*wire.Mail) {})
		leased := f.one("ceo", "", "leased")
		tell("retrying", func(*wire.Mail) {})
		d := f.one("ceo", "", "retrying")
		f.settle("ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: d.Lease, Delay: wire.Duration(time.Hour)}}})
		tell("waiting", func(*wire.Mail) {})
		tell("later", func(m *wire.Mail) { m.Delay = wire.Duration(time.Hour) })
		tell("behind", func(m *wire.Mail) { m.Key = "k" })
		tell("behind it", func(m *wire.Mail) { m.Key = "k" })
		done := f.mail("agent:ceo", "done", func(m *wire.Mail) { from(m); m.Class = "critical" })
		for _, d := range first(f.lease("ceo", "", 1, 0)) {
			if d.Mail.ID != done.ID || f.ack("ceo", "", d) != wire.SettledOK {
				t.Errorf("%+v", d)
			}
		}
		f.mail("agent:desk", "stays", from)
		f.must(f.Remove(t.Context(), "ceo"))
		_, err := f.Settle(t.Context(), "ceo", "", wire.SettleMail{Ack: []string{leased.Lease}})
		f.refused(err, wire.ErrNotFound, "mailbox add ceo")
		_, err = f.trySend("agent:ceo", "late", from)
		f.refused(err, wire.ErrNotFound, "mailbox add ceo")
		f.restart()
		synctest.Wait()
		for len(told) > 0 {
			got, _ := f.lease("boss", "", 9, time.Minute)
			if len(got) == 0 {
				break
			}
			for _, d := range got {
				if told[d.Mail.BounceOf] == "" || d.Mail.Type != "balefire.bounce" {
					t.Errorf("the sender got %+v", d.Mail)
				}
				delete(told, d.Mail.BounceOf)
				f.ack("boss", "", d)
			}
		}
		if len(told) > 0 {
			t.Errorf("the sender did not hear of %v", told)
		}
		if v := f.box("boss"); v.Waiting != 0 || v.Ended.Done != 7 || v.Ended.Dead != 0 {
			t.Errorf("%s", asJSON(t, v))
		}
		f.mailbox("ceo", nil) // it is a new one
		if v := f.box("ceo"); v.Waiting != 0 || v.Subscriptions[0].Dead != 0 {
			t.Errorf("%s", asJSON(t, v))
		}
		f.one("desk", "", "stays")
		t.Logf("counted: 7 mails in 6 states, %d bounces", f.box("boss").Ended.Done)
	})
}

func first(got []wire.DeliveredMail, _ []string) []wire.DeliveredMail { return got }

// S15: the first mail of a key is failed until it is a dead letter, while its readers die and
// the node starts again. The other keys go on; those behind it come in order.
func TestAFailingMailHoldsUpItsKeyAlone(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		const keys, each = 4, 5
		for n := range each {
			for k := range keys {
				f.mail("agent:ceo", fmt.Sprintf("%d.%d", k, n), func(m *wire.Mail) { m.Key = fmt.Sprint(k) })
			}
		}
		var done [keys][]string
		failed, died := 0, 0
		for round := 0; f.box("ceo").Waiting > 0 && round < 100; round++ {
			r, err := f.Read(t.Context(), "ceo", "", wire.LeaseMail{Max: 9, Reader: fmt.Sprint(round)})
			f.must(err)
			time.Sleep(6 * time.Second) // in the bubble: past the backoff
			got, err := r.Next(t.Context(), 9)
			f.must(err)
			for i, d := range got {
				body := string(d.Mail.Body)
				switch {
				case body == "0.0":
					failed++
					f.settle("ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: d.Lease, Reason: "broken"}}})
				case i == len(got)-1 && round%2 == 0: // the reader dies with it
					died++
				default:
					if f.ack("ceo", "", d) == wire.SettledOK {
						done[body[0]-'0'] = append(done[body[0]-'0'], body)
					}
				}
			}
			if failed < 3 && len(done[0]) > 0 {
				t.Errorf("%q was delivered before the mail in front of it had ended", done[0])
			}
			f.must(r.Close(t.Context(), true))
			if round%3 == 2 {
				f.restart()
			}
		}
		for k := range keys {
			for n, body := range done[k] {
				if k == 0 {
					n++
				}
				if want := fmt.Sprintf("%d.%d", k, n); body != want {
					t.Errorf("key %d: %q, want %s", k, done[k], want)
				}
			}
		}
		if v := f.box("ceo"); v.Waiting != 0 || v.Ended.Done != keys*each-1 || v.Ended.Dead != 1 || failed != 3 || died == 0 {
			t.Errorf("%d failures, %d deaths, %s", failed, died, asJSON(t, v))
		}
		t.Logf("counted: %d mails of %d keys, %d failures of one, %d deaths of readers", keys*each, keys, failed, died)
	})
}

// S17: hundreds of mails fail for good. Sent again at a rate they are new mails, each once, and
// no dedupe key swallows one: neither that of its producer nor that of the first redrive.
func TestManyDeadLettersAreSentAgain(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		const mails, rate = 300, 100
		ids := map[string]string{} // by the id of the dead letter
		for i := range mails {
			body := fmt.Sprint(i)
			ids[f.mail("agent:ceo", body, func(m *wire.Mail) { m.Dedupe = body }).ID] = body
		}
		fail := func() {
			t.Helper()
			for n := 0; n < mails; {
				got, _ := f.lease("ceo", "", 100, time.Second)
				if len(got) == 0 {
					t.Fatalf("%d of %d mails", n, mails)
				}
				var what wire.SettleMail
				for _, d := range got {
					what.Nack = append(what.Nack, wire.NackMail{Lease: d.Lease, Final: true})
				}
				f.settle("ceo", "", what)
				n += len(got)
			}
		}
		fail()
		for round := range 2 { // what was sent again dies, and is sent again
			began := time.Now()
			out, err := f.Redrive(t.Context(), "ceo", "", wire.RedriveMail{Rate: rate})
			f.must(err)
			if took, want := time.Since(began), (mails-1)*time.Second/rate; len(out.Items) != mails || out.More || took < want || took > want+time.Second {
				t.Errorf("round %d: %d mails in %v, want %d in %v", round, len(out.Items), took, mails, want)
			}
			for _, item := range out.Items {
				if item.Mail.Known || ids[item.Mail.ID] != "" {
					t.Errorf("round %d: %+v is no new mail", round, item.Mail)
				}
			}
			if round == 0 {
				fail()
			}
		}
		seen := map[string]bool{}
		for len(seen) < mails {
			got, _ := f.lease("ceo", "", 100, time.Second)
			if len(got) == 0 {
				break
			}
			for _, d := range got {
				if body := string(d.Mail.Body); ids[d.Mail.FirstID] != body || seen[body] || d.Attempt != 1 {
					t.Errorf("%+v", d)
				}
				seen[string(d.Mail.Body)] = true
				f.ack("ceo", "", d)
			}
		}
		if v := f.box("ceo"); len(seen) != mails || v.Waiting != 0 || v.Ended.Done != mails || v.Ended.Dead != 2*mails || v.Subscriptions[0].Dead != 2*mails {
			t.Errorf("%d mails came again, %s", len(seen), asJSON(t, v))
		}
		if out, err := f.Redrive(t.Context(), "ceo", "", wire.RedriveMail{}); err != nil || len(out.Items) != 0 {
			t.Errorf("%d mails are sent once more, %v", len(out.Items), err)
		}
		t.Logf("counted: %d mails, %d dead letters, %d done", mails, 2*mails, len(seen))
	})
}
