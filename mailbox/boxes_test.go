package mailbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/balefire/balefire/addressbook"
	"github.com/balefire/balefire/bodies"
	"github.com/balefire/balefire/clock"
	"github.com/balefire/balefire/disk"
	"github.com/balefire/balefire/identity"
	"github.com/balefire/balefire/mail"
	"github.com/balefire/balefire/mail/box"
	"github.com/balefire/balefire/proto"
	"github.com/balefire/balefire/store"
	"github.com/balefire/balefire/store/ledger"
	"github.com/balefire/balefire/store/mem"
	"github.com/balefire/balefire/transport"
	"github.com/balefire/balefire/wire"
)

// A fixture is the boxes of the node alpha, which can be started again. Beta and gamma are
// members of its mesh.
type fixture struct {
	*Boxes
	t           *testing.T
	dir         string
	book        *addressbook.Book
	root        *identity.Root
	keys        *identity.Keys
	betaKeys    *identity.Keys
	self        proto.PeerID
	beta, gamma proto.PeerID
	boot        uint64
	log         *ledger.Ledger
	ledgers     Ledgers                          // default the fixture
	disk        func(*ledger.Ledger) mail.Ledger // in place of the ledger itself
	names       *names
	programs    *programs
	stop        func()
	arrivals    uint64 // numbers of bundles
	limits      box.Limits
	objects     *bodies.Store
	blobs       string // its folder
	sender      *sender
	fail        func(point string) error
	full        atomic.Bool  // the disk is below its reserve
	slept       atomic.Int64 // how long the machine was suspended
	off         atomic.Int64 // how far its wall clock is ahead
	bound       bool         // it is doubted if it is years ahead
	registry    *prometheus.Registry

	mu     sync.Mutex
	audits []string
	events []map[string]string
}

// names are the names of a mesh, whose homes tests set.
type names struct {
	self  proto.PeerID
	fail  error // of Remove
	mu    sync.Mutex
	homes map[string]proto.PeerID
	given map[string]uint64 // how often a name was handed over

	handed func(name string, to proto.PeerID) // called when one was; nil: nobody is told

	asked          func() // called once, by MayTake
	changed        func()
	titled, looked func() // called once: when a home was looked up after a Title
}

// move lets the name have its home at p.
func (n *names) move(name string, p proto.PeerID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.homes[name] = p
	n.changed()
}

// seize makes n.self the home of a name.
func (n *names) seize(_ context.Context, name, from string) error {
	if from != "beta" {
		return wire.ErrRefused
	}
	n.move(name, n.self)
	return nil
}

// watch lets changed be called by move.
func (n *names) watch(changed func()) { n.changed = changed }

func (n *names) HomeOf(name string) (proto.PeerID, uint64, error) {
	n.mu.Lock()
	home, ok := n.homes[name]
	generation := 1 + n.given[name]
	looked := n.looked
	n.looked = nil
	n.mu.Unlock()
	if looked != nil {
		looked()
	}
	if !ok {
		return home, 0, wire.ErrNotFound
	}
	return home, generation, nil
}

func (n *names) Title(_ context.Context, name string, _ proto.TitleKind) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.homes[name]; !ok {
		n.homes[name] = n.self
	}
	n.looked, n.titled = n.titled, nil
	return nil
}

func (n *names) MayTake(context.Context, string, proto.PeerID) error {
	if asked := n.asked; asked != nil {
		n.asked = nil
		asked()
	}
	return n.fail
}

// HandOff makes p the home of a name.
func (n *names) HandOff(_ context.Context, name string, p proto.PeerID) error {
	if n.fail != nil {
		return n.fail
	}
	n.mu.Lock()
	if n.given == nil {
		n.given = map[string]uint64{}
	}
	n.given[name]++
	n.homes[name] = p
	n.mu.Unlock()
	n.changed()
	if n.handed != nil {
		n.handed(name, p)
	}
	return nil
}

func (n *names) Remove(_ context.Context, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fail == nil {
		delete(n.homes, name)
	}
	return n.fail
}

// bubble calls f with a new fixture, in a bubble of synctest.
func bubble(t *testing.T, f func(*testing.T, *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		x := newFixture(t)
		defer func() { x.stop() }()
		f(t, x)
	})
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	s, err := store.Open(mem.New(), store.Config{Clock: clock.Runtime(), SweepEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	root, keys := identity.NewRoot(nil), identity.NewKeys(nil, time.Now())
	f := &fixture{t: t, root: root, names: &names{homes: map[string]proto.PeerID{}}, programs: new(programs), dir: filepath.Join(t.TempDir(), "own"), keys: keys, self: keys.Peer()}
	issue := func(k *identity.Keys, name string) *proto.Signed {
		cert, err := root.IssueMember(identity.Member{Peer: k.Peer(), Name: name}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	if f.book, err = addressbook.Open(s, root.Mesh(), keys, issue(keys, "alpha"), clock.Runtime(), transport.Multiaddrs{}); err != nil {
		t.Fatal(err)
	}
	for name, id := range map[string]*proto.PeerID{"beta": &f.beta, "gamma": &f.gamma} {
		k := identity.NewKeys(nil, time.Now())
		if *id = k.Peer(); name == "beta" {
			f.betaKeys = k
		}
		if err := f.book.Learn(t.Context(), &proto.KnownPeer{Certificate: issue(k, name), KeyRecord: k.KeyRecord()}); err != nil {
			t.Fatal(err)
		}
	}
	f.names.self = f.self
	f.blobs, f.sender = filepath.Join(t.TempDir(), "blob"), new(sender)
	f.openBodies()
	t.Cleanup(func() { f.objects.Close() })
	f.start()
	return f
}

// start starts the boxes. Their stop is that of a process that is killed: what is not in
// the ledger is lost.
func (f *fixture) start() {
	f.t.Helper()
	f.boot++
	f.log, f.registry = nil, prometheus.NewRegistry()
	machine := clock.WithSuspend(clock.Runtime(), func() time.Duration { return time.Duration(f.slept.Load()) })
	machine = clock.WithOffset(machine, func() time.Duration { return time.Duration(f.off.Load()) })
	guard := clock.NewGuard(machine)
	if f.bound {
		guard.Bound(time.Now(), time.Now(), time.Now().AddDate(1, 0, 0))
	}
	var err error
	f.Boxes, err = Open(Parts{Ledgers: cmp.Or[Ledgers](f.ledgers, f), Book: f.book, Members: f, Want: func(proto.PeerID) {}, Names: f.names, Watch: f.names.watch, Seize: f.names.seize, Programs: f.programs, Bodies: f.objects, Sender: f.sender}, Config{
		Self: f.self, Mesh: proto.MeshID{7}, Keys: f.keys, Verifier: identity.NewVerifier(), Boot: f.boot, Clock: guard.Clock(), Logger: slog.New(slog.DiscardHandler), Registerer: f.registry, Limits: f.limits, Audit: f.audit, AuditSystem: f.audit, Event: f.event, Fail: f.fail, MaxBody: 4 << 20, Suite: bodies.AES,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("the boxes ended: %v", err)
		}
		if f.log != nil {
			if err := f.log.Close(); err != nil {
				f.t.Error(err)
			}
		}
	})
}

func (f *fixture) restart() {
	f.t.Helper()
	f.stop()
	f.start()
}

// HasLedger implements [Ledgers].
func (f *fixture) HasLedger() bool {
	_, err := os.Stat(f.dir)
	return err == nil
}

// OpenLedger implements [Ledgers].
func (f *fixture) OpenLedger() (l mail.Ledger, err error) {
	f.log, err = ledger.Open(f.dir, ledger.Config{Segment: 2 << 20, Ring: 2 << 20, Reserve: 1, Space: f.space, Clock: clock.Runtime()})
	if err == nil && f.disk != nil {
		return f.disk(f.log), nil
	}
	return f.log, err
}

func (f *fixture) space() (free, total int64, err error) {
	if f.full.Load() {
		return 0, 1 << 40, nil
	}
	return 1 << 40, 1 << 40, nil
}

// ArchiveMail implements [Ledgers].
func (f *fixture) ArchiveMail(lines []byte) (string, error) {
	return "dead-mail.jsonl", disk.AppendLines(f.archivePath(), lines, time.Now())
}

func (f *fixture) archivePath() string { return filepath.Join(filepath.Dir(f.dir), "dead-mail.jsonl") }

// Member implements [inbox.Members].
func (f *fixture) Member(p proto.PeerID) (name string, roles []string, ok bool) {
	m, ok := f.book.Member(p)
	return m.Name, m.Roles, ok
}

func (f *fixture) audit(_ context.Context, action, what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.audits = append(f.audits, action+" "+what)
	return nil
}

func (f *fixture) event(kind string, p proto.PeerID, fields map[string]string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fields["kind"], fields["peer"] = kind, p.String()
	f.events = append(f.events, fields)
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// refused checks that an error is of a kind and says something.
func (f *fixture) refused(err, kind error, says string) {
	f.t.Helper()
	if !errors.Is(err, kind) || !strings.Contains(err.Error(), says) {
		f.t.Errorf("%v, want %v that says %q", err, kind, says)
	}
}

func (f *fixture) mailbox(name string, change func(*wire.MailboxSettings)) {
	f.t.Helper()
	var s wire.MailboxSettings
	if change != nil {
		change(&s)
	}
	_, err := f.SetMailbox(f.t.Context(), name, s)
	f.must(err)
}

func (f *fixture) topic(name string, subs ...string) {
	f.t.Helper()
	_, err := f.SetTopic(f.t.Context(), name, wire.BoxSettings{})
	f.must(err)
	for _, sub := range subs {
		_, err := f.SetSubscription(f.t.Context(), name, sub, wire.SubscriptionSettings{})
		f.must(err)
	}
}

// mail sends a mail, which must be taken.
func (f *fixture) mail(to, body string, change func(*wire.Mail)) wire.SentMail {
	f.t.Helper()
	sent, err := f.trySend(to, body, change)
	f.must(err)
	return sent
}

func (f *fixture) trySend(to, body string, change func(*wire.Mail)) (wire.SentMail, error) {
	m := wire.Mail{To: to, Body: []byte(body)}
	if change != nil {
		change(&m)
	}
	sent, errs := f.Send(f.t.Context(), []wire.Mail{m})
	return sent[0], errs[0]
}

// lease leases at most n mails and returns their bodies.
func (f *fixture) lease(name, sub string, n int, wait time.Duration) ([]wire.DeliveredMail, []string) {
	f.t.Helper()
	got, err := f.Lease(f.t.Context(), name, sub, wire.LeaseMail{Max: n, Wait: wire.Wait(wait), Reader: "test"})
	f.must(err)
	var bodies []string
	for _, d := range got {
		bodies = append(bodies, string(d.Mail.Body))
	}
	return got, bodies
}

// one leases the only mail that is there.
func (f *fixture) one(name, sub, body string) wire.DeliveredMail {
	f.t.Helper()
	got, bodies := f.lease(name, sub, 9, time.Minute)
	if !slices.Equal(bodies, []string{body}) {
		f.t.Fatalf("leased %q, want %q", bodies, body)
	}
	return got[0]
}

func (f *fixture) settle(name, sub string, s wire.SettleMail) []wire.SettledItem {
	f.t.Helper()
	items, err := f.Settle(f.t.Context(), name, sub, s)
	f.must(err)
	return items
}

func (f *fixture) ack(name, sub string, d wire.DeliveredMail) string {
	f.t.Helper()
	return f.settle(name, sub, wire.SettleMail{Ack: []string{d.Lease}})[0].Code
}

// kill makes a dead letter of the only mail that is there.
func (f *fixture) kill(name, sub, body string) {
	f.t.Helper()
	d := f.one(name, sub, body)
	f.settle(name, sub, wire.SettleMail{Nack: []wire.NackMail{{Lease: d.Lease, Reason: "broken", Final: true}}})
}

// mails returns the bodies of the mails that a query selects, and checks the states.
func (f *fixture) mails(name, sub string, q wire.MailQuery) (bodies []string) {
	f.t.Helper()
	got, next, err := f.Mails(f.t.Context(), name, sub, q)
	f.must(err)
	if next != "" {
		f.t.Errorf("there is a next page, %s", next)
	}
	for _, m := range got {
		bodies = append(bodies, string(m.Body))
	}
	return bodies
}

func (f *fixture) box(name string) wire.Box {
	f.t.Helper()
	v, err := f.Get(f.t.Context(), name)
	f.must(err)
	return v
}

func ptr[T any](v T) *T { return &v }

func TestNodeWithoutBoxes(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		ctx := t.Context()
		if all, err := f.List(ctx, ""); err != nil || len(all) != 0 {
			t.Errorf("boxes: %v, %v", all, err)
		}
		_, err := f.Get(ctx, "ceo")
		f.refused(err, wire.ErrNotFound, "there is no agent:ceo@alpha on this node; make it with balefire-node mailbox add ceo")
		_, err = f.trySend("agent:ceo", "x", nil)
		f.refused(err, wire.ErrNotFound, "make it with balefire-node mailbox add ceo")
		_, err = f.Lease(ctx, "ceo", "", wire.LeaseMail{})
		f.refused(err, wire.ErrNotFound, "mailbox add ceo")
		_, err = f.Mail(ctx, "0198c0de")
		f.refused(err, wire.ErrNotFound, "it has ended and is not kept")
		_, err = f.SetMailbox(ctx, "CEO", wire.MailboxSettings{})
		f.refused(err, wire.ErrInvalid, "1-63 of a-z")
		f.restart()
		if f.HasLedger() {
			t.Error("a node without a box has a ledger")
		}
		f.mailbox("ceo", nil)
		if !f.HasLedger() {
			t.Error("a node with a box has no ledger")
		}
	})
}

func TestMailboxAfterTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.stop()
		_, err := f.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{})
		f.refused(err, wire.ErrDraining, "stopping")
		if f.HasLedger() {
			t.Error("a ledger was made after the end")
		}
	})
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", nil)
		f.stop()
		_, err := f.SetMailbox(t.Context(), "ceo", wire.MailboxSettings{})
		f.refused(err, wire.ErrDraining, "stopped")
		_, err = f.trySend("agent:ceo", "x", nil)
		f.refused(err, wire.ErrDraining, "stopped")
		_, err = f.Lease(t.Context(), "ceo", "", wire.LeaseMail{Wait: wire.Wait(time.Minute)})
		f.refused(err, wire.ErrDraining, "stopped")
	})
}

func TestRestartKeepsAll(t *testing.T) {
	bubble(t, func(t *testing.T, f *fixture) {
		f.mailbox("ceo", func(s *wire.MailboxSettings) { s.Attempts, s.Allow = ptr(1), &[]string{"peer:beta"} })
		f.topic("orders", "billing")
		f.mail("agent:ceo", "dead", nil)
		d := f.one("ceo", "", "dead")
		f.settle("ceo", "", wire.SettleMail{Nack: []wire.NackMail{{Lease: d.Lease, Reason: "broken"}}})
		f.mail("agent:ceo", "leased", nil)
		leased := f.one("ceo", "", "leased")
		f.mail("agent:ceo", "waits", func(m *wire.Mail) {
			m.Class, m.Key, m.Dedupe, m.Type, m.ContentType, m.Correlation, m.Sender = "high", "order-7", "inv-1", "order", "text/plain", "c-1", "boss"
			m.ReplyTo, m.Labels, m.Hops, m.Trace = "agent:desk@beta", map[string]string{"a": "1", "b": ""}, 2, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		})
		f.mail("topic:orders", "published", func(m *wire.Mail) { m.Subject = "eu.created" })
		before, orders := f.box("ceo"), f.box("topic:orders")
		f.restart()
		after := f.box("ceo")
		if before.Subscriptions[0].Leased != 1 || after.Subscriptions[0].Leased != 0 {
			t.Errorf("leased %d, then %d", before.Subscriptions[0].Leased, after.Subscriptions[0].Leased)
		}
		before.Subscriptions[0].Leased, before.Subscriptions[0].Readers = 0, nil
		if got, want := fmt.Sprint(asJSON(t, after)), fmt.Sprint(asJSON(t, before)); got != want {
			t.Errorf("mailbox %s, want %s", got, want)
		}
		if got, want := asJSON(t, f.box("topic:orders")), asJSON(t, orders); got != want {
			t.Errorf("topic %s, want %s", got, want)
		}
		if code := f.ack("ceo", "", leased); code != wire.SettledOK {
			t.Errorf("ack of a lease of the start before: %s", code)
		}
		waits := f.one("ceo", "", "waits").Mail
		if waits.Key != "order-7" || waits.Class != "high" || waits.Type != "order" || waits.ContentType != "text/plain" || waits.Correlation != "c-1" || waits.Sender != "boss" ||
			waits.ReplyTo != "agent:desk@beta" || waits.Labels["a"] != "1" || len(waits.Labels) != 2 || waits.Hops != 2 || waits.Trace == "" || waits.From != "alpha" ||
			waits.FromID != f.self.String() || waits.Box != "agent:ceo@alpha" || waits.Size != 5 {
			t.Errorf("mail %+v", waits)
		}
		if dead := f.mails("ceo", "", wire.MailQuery{State: "DEAD"}); !slices.Equal(dead, []string{"dead"}) {
			t.Errorf("dead letters %q", dead)
		}
		if sent := f.mail("agent:ceo", "waits", func(m *wire.Mail) { m.Dedupe, m.Key, m.Type = "inv-1", "order-7", "order" }); !sent.Known || sent.ID != waits.ID {
			t.Errorf("the dedupe key after a restart: %+v", sent)
		}
	})
}
