package mailbox

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// A mail whose sender gives no trace context gets its own, however it is sent, also one to a topic
// or another node; that of a sender is kept.
func TestEveryMailHasATrace(t *testing.T) {
	const given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.topic("orders", "all")
		id := func(o Outcome) string {
			f.must(o.Err)
			return o.ID.String()
		}
		seen := map[string]bool{}
		for _, trace := range []string{"", given} {
			for _, to := range []string{"agent:ceo", "topic:orders", "agent:desk@beta"} {
				for name, send := range map[string]func() string{
					"a document":         func() string { return f.mail(to, "x", func(m *wire.Mail) { m.Trace = trace }).ID },
					"one of a WebSocket": func() string { return id(f.QueueMails([]wire.Mail{{To: to, Trace: trace}}).Wait(t.Context())[0]) },
					"a letter":           func() string { return id(f.QueueLetters([]Letter{letterFor(t, to, trace)}).Wait(t.Context())[0]) },
				} {
					m, err := f.Mail(t.Context(), send())
					if err != nil || !proto.ValidTraceparent([]byte(m.Trace)) || trace != "" && m.Trace != trace || trace == "" && seen[m.Trace] {
						t.Errorf("%s to %s with the trace %q has %q, %v", name, to, trace, m.Trace, err)
					}
					seen[m.Trace] = true
				}
			}
		}
		f.must(f.Remove(t.Context(), "ceo"))
		f.mailbox("ceo", nil)
		_, _, err := f.RequestLetter(t.Context(), letterFor(t, "agent:ceo", ""), nil, 0)
		f.must(err)
		if d := f.one("ceo", "", "x"); !proto.ValidTraceparent([]byte(d.Mail.Trace)) {
			t.Errorf("a request has the trace %q", d.Mail.Trace)
		}
	})
}

// letterFor returns a letter with a trace context, or without one.
func letterFor(t *testing.T, to, trace string) Letter {
	t.Helper()
	now := time.Now()
	raw, err := proto.AppendLetter(nil, &proto.Letter{Class: proto.Normal, ID: proto.NewMailID(now), Created: now.UnixMilli(), NotAfter: now.Add(time.Hour).UnixMilli(), Traceparent: []byte(trace), Body: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	return Letter{[]byte(to), raw}
}

// A program is given the trace of its mail, which another try and the dead letter that is sent
// again continue.
func TestHandlerHasTheTraceOfItsMail(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var got []string
		outcome := handler.Retry
		f.programs.run = func(_ context.Context, r *handler.Run, _ string) *handler.Result {
			got = append(got, r.Env["TRACEPARENT"])
			return &handler.Result{Outcome: outcome}
		}
		f.handle(wire.MailHandler{})
		f.sendRaw(wire.Mail{Body: []byte("x")})
		time.Sleep(time.Hour)
		outcome = handler.Success
		_, err := f.Redrive(t.Context(), "raw", "", wire.RedriveMail{})
		f.must(err)
		synctest.Wait()
		if len(got) < 3 || !proto.ValidTraceparent([]byte(got[0])) {
			t.Fatalf("the runs have the traces %q", got)
		}
		for _, trace := range got {
			if trace != got[0] {
				t.Errorf("the runs have the traces %q", got)
			}
		}
	})
}

// A letter that gets a trace context leaves no more garbage than one that has its own.
func TestTracesLeaveNoGarbage(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector, for which tests are short, drops what pools hold")
	}
	const batch, turns = 16, 100
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		per := func(trace string) uint64 {
			letters := make([]Letter, batch)
			for i := range letters {
				letters[i] = letterFor(t, "agent:ceo", trace)
			}
			turn := func() {
				q := f.QueueLetters(letters)
				for _, o := range q.Wait(t.Context()) {
					f.must(o.Err)
				}
				q.Free()
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
			return (after.TotalAlloc - before.TotalAlloc) / (turns * batch)
		}
		with, without := uint64(1<<30), uint64(1<<30)
		for range 4 { // the box grows meanwhile, by steps
			with, without = min(with, per("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00")), min(without, per(""))
		}
		t.Logf("%d bytes a mail with a trace, %d without", with, without)
		if without > with+30 {
			t.Errorf("%d bytes a mail that gets a trace, %d that has one", without, with)
		}
	})
}
