package mailbox

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balefire/balefire/handler"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/wire"
)

// allow sets the nodes that may send to the mailbox raw.
func (f *fixture) allow(list ...string) {
	f.t.Helper()
	f.mailbox("raw", func(s *wire.MailboxSettings) { s.Allow = &list })
}

// arrives lets a peer send a mail to the mailbox raw.
func (f *fixture) arrives(p proto.PeerID, typ string) {
	f.t.Helper()
	if code := f.arriveFrom(p, "agent:raw@"+f.self.String(), typ, 4); code != proto.CodeOK {
		f.t.Fatalf("a mail of type %q is refused: %s", typ, code.Name())
	}
}

// denied checks that the dead letters of the mailbox raw are of these nodes, and say why.
func (f *fixture) denied(from ...string) {
	f.t.Helper()
	dead := f.inState("raw", "DEAD")
	for i, m := range dead {
		if i < len(from) && m.From != from[i] || m.Cause != "final" {
			f.t.Errorf("%s", asJSON(f.t, m))
		}
	}
	if len(dead) != len(from) {
		f.t.Errorf("%d dead letters, want %d", len(dead), len(from))
	}
}

// I17: what a mailbox takes from every member, bounces and letters that a mail is DONE, which anybody
// can make up, starts its handler only for those whom it allows. Nothing is lost: it is a dead letter.
func TestForgedNoticeStartsNoHandler(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var ran []string
		f.programs.run = func(_ context.Context, r *handler.Run, _ string) *handler.Result {
			ran = append(ran, r.Env["BALEFIRE_FROM"])
			return &handler.Result{Outcome: handler.Success}
		}
		f.handle(wire.MailHandler{})
		f.allow("peer:gamma")
		f.arrives(f.beta, mail.TypeBounce)
		f.arrives(f.beta, mail.TypeDone)
		f.arrives(f.gamma, mail.TypeBounce)
		synctest.Wait()
		if strings.Join(ran, " ") != "gamma" {
			t.Errorf("it ran for %q", ran)
		}
		f.denied("beta", "beta")
		retried, err := f.Redrive(t.Context(), "raw", "", wire.RedriveMail{})
		f.must(err)
		synctest.Wait()
		if strings.Join(ran, " ") != "gamma alpha alpha" {
			t.Errorf("with %s, which this node sent again, it ran for %q", asJSON(t, retried), ran)
		}
	})
}

// A bounce that this node made of its own mail needs no permission.
func TestHandlerOfBouncesOfThisNode(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var types []string
		f.programs.run = func(_ context.Context, r *handler.Run, _ string) *handler.Result {
			types = append(types, r.Env["BALEFIRE_TYPE"])
			return &handler.Result{Outcome: handler.Success}
		}
		f.handle(wire.MailHandler{})
		f.mail("agent:desk@beta", "x", func(m *wire.Mail) { m.Sender, m.TTL = "raw", wire.Duration(time.Second) })
		time.Sleep(time.Minute)
		synctest.Wait()
		if strings.Join(types, " ") != mail.TypeBounce {
			t.Errorf("it ran for %q", types)
		}
		f.denied()
	})
}

// I17: the allow list of the moment of the start counts, not that of the moment when the mail
// came: for what waits, for what waits behind its key, and for what a restart finds.
func TestHandlerOfANarrowedMailbox(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var mu sync.Mutex
		var ran []string
		f.programs.run = func(_ context.Context, r *handler.Run, _ string) *handler.Result {
			mu.Lock()
			ran = append(ran, r.Env["BALEFIRE_FROM"])
			mu.Unlock()
			time.Sleep(time.Minute)
			return &handler.Result{Outcome: handler.Success}
		}
		f.handle(wire.MailHandler{})
		f.allow("peer:beta", "peer:gamma")
		f.arrives(f.beta, "")
		synctest.Wait() // its program runs
		f.arrives(f.beta, "")
		f.arrives(f.gamma, "")
		f.allow("peer:gamma")
		time.Sleep(5 * time.Minute)
		f.denied("beta")
		_, err := f.Pause(t.Context(), "raw", "", true)
		f.must(err)
		f.arrives(f.gamma, "")
		f.sendRaw(wire.Mail{})
		f.allow()
		f.restart()
		_, err = f.Pause(t.Context(), "raw", "", false)
		f.must(err)
		time.Sleep(5 * time.Minute)
		f.denied("beta", "gamma")
		mu.Lock()
		defer mu.Unlock()
		if v := f.box("raw"); strings.Join(ran, " ") != "beta gamma alpha" || v.Ended.Done != 3 || v.Waiting != 0 {
			t.Errorf("it ran for %q, %+v", ran, v)
		}
	})
}

// I17: no handler starts for mail of a node that was revoked since it sent it.
func TestHandlerAfterARevocation(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		var ran []string
		f.programs.run = func(_ context.Context, r *handler.Run, _ string) *handler.Result {
			ran = append(ran, r.Env["BALEFIRE_FROM"])
			return &handler.Result{Outcome: handler.Success}
		}
		f.handle(wire.MailHandler{})
		f.allow("*")
		_, err := f.Pause(t.Context(), "raw", "", true)
		f.must(err)
		f.arrives(f.beta, "")
		f.arrives(f.gamma, "")
		revoked, err := f.root.Revoke(identity.Revocation{Peer: f.beta}, time.Now())
		f.must(err)
		f.must(f.book.Revoke(t.Context(), revoked))
		_, err = f.Pause(t.Context(), "raw", "", false)
		f.must(err)
		synctest.Wait()
		if strings.Join(ran, " ") != "gamma" {
			t.Errorf("it ran for %q", ran)
		}
		f.denied("beta")
	})
}
