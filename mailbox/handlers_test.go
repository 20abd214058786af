package mailbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// programs stand in for the programs of a machine.
type programs struct {
	run func(ctx context.Context, r *handler.Run, body string) *handler.Result

	mu          sync.Mutex
	denied      error
	interrupted proto.TaskID
}

func (p *programs) Program(_ string, s wire.MailHandler) (handler.Handler, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Exec[0] == "denied" || p.denied != nil {
		return nil, fmt.Errorf("%w: it may not run", wire.ErrDenied)
	}
	return handler.Func(func(ctx context.Context, r *handler.Run) *handler.Result {
		body, err := io.ReadAll(r.Body)
		if err != nil || int64(len(body)) != r.BodySize {
			return nil
		}
		return p.run(ctx, r, string(body))
	}), nil
}

func (p *programs) Interrupted(box string, id proto.TaskID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	cut := p.interrupted == id && box == "agent:raw@alpha"
	if cut {
		p.interrupted = proto.TaskID{}
	}
	return cut
}

// handle gives the mailbox raw a handler.
func (f *fixture) handle(h wire.MailHandler) {
	f.t.Helper()
	if len(h.Exec) == 0 && h.Post == "" {
		h.Exec = []string{"program"}
	}
	if _, err := f.SetMailbox(f.t.Context(), "raw", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Handler: &h}}); err != nil {
		f.t.Fatal(err)
	}
}

// sendRaw sends mails to the mailbox raw.
func (f *fixture) sendRaw(mails ...wire.Mail) {
	f.t.Helper()
	for i := range mails {
		mails[i].To = "agent:raw"
	}
	_, errs := f.Send(f.t.Context(), mails)
	if err := errors.Join(errs...); err != nil {
		f.t.Fatal(err)
	}
}

// inState returns the mails of a mailbox in a state.
func (f *fixture) inState(name, state string) []wire.BoxedMail {
	f.t.Helper()
	all, _, err := f.Mails(f.t.Context(), name, "", wire.MailQuery{State: state, Limit: 100})
	if err != nil {
		f.t.Fatal(err)
	}
	return all
}

// What a program returns decides what becomes of its mail.
func TestHandlerOutcomes(t *testing.T) {
	for _, tt := range []struct {
		name               string
		res                handler.Result
		runs               int // until the mail ends, or in a minute
		done               bool
		attempts, abandons int
		reason             string // of the dead letter
		stderr             string
	}{
		{"success", handler.Result{Outcome: handler.Success}, 1, true, 0, 0, "", ""},
		{"retry", handler.Result{Outcome: handler.Retry, Reason: "exit code 75", Stderr: "one\ntwo\n"}, 3, false, 3, 0, "exit code 75: two", "one\ntwo\n"},
		{"final", handler.Result{Outcome: handler.Fail, Reason: "exit code 65", Stderr: "no such order"}, 1, false, 1, 0, "exit code 65: no such order", "no such order"},
		{"final without words", handler.Result{Outcome: handler.Fail, Reason: "exit code 65"}, 1, false, 1, 0, "exit code 65", ""},
		{"timeout", handler.Result{Outcome: handler.Timeout, Reason: "stopped"}, 3, false, 3, 0, "stopped", ""},
		{"killed", handler.Result{Outcome: handler.Crashed, Reason: "killed by signal: killed"}, 10, false, 0, 10, "killed by signal: killed", ""},
		{"no space", handler.Result{Outcome: handler.NoSpace, Reason: "NO_ROOM"}, 10, false, 0, 10, "NO_ROOM", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fixture) {
				runs := 0
				f.programs.run = func(context.Context, *handler.Run, string) *handler.Result {
					runs++
					return &tt.res
				}
				f.handle(wire.MailHandler{})
				f.sendRaw(wire.Mail{Body: []byte("x")})
				time.Sleep(time.Minute)
				v := f.box("raw")
				if runs != tt.runs || v.Waiting != 0 || (v.Ended.Done == 1) != tt.done {
					t.Errorf("%d runs, want %d; %+v", runs, tt.runs, v)
				}
				dead := f.inState("raw", "DEAD")
				if (len(dead) == 1) == tt.done {
					t.Errorf("%d dead letters", len(dead))
				}
				for _, m := range dead {
					if m.Attempts != tt.attempts || m.Abandons != tt.abandons || m.Reason != tt.reason || m.Stderr != tt.stderr {
						t.Errorf("%+v", m)
					}
				}
			})
		})
	}
}

// A program that cannot be started spends nothing: its mail waits, and the mailbox says why.
func TestHandlerThatCannotStart(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var installed atomic.Bool
		f.programs.run = func(context.Context, *handler.Run, string) *handler.Result {
			if !installed.Load() {
				return &handler.Result{Outcome: handler.Unready, Reason: "not installed"}
			}
			return &handler.Result{Outcome: handler.Success}
		}
		f.handle(wire.MailHandler{Concurrency: 2})
		f.sendRaw(wire.Mail{Body: []byte("a")}, wire.Mail{Body: []byte("b")}, wire.Mail{Body: []byte("c")})
		time.Sleep(5*time.Minute + time.Second)
		if v := f.box("raw"); v.Problem == nil || v.Problem.Code != wire.ProblemUnready || v.Problem.Detail != "not installed" || v.Waiting != 3 {
			t.Errorf("%+v", v)
		}
		for _, m := range f.inState("raw", "") {
			if m.Attempts+m.Abandons+len(m.Tries) > 0 {
				t.Errorf("%+v", m)
			}
		}
		installed.Store(true)
		time.Sleep(handlerRetry)
		if v := f.box("raw"); v.Problem != nil || v.Ended.Done != 3 {
			t.Errorf("%+v", v)
		}
		f.programs.mu.Lock()
		f.programs.denied = wire.ErrDenied // as after a change of the configuration
		f.programs.mu.Unlock()
		f.stop()
		f.start()
		f.sendRaw(wire.Mail{Body: []byte("d")})
		time.Sleep(time.Minute)
		if v := f.box("raw"); v.Problem == nil || v.Problem.Code != wire.ProblemHandler || v.Waiting != 1 {
			t.Errorf("%+v", v)
		}
	})
}

// The lease is extended while a program runs, however long that takes, and as many run as the
// settings say.
func TestHandlerExtendsAndRunsMany(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var mu sync.Mutex
		now, most, runs := 0, 0, 0
		f.programs.run = func(ctx context.Context, r *handler.Run, _ string) *handler.Result {
			mu.Lock()
			now, runs = now+1, runs+1
			most = max(most, now)
			mu.Unlock()
			time.Sleep(9 * time.Minute)
			mu.Lock()
			now--
			mu.Unlock()
			return &handler.Result{Outcome: handler.Success}
		}
		f.handle(wire.MailHandler{Concurrency: 3})
		for range 7 {
			f.sendRaw(wire.Mail{Class: "critical"})
		}
		time.Sleep(28 * time.Minute)
		if v := f.box("raw"); v.Ended.Done != 7 || most != 3 || runs != 7 {
			t.Errorf("%d at once, %d runs, %+v", most, runs, v)
		}
	})
}

// A program is told to stop when its time is over, and when the mail is not its own any more.
func TestHandlerIsStopped(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		causes := make(chan error, 4)
		f.programs.run = func(ctx context.Context, r *handler.Run, _ string) *handler.Result {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return &handler.Result{Outcome: handler.Stopped(context.Cause(ctx)), Reason: "stopped"}
		}
		f.handle(wire.MailHandler{Timeout: wire.Duration(30 * time.Second)})
		f.sendRaw(wire.Mail{})
		if err := <-causes; !errors.Is(err, handler.ErrTimeout) {
			t.Error(err)
		}
		time.Sleep(2 * time.Second) // the next attempt
		if err := f.Remove(t.Context(), "raw"); err != nil {
			t.Fatal(err)
		}
		if err := <-causes; !errors.Is(err, handler.ErrLeaseLost) {
			t.Error(err)
		}
	})
}

// A stop of the node while a program runs spends nothing; it returns when the program has ended.
// The death of the node spends an abandon.
func TestHandlerAndTheEndOfTheNode(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var mu sync.Mutex // for the variables that follow
		var id proto.TaskID
		started, ended, wait := 0, 0, true
		counts := func() (s, e int) {
			mu.Lock()
			defer mu.Unlock()
			return started, ended
		}
		begun := func() int { s, _ := counts(); return s }
		f.programs.run = func(ctx context.Context, r *handler.Run, _ string) *handler.Result {
			mu.Lock()
			id = r.ID
			started++
			waits := wait
			mu.Unlock()
			if !waits {
				return &handler.Result{Outcome: handler.Success}
			}
			<-ctx.Done()
			time.Sleep(3 * time.Second) // it cleans up
			mu.Lock()
			ended++
			mu.Unlock()
			return &handler.Result{Outcome: handler.Stopped(context.Cause(ctx)), Reason: fmt.Sprint(context.Cause(ctx))}
		}
		f.handle(wire.MailHandler{})
		f.sendRaw(wire.Mail{})
		for range 12 {
			time.Sleep(time.Second)
			f.stop()
			if s, e := counts(); s != e {
				t.Fatalf("%d started, %d ended", s, e)
			}
			f.start()
		}
		time.Sleep(time.Second)
		if m, n := f.inState("raw", ""), begun(); n != 13 || len(m) != 1 || m[0].Attempts+m[0].Abandons+len(m[0].Tries) > 0 {
			t.Errorf("%d starts, %+v", n, m)
		}
		f.stop()
		mu.Lock()
		wait = false
		last := id
		mu.Unlock()
		f.programs.interrupted = last
		f.start()
		synctest.Wait()
		if m, n := f.inState("raw", ""), begun(); n != 13 || len(m) != 1 || m[0].Abandons != 1 || m[0].Attempts != 0 || m[0].Tries[0].Cause != "abandoned" {
			t.Errorf("%d starts, %+v", n, m)
		}
		time.Sleep(2 * time.Second)
		if v := f.box("raw"); v.Ended.Done != 1 {
			t.Errorf("%+v", v)
		}
	})
}

// A node that is stopped as soon as it runs reads no settings and runs nothing.
func TestHandlersOfANodeThatIsStoppedAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.handle(wire.MailHandler{})
		f.stop()
		f.start()
		f.stop()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		f.rules.all.Store(nil)
		if err := f.handlers.run(ctx, f.ledger.broker()); err != nil {
			t.Error(err)
		}
	})
}

// Other settings count from the next mail on; without a handler nothing is read.
func TestHandlerChanges(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		runs := 0
		f.programs.run = func(context.Context, *handler.Run, string) *handler.Result {
			runs++
			return &handler.Result{Outcome: handler.Success}
		}
		f.handle(wire.MailHandler{Env: []string{"A=1", "B"}})
		f.sendRaw(wire.Mail{})
		synctest.Wait()
		change := func(h wire.MailHandler) wire.MailHandler {
			t.Helper()
			v, err := f.SetMailbox(t.Context(), "raw", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Handler: &h}})
			if err != nil {
				t.Fatal(err)
			}
			if v.Settings.Handler == nil {
				return wire.MailHandler{}
			}
			return *v.Settings.Handler
		}
		if h := change(wire.MailHandler{Concurrency: 4}); h.Concurrency != 4 || !slices.Equal(h.Exec, []string{"program"}) || !slices.Equal(h.Env, []string{"A", "B"}) {
			t.Errorf("%+v", h)
		}
		if n := notesOf(f.settingsOf("raw")); n.Handler.Env[0] != "A=1" {
			t.Errorf("%+v", n.Handler)
		}
		shown := change(wire.MailHandler{Concurrency: 3})
		shown.Env = append(shown.Env, "C")
		change(shown)
		if n := notesOf(f.settingsOf("raw")); !slices.Equal(n.Handler.Env, []string{"A=1", "B", "C"}) || n.Handler.Concurrency != 3 {
			t.Errorf("what was shown and is written back: %+v", n.Handler)
		}
		f.sendRaw(wire.Mail{})
		synctest.Wait()
		if runs != 2 {
			t.Errorf("%d runs", runs)
		}
		if h := change(wire.MailHandler{}); len(h.Exec) > 0 {
			t.Errorf("%+v", h)
		}
		synctest.Wait()
		f.sendRaw(wire.Mail{})
		time.Sleep(time.Minute)
		if v := f.box("raw"); runs != 2 || v.Waiting != 1 || len(v.Subscriptions[0].Readers) > 0 {
			t.Errorf("%d runs, %+v", runs, v)
		}
		if want := "mailbox.handler agent:raw@alpha: none"; f.audits[len(f.audits)-1] != want || !slices.Contains(f.audits, "mailbox.handler agent:raw@alpha: exec program") {
			t.Errorf("%q", f.audits)
		}
	})
}

// A handler that was changed is given nothing more while its last program runs, and the new one
// runs as many at once as its settings say.
func TestHandlerChangesWhileAProgramRuns(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var mu sync.Mutex
		now, most := 0, 0
		attempts := map[string]int{}
		f.programs.run = func(_ context.Context, r *handler.Run, body string) *handler.Result {
			mu.Lock()
			now++
			most = max(most, now)
			attempts[body] += r.Attempt
			mu.Unlock()
			if body == "long" {
				time.Sleep(9 * time.Minute)
			} else {
				time.Sleep(time.Second)
			}
			mu.Lock()
			now--
			mu.Unlock()
			return &handler.Result{Outcome: handler.Success}
		}
		f.handle(wire.MailHandler{Concurrency: 2})
		f.sendRaw(wire.Mail{Body: []byte("long")})
		synctest.Wait()
		f.handle(wire.MailHandler{Concurrency: 2, Env: []string{"A=1"}})
		synctest.Wait()
		for i := range 6 {
			f.sendRaw(wire.Mail{Body: fmt.Append(nil, i), Class: "critical"})
		}
		time.Sleep(8 * time.Minute)
		if v := f.box("raw"); v.Ended.Done != 6 {
			t.Errorf("%+v", v)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		now, most = 0, 0
		for i := range 6 {
			f.sendRaw(wire.Mail{Body: fmt.Append(nil, 6+i)})
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if v := f.box("raw"); v.Ended.Done != 13 || most != 2 {
			t.Errorf("%d at once, %+v", most, v)
		}
		for body, n := range attempts {
			if n != 1 {
				t.Errorf("%s: attempts %d", body, n)
			}
		}
	})
}

// What a program makes of a mail goes to the next box with its headers, and is never there
// together with the first one, wherever the node is killed.
func TestHandlerForwards(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.programs.run = func(_ context.Context, r *handler.Run, body string) *handler.Result {
			return &handler.Result{Outcome: handler.Success, Output: []byte("rich " + body)}
		}
		if _, err := f.SetMailbox(t.Context(), "next", wire.MailboxSettings{}); err != nil {
			t.Fatal(err)
		}
		f.handle(wire.MailHandler{Forward: "agent:next"})
		const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		f.sendRaw(wire.Mail{Body: []byte("x"), Class: "high", Key: "k", Dedupe: "d", Type: "order", ContentType: "text/plain", Correlation: "c", ReplyTo: "agent:me@beta", Labels: map[string]string{"a": "b"}, Trace: trace, Hops: 2, Sender: "me"})
		synctest.Wait()
		got, err := f.Lease(t.Context(), "next", "", wire.LeaseMail{})
		if err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
		m := got[0].Mail
		if string(m.Body) != "rich x" || m.Class != "high" || m.Key != "k" || m.Type != "order" || m.ContentType != "text/plain" || m.Correlation != "c" || m.ReplyTo != "agent:me@beta" ||
			m.Labels["a"] != "b" || m.Trace != trace || m.Hops != 3 || m.Sender != "me" {
			t.Errorf("%+v", m)
		}
		if v := f.box("raw"); v.Ended.Done != 1 || v.Waiting != 0 {
			t.Errorf("%+v", v)
		}
	})
}

// What came of a bounce is no bounce: a box takes it only if it allows mail from its node.
func TestWhatComesOfABounceIsNone(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		admit, err := f.admission.from(t.Context(), f.ledger.broker(), f.beta)
		f.must(err)
		w := work{h: f.handlers}
		bounce := proto.Letter{Class: proto.High, Type: []byte(mail.TypeBounce), BounceOf: proto.NewMailID(time.Now())}
		next := w.successor(bounce, []byte("anything"))
		if next.Type != nil || !next.BounceOf.IsZero() {
			t.Errorf("%+v", next)
		}
		if code, _ := admit("agent:ceo@"+f.self.String(), next); code != proto.CodeDenied {
			t.Errorf("it is taken: %v", code)
		}
		if next = w.successor(proto.Letter{Type: []byte("order")}, nil); string(next.Type) != "order" {
			t.Errorf("%+v", next)
		}
	})
}

// What a program wrote is shown on its node: neither the bounce to the sender nor an event has it.
func TestWhatAProgramWroteStaysOnItsNode(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("boss", nil)
		f.programs.run = func(_ context.Context, _ *handler.Run, body string) *handler.Result {
			res := &handler.Result{Outcome: handler.Fail, Reason: "exit code 65", Stderr: "one\nthe secret\n"}
			if body == "again" {
				res.Outcome = handler.Retry
			}
			return res
		}
		f.handle(wire.MailHandler{})
		f.sendRaw(wire.Mail{Sender: "boss", Body: []byte("once")}, wire.Mail{Sender: "boss", Body: []byte("again")})
		time.Sleep(time.Minute)
		got, _ := f.lease("boss", "", 2, 0)
		if len(got) != 2 {
			t.Fatalf("%d bounces", len(got))
		}
		for _, d := range got {
			if body := string(d.Mail.Body); strings.Contains(body, "secret") || !strings.Contains(body, `"reason":"exit code 65"`) {
				t.Errorf("a bounce has %s", body)
			}
		}
		events, err := f.Events(t.Context(), "raw", 0, 0, 0)
		f.must(err)
		dead, retried := 0, 0
		for _, e := range events.Items {
			switch text := e.Fields["text"]; {
			case strings.Contains(text, "one") || strings.Contains(text, "secret"):
				t.Errorf("%s has %q", e.Kind, text)
			case text == "final: exit code 65" || text == "nacked: exit code 65":
				dead, retried = dead+strings.Count(e.Kind, "dead"), retried+strings.Count(e.Kind, "retry")
			}
		}
		if dead != 2 || retried != 2 {
			t.Errorf("%+v", events.Items)
		}
		for _, m := range f.inState("raw", "DEAD") {
			if m.Reason != "exit code 65: the secret" || m.Stderr != "one\nthe secret\n" {
				t.Errorf("%+v", m)
			}
			for _, try := range m.Tries {
				if try.Reason != "exit code 65: the secret" {
					t.Errorf("%+v", try)
				}
			}
		}
	})
}

// A mail that its next box does not take stays where it was.
func TestHandlerForwardsToAFullBox(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		runs := 0
		f.programs.run = func(context.Context, *handler.Run, string) *handler.Result {
			runs++
			return &handler.Result{Outcome: handler.Success, Output: []byte("rich")}
		}
		on, off := true, false
		if _, err := f.SetMailbox(t.Context(), "next", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Draining: &on}}); err != nil {
			t.Fatal(err)
		}
		f.handle(wire.MailHandler{Forward: "agent:next"})
		f.sendRaw(wire.Mail{})
		time.Sleep(5 * time.Minute)
		p := f.box("raw").Problem
		if m := f.inState("raw", ""); len(m) != 1 || m[0].Attempts+m[0].Abandons > 0 || runs > 0 || p == nil || p.Code != wire.ProblemForwardRefused || p.Other != "agent:next@alpha" || p.Refusal != "DRAINING" {
			t.Fatalf("%d runs, %+v, %+v", runs, p, m)
		}
		if _, err := f.SetMailbox(t.Context(), "next", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Draining: &off}}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if v, n := f.box("raw"), f.box("next"); v.Ended.Done != 1 || n.Waiting != 1 {
			t.Errorf("%+v, %+v", v, n)
		}
	})
}

// The variables of a program tell it all of the mail that its body does not.
func TestHandlerEnvironment(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var env map[string]string
		f.programs.run = func(_ context.Context, r *handler.Run, _ string) *handler.Result {
			env = r.Env
			return &handler.Result{Outcome: handler.Success}
		}
		f.handle(wire.MailHandler{})
		const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		f.sendRaw(wire.Mail{Key: "k", Type: "order", Trace: trace, Labels: map[string]string{"b": "2", "a": "1"}, Sender: "me"})
		synctest.Wait()
		for name, want := range map[string]string{
			"BALEFIRE_BOX": "agent:raw@alpha", "BALEFIRE_ATTEMPT": "1", "BALEFIRE_EPOCH": "1.1", "BALEFIRE_FROM": "alpha", "BALEFIRE_ORIGIN": f.self.String(), "BALEFIRE_SENDER": "me",
			"BALEFIRE_CLASS": "normal", "BALEFIRE_KEY": "k", "BALEFIRE_TYPE": "order", "BALEFIRE_LABELS": `{"a":"1","b":"2"}`, "TRACEPARENT": trace, "BALEFIRE_IDEMPOTENCY_KEY": env["BALEFIRE_MAIL_ID"],
		} {
			if env[name] != want || want == "" {
				t.Errorf("%s is %q, want %q", name, env[name], want)
			}
		}
	})
}

// Bad settings are refused, and say why and what to do.
func TestBadHandlers(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		for _, name := range []string{"raw", "bare"} {
			if _, err := f.SetMailbox(t.Context(), name, wire.MailboxSettings{}); err != nil {
				t.Fatal(err)
			}
		}
		exec := []string{"program"}
		for _, tt := range []struct {
			name string
			s    wire.MailHandler
			kind error
			want string
		}{
			{"two handlers", wire.MailHandler{Exec: exec, Post: "http://x/"}, wire.ErrInvalid, "exec and post are both given"},
			{"what may not run", wire.MailHandler{Exec: []string{"denied"}}, wire.ErrDenied, "may not run"},
			{"no URL", wire.MailHandler{Post: "x"}, wire.ErrInvalid, "must be a URL such as"},
			{"a file", wire.MailHandler{Post: "file:///etc/passwd"}, wire.ErrInvalid, "must be a URL such as"},
			{"a password", wire.MailHandler{Post: "http://me:secret@x/"}, wire.ErrInvalid, "every view of the mailbox would show"},
			{"a post as a user", wire.MailHandler{Post: "http://x/", RunAs: "nobody"}, wire.ErrInvalid, "leave out env, run_as"},
			{"too many at once", wire.MailHandler{Exec: exec, Concurrency: 257}, wire.ErrInvalid, "from 0, the default 1, to 256"},
			{"fewer than none", wire.MailHandler{Exec: exec, Concurrency: -1}, wire.ErrInvalid, "from 0, the default 1, to 256"},
			{"a day", wire.MailHandler{Exec: exec, Timeout: wire.Duration(24 * time.Hour)}, wire.ErrInvalid, "at most 12 hours"},
			{"itself", wire.MailHandler{Exec: exec, Forward: "agent:raw"}, wire.ErrInvalid, "would get its own mail"},
			{"itself by its full name", wire.MailHandler{Exec: exec, Forward: "agent:raw@alpha"}, wire.ErrInvalid, "would get its own mail"},
			{"to no box", wire.MailHandler{Exec: exec, Forward: "agent:nobody"}, wire.ErrNotFound, "mailbox add nobody"},
			{"to a node", wire.MailHandler{Exec: exec, Forward: "alpha"}, wire.ErrInvalid, "use agent:NAME@NODE or topic:NAME"},
			{"to a node that is not known", wire.MailHandler{Exec: exec, Forward: "agent:x@delta"}, wire.ErrNotFound, "delta"},
			{"nothing to change", wire.MailHandler{Concurrency: 2}, wire.ErrInvalid, "give exec or post, too"},
			{"a long one", wire.MailHandler{Exec: []string{"program", strings.Repeat("x", 8000)}, Env: []string{strings.Repeat("x", 400)}}, wire.ErrInvalid, "the limit is 8192"},
		} {
			_, err := f.SetMailbox(t.Context(), "raw", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Handler: &tt.s}})
			if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v", tt.name, err)
			}
			if v := f.box("raw"); v.Settings.Handler != nil {
				t.Errorf("%s: it is set: %+v", tt.name, v.Settings.Handler)
			}
		}
		h := wire.MailHandler{Exec: exec}
		if _, err := f.SetTopic(t.Context(), "orders", wire.BoxSettings{Handler: &h}); !errors.Is(err, wire.ErrInvalid) {
			t.Errorf("of a topic: %v", err)
		}
		h.Profile = "dangerous"
		for _, allow := range [][]string{{"*"}, {"peer:beta", "role:work"}} {
			if _, err := f.SetMailbox(t.Context(), "raw", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Handler: &h, Allow: &allow}}); !errors.Is(err, wire.ErrDenied) || !strings.Contains(err.Error(), "by name or id") {
				t.Errorf("%q: %v", allow, err)
			}
		}
		if _, err := f.SetMailbox(t.Context(), "raw", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Handler: &h, Allow: &[]string{"peer:beta"}}}); err != nil {
			t.Error(err)
		}
		if _, err := f.SetMailbox(t.Context(), "raw", wire.MailboxSettings{BoxSettings: wire.BoxSettings{Allow: &[]string{"*"}}}); !errors.Is(err, wire.ErrDenied) {
			t.Errorf("allowed to all afterwards: %v", err)
		}
	})
}

// settingsOf returns the settings of a mailbox as they are kept.
func (f *fixture) settingsOf(name string) box.BoxSettings {
	f.t.Helper()
	p, k, err := f.places.existing(name)
	if err != nil {
		f.t.Fatal(err)
	}
	c, err := settingsOf(f.t.Context(), k, p, "")
	if err != nil {
		f.t.Fatal(err)
	}
	return c.box
}
