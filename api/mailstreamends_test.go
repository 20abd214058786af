package api

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/node"
	"github.com/balefire/balefire/node/nodetest"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/transport/transporttest"
	"github.com/balefire/balefire/wire"
)

// simulated lets a node use place i of a network of a bubble.
func simulated(w *transporttest.Network, i int) func(*node.Config) {
	return func(cfg *node.Config) {
		cfg.Clock, cfg.Limits.MemoryLimit = clock.Runtime(), -1
		cfg.Simulated.Transport = func(c *transport.Config) { w.Configure(i, c) }
		cfg.Simulated.Load = func() (cpu, memory uint32) { return 0, 0 }
	}
}

// servePipes serves n over pipes, in a bubble. The function connects to its stream of mail.
func servePipes(t *testing.T, n *node.Node) (dial func(protocol string) *websocket.Conn) {
	t.Helper()
	l := &oneConn{conns: make(chan net.Conn, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- New(n, Config{Grace: time.Minute}).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func(protocol string) *websocket.Conn {
		t.Helper()
		near, far := net.Pipe()
		l.conns <- near
		c, _, err := websocket.Dial(t.Context(), "ws://node/v1/mail/stream", &websocket.DialOptions{Subprotocols: []string{protocol}, HTTPClient: &http.Client{Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) { return far, nil },
		}}})
		if err != nil {
			t.Fatal(err)
		}
		c.SetReadLimit(-1)
		t.Cleanup(func() { _ = c.CloseNow() })
		return c
	}
}

// Sessions end on the wire with MOVED and the new home when their box is handed over, and with
// DRAINING and their own when its node stops, in both forms.
func TestEndsOfSessionsOnTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := transporttest.Mesh(t, transporttest.Link{Latency: 10 * time.Millisecond})
		t.Cleanup(w.Close)
		here := nodetest.Open(t, simulated(w, 0))
		stop := nodetest.Run(t, here)
		nodetest.Run(t, nodetest.Join(t, here, "beta", simulated(w, 1)))
		for name, named := range map[string]bool{"desk": true, "ceo": false} {
			if _, err := here.Mail.SetMailbox(t.Context(), name, wire.MailboxSettings{Named: named}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Minute) // the nodes know each other
		dial := servePipes(t, here)
		c, f := dial(wire.MailDocuments), &frames{t: t, c: dial(wire.MailFrames)}
		ends := func(session uint32, box string, end func(), code wire.Code, home string) {
			t.Helper()
			tell(t, c, `{"op":"read","session":%d,"box":%q,"credit":5}`, session, box)
			f.write(readFrame(session, box, 5))
			synctest.Wait() // both have begun
			end()
			if a := hear(t, c); a.Op != "end" || a.Session != session || a.Code != code || a.Home != home || a.Detail == "" {
				t.Errorf("%s: %+v, want %s at %s", box, a, code, home)
			}
			if got, detail, at, err := f.next(wire.OpEnd, session).End(); err != nil || got != code || at != home || detail == "" {
				t.Errorf("%s: %s %q at %q, %v; want %s at %s", box, got, detail, at, err, code, home)
			}
		}
		ends(1, "agent:desk", func() {
			if _, err := here.Mail.Handoff(t.Context(), "desk", "beta"); err != nil {
				t.Fatal(err)
			}
		}, wire.CodeMoved, "beta")
		ends(2, "agent:ceo", stop, wire.CodeDraining, "here")
	})
}

// A client that reads nothing of the mail that is leased to it is closed with 1013, in both forms:
// its leases end, and the mail is there for another reader, at the price of an abandon.
func TestMailOfATooSlowClientIsGivenBack(t *testing.T) {
	const mails = 30
	for _, protocol := range []string{wire.MailDocuments, wire.MailFrames} {
		synctest.Test(t, func(t *testing.T) {
			w := transporttest.Mesh(t, transporttest.Link{})
			t.Cleanup(w.Close)
			n := nodetest.Open(t, simulated(w, 0))
			nodetest.Run(t, n)
			if _, err := n.Mail.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{}); err != nil {
				t.Fatal(err)
			}
			sent, errs := n.Mail.Send(t.Context(), manyMails(mails, 200<<10))
			for _, err := range errs {
				if err != nil {
					t.Fatal(err)
				}
			}
			c := servePipes(t, n)(protocol)
			if protocol == wire.MailDocuments {
				tell(t, c, `{"op":"read","session":1,"box":"agent:ceo","credit":%d}`, mails)
			} else {
				(&frames{t: t, c: c}).write(readFrame(1, "agent:ceo", mails))
			}
			time.Sleep(slowAfter - time.Second)
			if m, err := n.Mail.Mail(t.Context(), sent[mails-1].ID); err != nil || m.State != "LEASED" {
				t.Fatalf("%s: before it is closed: %s, %v", protocol, m.State, err)
			}
			time.Sleep(2 * time.Second)
			if code, _ := closed(t, c); code != websocket.StatusTryAgainLater {
				t.Errorf("%s: closed with %d", protocol, code)
			}
			synctest.Wait()
			var given []wire.DeliveredMail
			for range mails { // a lease of mails so large is one of them
				one, err := n.Mail.Lease(t.Context(), "ceo", "", wire.LeaseMail{Max: 1})
				if err != nil || len(one) != 1 {
					t.Fatalf("%s: after %d mails %d are given again, %v", protocol, len(given), len(one), err)
				}
				given = append(given, one...)
			}
			for _, d := range given {
				if m, err := n.Mail.Mail(t.Context(), d.Mail.ID); err != nil || !d.Redelivered || m.Abandons != 1 || m.Attempts != 0 {
					t.Errorf("%s: redelivered %v, %d abandons, %d attempts, %v", protocol, d.Redelivered, m.Abandons, m.Attempts, err)
				}
			}
		})
	}
}

// manyMails returns n mails for ceo with bodies of a size.
func manyMails(n, size int) []wire.Mail {
	all := make([]wire.Mail, n)
	for i := range all {
		all[i] = wire.Mail{To: "agent:ceo", Body: []byte(strings.Repeat("x", size))}
	}
	return all
}
